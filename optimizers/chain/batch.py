"""Run the optimizer chain for batches of jobs and store the results, up to a thousand jobs per transaction.

The chain runs before the transaction, which then updates only jobs that have not changed since they were
read. So it is harmless if two workers process the same jobs, or if a killed one is repeated.
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
from taskqueue.db import database
from taskqueue.jobs import optimizer_queue
from taskqueue.jobs.optimizer_queue import PreparingJob, SettledJob, StatusUpdate
from taskqueue.states import JobStatus

#: Upper limit of a hold: a step may be a plug-in and return any delay.
_LONGEST: Final = timedelta(seconds=bounds.SECONDS)


def status_update_from(
    chain_result: ChainResult, vo: str, context: ChainContext, matchable: frozenset[str]
) -> StatusUpdate:
    """Convert a chain result to the job's state, in DIRAC's terms.

    Args:
        chain_result: Result of the chain.
        vo: VO of the job, or of all jobs that share the result.
        context: Options and time.
        matchable: Pools of the batch that have an eligible queue.
    """
    outcome = chain_result.outcome
    if isinstance(outcome, Done):
        return _waiting(chain_result, outcome, matchable)
    if isinstance(outcome, Hold):
        delay = outcome.delay or timedelta(seconds=context.operations(vo).job_scheduling.hold_time)
        return StatusUpdate(
            status=JobStatus.CHECKING,
            minor_status=chain_result.step,
            application_status=outcome.reason,
            source=chain_result.step,
            step=chain_result.step,
            due_at=context.now + min(delay, _LONGEST),
        )
    return _failed(chain_result, outcome)


def _waiting(chain_result: ChainResult, outcome: Done, matchable: frozenset[str]) -> StatusUpdate:
    candidate = outcome.candidate
    pool = candidate.pool.pool_id if candidate.pool else None
    stuck = pool is not None and pool not in matchable
    return StatusUpdate(
        status=JobStatus.WAITING,
        minor_status=NO_ELIGIBLE_QUEUE if stuck else candidate.minor_status,
        note=f"passed {', '.join(chain_result.passed)}",
        source=chain_result.step,
        submit_pool=pool,
        site=candidate.site,
    )


def _failed(chain_result: ChainResult, outcome: Failed) -> StatusUpdate:
    return StatusUpdate(
        status=JobStatus.FAILED,
        minor_status=f"{chain_result.step} optimizer",
        application_status=outcome.reason,
        source=chain_result.step,
    )


log = logging.getLogger(__name__)

#: Jobs per transaction: enough to make its cost negligible, few enough to keep its locks short.
MOST_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Ids of the jobs of a batch, by result."""

    waiting: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    left: tuple[int, ...] = ()  #: not due, or being processed by another worker
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)  #: (step, `Done`…) to jobs

    def __add__(self, other: "BatchResult") -> "BatchResult":
        return BatchResult(
            waiting=self.waiting + other.waiting,
            held=self.held + other.held,
            failed=self.failed + other.failed,
            left=self.left + other.left,
            outcomes=Counter(self.outcomes) + Counter(other.outcomes),
        )


#: Receives the result of every batch, for the metrics.
Observer = Callable[[BatchResult], None]

