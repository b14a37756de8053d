"""How the outcome of a chain stands in the job's row and log.

Hundreds of jobs through the chain in one transaction.

The chain runs before the transaction, which then writes only for jobs that are still as they were
read: two workers with the same jobs, or one that is killed and does it all again, make no difference.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine

from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from optimizers.chain import chain, enqueue, result_cache
from optimizers.chain.chain import (
    NO_ELIGIBLE_QUEUE,
    ChainContext,
    ChainResult,
    Done,
    Failed,
    Hold,
    Step,
    make_context,
)
from optimizers.chain.result_cache import ResultCache
from taskqueue.db import database, retry
from taskqueue.jobs import optimizer_queue
from taskqueue.jobs.optimizer_queue import PreparingJob, SettledJob, StatusUpdate
from taskqueue.states import JobStatus

#: A step may be a plug-in, and hold a job for any time.
_LONGEST: Final = timedelta(seconds=bounds.SECONDS)


def status_update_from(
    passage: ChainResult, vo: str, context: ChainContext, matchable: frozenset[str]
) -> StatusUpdate:
    """The state that an outcome means, in the words of DIRAC.

    Args:
        passage: What the chain said.
        vo: Of the job, or of all that ask the same.
        context: Options and time.
        matchable: Those of the batch's pools that have an eligible queue.
    """
    outcome = passage.outcome
    if isinstance(outcome, Done):
        return _waiting(passage, outcome, matchable)
    if isinstance(outcome, Hold):
        delay = outcome.delay or timedelta(seconds=context.operations(vo).job_scheduling.hold_time)
        return StatusUpdate(
            status=JobStatus.CHECKING,
            minor_status=passage.step,
            application_status=outcome.reason,
            source=passage.step,
            step=passage.step,
            due_at=context.now + min(delay, _LONGEST),
        )
    return _failed(passage, outcome)


def _waiting(passage: ChainResult, outcome: Done, matchable: frozenset[str]) -> StatusUpdate:
    candidate = outcome.candidate
    pool = candidate.pool.pool_id if candidate.pool else None
    stuck = pool is not None and pool not in matchable
    return StatusUpdate(
        status=JobStatus.WAITING,
        minor_status=NO_ELIGIBLE_QUEUE if stuck else candidate.minor_status,
        note=f"passed {', '.join(passage.passed)}",
        source=passage.step,
        submit_pool=pool,
        site=candidate.site,
    )


def _failed(passage: ChainResult, outcome: Failed) -> StatusUpdate:
    return StatusUpdate(
        status=JobStatus.FAILED,
        minor_status=f"{passage.step} optimizer",
        application_status=outcome.reason,
        source=passage.step,
    )


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
_Results = Sequence[tuple[PreparingJob, ChainResult]]


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
    context = make_context(config, now)
    known = result_cache.result_cache_of(context.config, chain.installed_steps() if steps is None else steps)
    for start in range(0, len(job_ids), MOST_AT_ONCE):
        result += _optimize_some(engine, context, job_ids[start : start + MOST_AT_ONCE], known)
    if observe:
        observe(result)
    return result


def fail_jobs(
    engine: Engine, config: Configuration, job_ids: Sequence[int], *, reason: str, now: datetime
) -> BatchResult:
    """Fail those of the jobs that are due without a look at them."""
    with database.reading(engine) as conn:
        found = optimizer_queue.read_due(conn, job_ids, now=now)
    failed = Failed(reason=reason)
    passages = [(job, ChainResult(outcome=failed, step=job.step or chain.FIRST, passed=())) for job in found]
    return _write(engine, make_context(config, now), passages)


def _optimize_some(
    engine: Engine, context: ChainContext, job_ids: Sequence[int], known: ResultCache
) -> BatchResult:
    with database.reading(engine) as conn:
        found = optimizer_queue.read_due(conn, job_ids, now=context.now)
    absent = tuple(sorted(set(job_ids) - {job.job_id for job in found}))
    return BatchResult(left=absent) + _write(engine, context, known.result_of(found, context))


def _write(engine: Engine, context: ChainContext, passages: _Results) -> BatchResult:
    """Write it in one transaction; if that fails, in halves, down to the one job at fault, which is held."""
    if not passages:
        return BatchResult()
    try:
        return retry.run_with_retry(lambda: _write_once(engine, context, passages))
    except database.UNAVAILABLE:
        raise
    except Exception as error:
        if len(passages) > 1:
            middle = len(passages) // 2
            return _write(engine, context, passages[:middle]) + _write(engine, context, passages[middle:])
        job, passage = passages[0]
        log.exception("job %d cannot be stored as %s left it, and is held", job.job_id, passage.step)
        reason = f"could not be stored, a fault of the system: {type(error).__name__}"
        held = ChainResult(outcome=Hold(reason=reason), step=passage.step, passed=())
        return retry.run_with_retry(lambda: _write_once(engine, context, [(job, held)]))


def _write_once(engine: Engine, context: ChainContext, passages: _Results) -> BatchResult:
    with database.writing(engine) as conn:
        return _write_all(conn, context, passages)


def _write_all(conn: Connection, context: ChainContext, passages: _Results) -> BatchResult:
    ours = {
        job.job_id for job in optimizer_queue.lock_due(conn, (job for job, _ in passages), now=context.now)
    }
    mine = [(job, passage) for job, passage in passages if job.job_id in ours]
    matchable = enqueue.touch_pools(conn, (candidate for _, candidate in _candidates(mine)), context)
    places = enqueue.lock_task_queues(conn, _candidates(mine), now=context.now)
    settled = list(_status_updates(mine, context, matchable))
    optimizer_queue.store_updates(conn, settled, task_queues=places, now=context.now)
    enqueue.enqueue(conn, _candidates(mine), places)
    return _count_new_jobs(passages, mine)


def _status_updates(
    passages: _Results, context: ChainContext, matchable: frozenset[str]
) -> Iterator[SettledJob]:
    """Each job with what became of it; jobs with one passage share a verdict."""
    known: dict[tuple[int, str], StatusUpdate] = {}
    for job, passage in passages:
        if (verdict := known.get((id(passage), job.vo))) is None:
            known[id(passage), job.vo] = verdict = status_update_from(passage, job.vo, context, matchable)
        yield job, verdict


def _candidates(passages: _Results) -> list[enqueue.ArrivingJobs]:
    return [(job, candidate) for job, passage in passages if (candidate := passage.candidate)]


def _count_new_jobs(passages: _Results, mine: _Results) -> BatchResult:
    written = {job.job_id for job, _ in mine}
    jobs = Counter(id(passage) for _, passage in mine)
    distinct = {id(passage): passage for _, passage in mine}
    return BatchResult(
        waiting=_ids(mine, Done),
        held=_ids(mine, Hold),
        failed=_ids(mine, Failed),
        left=tuple(job.job_id for job, _ in passages if job.job_id not in written),
        outcomes=count_outcomes((passage, jobs[key]) for key, passage in distinct.items()),
    )


def count_outcomes(counted: Iterable[tuple[ChainResult, int]]) -> Mapping[tuple[str, str], int]:
    """How many jobs each step let through or did not, from how many had each passage."""
    found: Counter[tuple[str, str]] = Counter()
    for passage, jobs in counted:
        found[passage.step, type(passage.outcome).__name__] += jobs
        for step in passage.passed:
            found[step, "Done"] += jobs if step != passage.step else 0
    return +found


def _ids(passages: _Results, outcome: type) -> tuple[int, ...]:
    return tuple(job.job_id for job, passage in passages if isinstance(passage.outcome, outcome))
