"""Hundreds of jobs through the chain in one transaction.

The chain runs before the transaction, which then writes only for jobs that are still as they were
read: two workers with the same jobs, or one that is killed and does it all again, make no difference.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Engine

from cs_config.configuration import Configuration
from optimizers import arrival, chain, passages, plugins
from optimizers.chain import Passage, Step
from optimizers.context import Context, context_of
from optimizers.outcome import Done, Failed, Hold
from optimizers.passages import Passages
from optimizers.verdict import verdict_of
from taskqueue import database, preparing, retries
from taskqueue.preparing import PreparingJob, Settled, Verdict

log = logging.getLogger(__name__)

#: Jobs in one transaction: enough that its cost does not count, few enough that nobody waits for it long.
MOST_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of the jobs of a batch, by id."""

    waiting: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()  #: not due, or in the hands of another worker
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)  #: (step, `Done`…) to jobs

    def __add__(self, other: "BatchResult") -> "BatchResult":
        """Both together."""
        return BatchResult(
            waiting=self.waiting + other.waiting,
            held=self.held + other.held,
            failed=self.failed + other.failed,
            left=self.left + other.left,
            outcomes=Counter(self.outcomes) + Counter(other.outcomes),
        )


#: Told the result of every batch: where metrics are counted.
Observer = Callable[[BatchResult], None]

#: What the chain says about each job that was due.
_Passages = Sequence[tuple[PreparingJob, Passage]]


def optimize(
    engine: Engine,
    config: Configuration,
    job_ids: Sequence[int],
    *,
    now: datetime,
    steps: Mapping[str, Step] | None = None,
    observe: Observer | None = None,
) -> BatchResult:
    """Lead those of the jobs that are due through the chain and write what comes of it.

    May be repeated at will. A job that breaks a step, or the storing, is held alone.

    Args:
        engine: The database.
        config: What to decide by.
        job_ids: Any ids; those that are not the optimizers' now are left alone.
        now: The time.
        steps: Optimizers by name; those that are installed if None.
        observe: Is told the result.
    """
    result = BatchResult()
    context = context_of(config, now)
    known = passages.of(context.config, plugins.installed() if steps is None else steps)
    for start in range(0, len(job_ids), MOST_AT_ONCE):
        result += _optimize_some(engine, context, job_ids[start : start + MOST_AT_ONCE], known)
    if observe:
        observe(result)
    return result


def fail(
    engine: Engine, config: Configuration, job_ids: Sequence[int], *, reason: str, now: datetime
) -> BatchResult:
    """Fail those of the jobs that are due without a look at them."""
    with database.reading(engine) as conn:
        found = preparing.read(conn, job_ids, now=now)
    failed = Failed(reason=reason)
    passages = [(job, Passage(outcome=failed, step=job.step or chain.FIRST, passed=())) for job in found]
    return _write(engine, context_of(config, now), passages)


def _optimize_some(engine: Engine, context: Context, job_ids: Sequence[int], known: Passages) -> BatchResult:
    with database.reading(engine) as conn:
        found = preparing.read(conn, job_ids, now=context.now)
    absent = tuple(sorted(set(job_ids) - {job.job_id for job in found}))
    return BatchResult(left=absent) + _write(engine, context, known.of(found, context))


def _write(engine: Engine, context: Context, passages: _Passages) -> BatchResult:
    """Write it in one transaction; if that fails, in halves, down to the one job at fault, which is held."""
    if not passages:
        return BatchResult()
    try:
        return retries.carry_out(lambda: _write_once(engine, context, passages))
    except database.UNAVAILABLE:
        raise
    except Exception as error:
        if len(passages) > 1:
            middle = len(passages) // 2
            return _write(engine, context, passages[:middle]) + _write(engine, context, passages[middle:])
        job, passage = passages[0]
        log.exception("job %d cannot be stored as %s left it, and is held", job.job_id, passage.step)
        reason = f"could not be stored, a fault of the system: {type(error).__name__}"
        held = Passage(outcome=Hold(reason=reason), step=passage.step, passed=())
        return retries.carry_out(lambda: _write_once(engine, context, [(job, held)]))


def _write_once(engine: Engine, context: Context, passages: _Passages) -> BatchResult:
    with database.writing(engine) as conn:
        return _write_all(conn, context, passages)


def _write_all(conn: Connection, context: Context, passages: _Passages) -> BatchResult:
    ours = {job.job_id for job in preparing.lock(conn, (job for job, _ in passages), now=context.now)}
    mine = [(job, passage) for job, passage in passages if job.job_id in ours]
    matchable = arrival.touch_pools(conn, (candidate for _, candidate in _candidates(mine)), context)
    places = arrival.hold_places(conn, _candidates(mine), now=context.now)
    settled = list(_settled(mine, context, matchable))
    preparing.settle(conn, settled, task_queues=places, now=context.now)
    arrival.enqueue(conn, _candidates(mine), places)
    return _counted(passages, mine)


def _settled(passages: _Passages, context: Context, matchable: frozenset[str]) -> Iterator[Settled]:
    """Each job with what became of it; jobs with one passage share a verdict."""
    known: dict[tuple[int, str], Verdict] = {}
    for job, passage in passages:
        if (verdict := known.get((id(passage), job.vo))) is None:
            known[id(passage), job.vo] = verdict = verdict_of(passage, job.vo, context, matchable)
        yield job, verdict


def _candidates(passages: _Passages) -> list[arrival.Arriving]:
    return [(job, candidate) for job, passage in passages if (candidate := passage.candidate)]


def _counted(passages: _Passages, mine: _Passages) -> BatchResult:
    written = {job.job_id for job, _ in mine}
    jobs = Counter(id(passage) for _, passage in mine)
    distinct = {id(passage): passage for _, passage in mine}
    return BatchResult(
        waiting=_ids(mine, Done),
        held=_ids(mine, Hold),
        failed=_ids(mine, Failed),
        left=tuple(job.job_id for job, _ in passages if job.job_id not in written),
        outcomes=outcomes((passage, jobs[key]) for key, passage in distinct.items()),
    )


def outcomes(counted: Iterable[tuple[Passage, int]]) -> Mapping[tuple[str, str], int]:
    """How many jobs each step let through or did not, from how many had each passage."""
    found: Counter[tuple[str, str]] = Counter()
    for passage, jobs in counted:
        found[passage.step, type(passage.outcome).__name__] += jobs
        for step in passage.passed:
            found[step, "Done"] += jobs if step != passage.step else 0
    return +found


def _ids(passages: _Passages, outcome: type) -> tuple[int, ...]:
    return tuple(job.job_id for job, passage in passages if isinstance(passage.outcome, outcome))
