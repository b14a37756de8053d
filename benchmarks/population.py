"""Waiting jobs by the million, the same for the same seed.

Some hundred jobs are submitted as a user would, through the checks and the optimizers. All others are copies
of their rows, made inside the database, so that whatever a submission leaves there they have as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, text

from benchmarks import copies, lhcb
from benchmarks.copies import Wanted
from benchmarks.lhcb import CPU_TIMES, SITES, VO, requirement_classes
from cs_config import validate
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from optimizers.submit import submission
from optimizers.submit.submitter import Submitter
from requirements.errors import PilotageError
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.task_queues import task_queues

__all__ = ["CPU_TIMES", "NOW", "SITES", "VO", "fill", "requirement_classes", "submit"]

NOW = datetime(2026, 3, 28, tzinfo=UTC)
_AT_ONCE = 1_000
_OPERATOR = Submitter(subject="bench", vo=VO, owner="bench", operator=True)


class TooFewJobs(PilotageError):
    """There are fewer jobs than classes: a class without a job would not be matched at all."""


class NotWaiting(PilotageError):
    """A job is not Waiting after the optimizers."""


def fill(
    engine: Engine,
    *,
    classes: int,
    waiting: int,
    seed: int = 0,
    tagged: float = lhcb.TAGGED,
    pooled: bool = True,
) -> None:
    """Put so many jobs of LHCb's shape into task queues of so many requirement classes; PostgreSQL only.

    `pooled`: half of the classes have Requirements, and so a SubmitPool.
    """
    if waiting < classes:
        raise TooFewJobs(f"{waiting} jobs do not fill {classes} classes")
    asked = requirement_classes(classes, seed, tagged=tagged)
    base, others = asked[: lhcb.BASE], asked[lhcb.BASE :]
    described = [
        lhcb.description(each) | (lhcb.requirements(number) if pooled else {})
        for number, each in enumerate(base)
    ]
    firsts = submit(engine, validate.parse(lhcb.tree()), described)
    sizes = lhcb.sizes(classes, waiting, seed)
    with database.writing(engine) as conn:
        conn.execute(text("SET LOCAL statement_timeout = 0"))
        own = _task_queues_of(conn, firsts)
        wanted = [
            Wanted(original=job_id, task_queue_id=own[job_id], copies=size - 1)
            for job_id, size in zip(firsts, sizes, strict=False)
        ]
        pools = _pools_of(conn, firsts)
        others = [
            replace(each, submit_pool=pools[firsts[number % len(firsts)]])
            for number, each in enumerate(others)
        ]
        made = _more_task_queues(conn, others, firsts)
        wanted += [
            Wanted(original=firsts[number % len(firsts)], task_queue_id=made[each.digest], copies=size)
            for number, (each, size) in enumerate(zip(others, sizes[len(base) :], strict=True))
        ]
        copies.make(conn, wanted, seed=seed)
    settle(engine)


def submit(engine: Engine, config: Configuration, described: Sequence[dict[str, object]]) -> list[int]:
    """Submit jobs and lead them through the optimizers; their ids, all of them Waiting."""
    found: list[int] = []
    for start in range(0, len(described), _AT_ONCE):
        some = described[start : start + _AT_ONCE]
        stored = submission.submit(engine, config, _OPERATOR, some, now=NOW)
        result = stored.decided + batch.optimize(engine, config, stored.due, now=NOW)
        if len(result.waiting) < len(stored.job_ids):
            raise NotWaiting(f"of {len(some)} jobs {len(result.waiting)} wait: {dict(result.outcomes)}")
        found += stored.job_ids
    return found


def settle(engine: Engine) -> None:
    """Do at once what autovacuum and the checkpointer would within minutes."""
    with engine.connect() as conn:
        conn = conn.execution_options(isolation_level="AUTOCOMMIT")
        conn.exec_driver_sql("SET statement_timeout = 0")
        conn.exec_driver_sql("VACUUM (FREEZE, ANALYZE)")
        conn.exec_driver_sql("CHECKPOINT")
        conn.exec_driver_sql("RESET statement_timeout")


def _task_queues_of(conn: Connection, job_ids: Sequence[int]) -> Mapping[int, int]:
    found = conn.execute(
        text("SELECT job_id, task_queue_id FROM jobs WHERE job_id = ANY(:ids)"), {"ids": list(job_ids)}
    )
    return {row.job_id: row.task_queue_id for row in found}


def _pools_of(conn: Connection, job_ids: Sequence[int]) -> Mapping[int, str | None]:
    found = conn.execute(
        text("SELECT job_id, submit_pool FROM jobs WHERE job_id = ANY(:ids)"), {"ids": list(job_ids)}
    )
    return {row.job_id: row.submit_pool for row in found}


_MORE_TASK_QUEUES = text("""
    WITH made (digest, original) AS
      (SELECT * FROM unnest(CAST(:digests AS text[]), CAST(:originals AS bigint[])))
    INSERT INTO task_queues (class_id, vo, owner, owner_group, priority, occupied, changed_at)
    SELECT requirement_classes.class_id, jobs.vo, jobs.owner, jobs.owner_group, 1.0, true, :now
    FROM made JOIN requirement_classes USING (digest) JOIN jobs ON jobs.job_id = made.original
""")
_BY_DIGEST = text("SELECT digest, task_queue_id FROM task_queues JOIN requirement_classes USING (class_id)")


def _more_task_queues(
    conn: Connection, classes: Sequence[RequirementClass], firsts: Sequence[int]
) -> Mapping[str, int]:
    """Task queues of further classes, for the owners of the first jobs in turn; by digest of the class."""
    if not classes:
        return {}
    rows = [{"digest": each.digest, "vo": each.vo, "definition": each.to_json()} for each in classes]
    conn.execute(task_queues.NEW_CLASS, rows)
    originals = [firsts[number % len(firsts)] for number in range(len(classes))]
    digests = [each.digest for each in classes]
    conn.execute(_MORE_TASK_QUEUES, {"digests": digests, "originals": originals, "now": NOW})
    return {row.digest: row.task_queue_id for row in conn.execute(_BY_DIGEST)}