#: The chain's result for each due job.
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
    """Run the chain for those of the jobs that are due, and store the results.

    May be repeated. A job on which a step fails, or which cannot be stored, is held without affecting the
    others.

    Args:
        engine: The database.
        config: The configuration to apply.
        job_ids: Any ids; jobs that are not due are skipped.
        now: Time of the decision.
        steps: Optimizers by name; None: the installed ones.
        observe: Receives the result.
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
    """Fail those of the jobs that are due, without running the chain."""
    with database.reading(engine) as conn:
        found = optimizer_queue.read_due(conn, job_ids, now=now)
    failed = Failed(reason=reason)
    chain_results = [
        (job, ChainResult(outcome=failed, step=job.step or chain.FIRST, passed=())) for job in found
    ]
    return _write(engine, make_context(config, now), chain_results)


def _optimize_some(
    engine: Engine, context: ChainContext, job_ids: Sequence[int], known: ResultCache
) -> BatchResult:
    with database.reading(engine) as conn:
        found = optimizer_queue.read_due(conn, job_ids, now=context.now)
    absent = tuple(sorted(set(job_ids) - {job.job_id for job in found}))
    return BatchResult(left=absent) + _write(engine, context, known.result_of(found, context))


def _write(engine: Engine, context: ChainContext, chain_results: _Results) -> BatchResult:
    """Store results in one transaction; if it fails, in halves, down to the job at fault, which is held."""
    if not chain_results:
        return BatchResult()
    try:
        return database.run_with_retry(lambda: _write_once(engine, context, chain_results))
    except database.UNAVAILABLE:
        raise
    except Exception as error:
        if len(chain_results) > 1:
            middle = len(chain_results) // 2
            return _write(engine, context, chain_results[:middle]) + _write(
                engine, context, chain_results[middle:]
            )
        job, chain_result = chain_results[0]
        log.exception(
            "job %d: the result of %s cannot be stored, the job is held", job.job_id, chain_result.step
        )
        reason = f"internal error, the result could not be stored: {type(error).__name__}"
        held = ChainResult(outcome=Hold(reason=reason), step=chain_result.step, passed=())
        return database.run_with_retry(lambda: _write_once(engine, context, [(job, held)]))


def _write_once(engine: Engine, context: ChainContext, chain_results: _Results) -> BatchResult:
    with database.writing(engine) as conn:
        return _write_all(conn, context, chain_results)


def _write_all(conn: Connection, context: ChainContext, chain_results: _Results) -> BatchResult:
    ours = {
        job.job_id
        for job in optimizer_queue.lock_due(conn, (job for job, _ in chain_results), now=context.now)
    }
    mine = [(job, chain_result) for job, chain_result in chain_results if job.job_id in ours]
    matchable = enqueue.touch_pools(conn, (candidate for _, candidate in _candidates(mine)), context)
    places = enqueue.lock_task_queues(conn, _candidates(mine), now=context.now)
    settled = list(_status_updates(mine, context, matchable))
    optimizer_queue.store_updates(conn, settled, task_queues=places, now=context.now)
    enqueue.enqueue(conn, _candidates(mine), places)
    return _count_new_jobs(chain_results, mine)


def _status_updates(
    chain_results: _Results, context: ChainContext, matchable: frozenset[str]
) -> Iterator[SettledJob]:
    """Yield each job with its update; jobs with the same result share one."""
    known: dict[tuple[int, str], StatusUpdate] = {}
    for job, chain_result in chain_results:
        if (update := known.get((id(chain_result), job.vo))) is None:
            known[id(chain_result), job.vo] = update = status_update_from(
                chain_result, job.vo, context, matchable
            )
        yield job, update


def _candidates(chain_results: _Results) -> list[enqueue.ArrivingJobs]:
    return [(job, candidate) for job, chain_result in chain_results if (candidate := chain_result.candidate)]


def _count_new_jobs(chain_results: _Results, mine: _Results) -> BatchResult:
    written = {job.job_id for job, _ in mine}
    jobs = Counter(id(chain_result) for _, chain_result in mine)
    distinct = {id(chain_result): chain_result for _, chain_result in mine}
    return BatchResult(
        waiting=_ids(mine, Done),
        held=_ids(mine, Hold),
        failed=_ids(mine, Failed),
        left=tuple(job.job_id for job, _ in chain_results if job.job_id not in written),
        outcomes=count_outcomes((chain_result, jobs[key]) for key, chain_result in distinct.items()),
    )


def count_outcomes(counted: Iterable[tuple[ChainResult, int]]) -> Mapping[tuple[str, str], int]:
    """Count the outcomes of each step, given the number of jobs per chain result."""
    found: Counter[tuple[str, str]] = Counter()
    for chain_result, jobs in counted:
        found[chain_result.step, type(chain_result.outcome).__name__] += jobs
        for step in chain_result.passed:
            found[step, "Done"] += jobs if step != chain_result.step else 0
    return +found


def _ids(chain_results: _Results, outcome: type) -> tuple[int, ...]:
    return tuple(
        job.job_id for job, chain_result in chain_results if isinstance(chain_result.outcome, outcome)
    )
