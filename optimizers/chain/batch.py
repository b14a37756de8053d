"""Run the optimizer chain for batches of jobs and store the results, up to a thousand jobs per transaction.

The chain runs before the transaction, which then updates only jobs that have not changed since they were
read. So it is harmless if two workers process the same jobs, or if a killed one is repeated.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine

from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from optimizers.chain import chain, decisions, enqueue
from optimizers.chain.chain import (
    ChainContext,
    ChainResult,
    Done,
    Failed,
    Hold,
    Step,
    make_context,
)
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import optimizer_queue
from taskqueue.jobs.optimizer_queue import DecidedState, PreparingJob, StatusUpdate
from taskqueue.jobs.submission import NewJob
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.sites import closures
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueueKey

#: Time in which a process reads a new version of the configuration.
_UNTIL_REFRESHED: Final = timedelta(seconds=5)
#: Upper limit of a hold: a step may be a plug-in and return any delay.
_LONGEST: Final = timedelta(seconds=bounds.SECONDS)


def status_update_from(
    chain_result: ChainResult, vo: str, context: ChainContext, matchable: frozenset[str]
) -> StatusUpdate:
    """Convert a chain result to a job's state, in DIRAC's terms; `matchable` pools have an eligible queue."""
    outcome, step = chain_result.outcome, chain_result.step
    if isinstance(outcome, Failed):
        return StatusUpdate(
            status=JobStatus.FAILED,
            minor_status=f"{step} optimizer",
            application_status=outcome.reason,
            source=step,
        )
    if isinstance(outcome, Hold):
        delay = outcome.delay or timedelta(seconds=context.operations(vo).job_scheduling.hold_time)
        return StatusUpdate(
            status=JobStatus.CHECKING,
            minor_status=step,
            application_status=outcome.reason,
            source=step,
            step=step,
            due_at=context.now + min(delay, _LONGEST),
        )
    candidate = outcome.candidate
    pool = candidate.pool.pool_id if candidate.pool else None
    stuck = pool is not None and pool not in matchable
    return StatusUpdate(
        status=JobStatus.WAITING,
        minor_status=NO_ELIGIBLE_QUEUE if stuck else candidate.minor_status,
        note=f"passed {', '.join(chain_result.passed)}",
        source=step,
        submit_pool=pool,
        site=candidate.site,
        priority=candidate.description.priority,
        job_type=candidate.description.job_type,
    )


def decide_states(
    conn: Connection,
    chain_results: Sequence[tuple[NewJob | PreparingJob, ChainResult]],
    context: ChainContext,
    matchable: frozenset[str],
) -> list[DecidedState]:
    """The state of each job by its result; the task queues of those that become Waiting are locked.

    Jobs with the same result share its update.
    """
    updates: dict[tuple[int, str], StatusUpdate] = {}
    keys: dict[int, TaskQueueKey] = {}  # by place of the job
    for place, (job, chain_result) in enumerate(chain_results):
        if (id(chain_result), job.vo) not in updates:
            update = status_update_from(chain_result, job.vo, context, matchable)
            updates[id(chain_result), job.vo] = update
        if (candidate := chain_result.candidate) and candidate.requirement_class:
            keys[place] = candidate.requirement_class, job.owner_group, job.owner
    held = task_queues.hold_task_queues(conn, list(keys.values()), now=context.now)
    ids = dict(zip(keys, held, strict=True))
    return [
        DecidedState(update=updates[id(chain_result), job.vo], task_queue_id=ids.get(place))
        for place, (job, chain_result) in enumerate(chain_results)
    ]


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


def read_context(engine: Engine, config: Configuration, now: datetime) -> ChainContext:
    """The context of a batch, with the bans of sites where a VO fails jobs for them."""
    options = (config.default_operations, *config.vo_operations.values())
    if all(each.job_scheduling.allow_invalid_sites for each in options):
        return make_context(config, now)
    with database.reading(engine) as conn:
        return make_context(config, now, closures.list_closed(conn, now=now))


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
    others. Without `steps` the installed ones are run.
    """
    result = BatchResult()
    context = read_context(engine, config, now)
    steps = chain.installed_steps() if steps is None else steps
    for start in range(0, len(job_ids), MOST_AT_ONCE):
        result += _optimize_some(engine, context, job_ids[start : start + MOST_AT_ONCE], steps)
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
    return _write(engine, make_context(config, now), chain_results, is_final=True)


def _optimize_some(
    engine: Engine, context: ChainContext, job_ids: Sequence[int], steps: Mapping[str, Step]
) -> BatchResult:
    with database.reading(engine) as conn:
        found = optimizer_queue.read_due(conn, job_ids, now=context.now)
    absent = tuple(sorted(set(job_ids) - {job.job_id for job in found}))
    chain_results = decisions.decide_stored(found, steps, context)
    return BatchResult(left=absent) + _write(engine, context, chain_results)


def _write(
    engine: Engine, context: ChainContext, chain_results: _Results, *, is_final: bool = False
) -> BatchResult:
    """Store results in one transaction; if it fails, in halves, down to the job at fault, which is held.

    `is_final`: failures hold under any configuration.
    """
    if not chain_results:
        return BatchResult()
    try:
        return database.run_with_retry(lambda: _write_once(engine, context, chain_results, is_final=is_final))
    except database.UNAVAILABLE:
        raise
    except Exception as error:
        if len(chain_results) > 1:
            middle = len(chain_results) // 2
            halves = chain_results[:middle], chain_results[middle:]
            return sum((_write(engine, context, each, is_final=is_final) for each in halves), BatchResult())
        job, chain_result = chain_results[0]
        log.exception(
            "job %d: the result of %s cannot be stored, the job is held", job.job_id, chain_result.step
        )
        reason = f"internal error, the result could not be stored: {type(error).__name__}"
        held = ChainResult(outcome=Hold(reason=reason), step=chain_result.step, passed=())
        return database.run_with_retry(lambda: _write_once(engine, context, [(job, held)], is_final=is_final))


def _write_once(
    engine: Engine, context: ChainContext, chain_results: _Results, *, is_final: bool
) -> BatchResult:
    for done in (chain_result.candidate for _, chain_result in chain_results):
        if done and done.pool:  # cached from here on, so that the transaction is short
            context.find_queue_classes(done.pool, done.vo)
    with database.writing(engine) as conn:
        due = optimizer_queue.lock_due(conn, (job for job, _ in chain_results), now=context.now)
        ours = {job.job_id for job in due}
        mine = [(job, chain_result) for job, chain_result in chain_results if job.job_id in ours]
        failed = any(isinstance(chain_result.outcome, Failed) for _, chain_result in mine)
        if failed and not is_final and is_outdated(conn, context):
            mine = [(job, _hold_instead(chain_result)) for job, chain_result in mine]
        candidates = [done for _, chain_result in mine if (done := chain_result.candidate)]
        if excess := enqueue.find_excess(conn, candidates, context):
            mine = [(job, _hold_for_pool(chain_result, excess, context)) for job, chain_result in mine]
        arriving = [done for _, chain_result in mine if (done := chain_result.candidate)]
        matchable = enqueue.touch_pools(conn, arriving, context)
        states = decide_states(conn, mine, context, matchable)
        settled = [(job, state) for (job, _), state in zip(mine, states, strict=True)]
        optimizer_queue.store_updates(conn, settled, now=context.now)
    return _summarize(chain_results, mine)


def is_outdated(conn: Connection, context: ChainContext) -> bool:
    """Whether the configuration has changed since: it may no longer fail a job, which is for good."""
    return store.current_version(conn) > context.config.version


def _hold_instead(chain_result: ChainResult) -> ChainResult:
    if not isinstance(chain_result.outcome, Failed):
        return chain_result
    reason = f"the configuration has changed meanwhile; before: {chain_result.outcome.reason}"
    return replace(chain_result, outcome=Hold(reason=reason, delay=_UNTIL_REFRESHED))


def _hold_for_pool(chain_result: ChainResult, excess: frozenset[str], context: ChainContext) -> ChainResult:
    candidate = chain_result.candidate
    if candidate is None or candidate.pool is None or candidate.pool.pool_id not in excess:
        return chain_result
    most = context.operations(candidate.vo).limits.pools
    reason = f"waits for another SubmitPool of the VO to go: it has {most:,}, as many as Limits/Pools allows"
    return replace(chain_result, outcome=Hold(reason=reason))


def _summarize(chain_results: _Results, mine: _Results) -> BatchResult:
    written = {job.job_id for job, _ in mine}
    return BatchResult(
        waiting=_ids(mine, Done),
        held=_ids(mine, Hold),
        failed=_ids(mine, Failed),
        left=tuple(job.job_id for job, _ in chain_results if job.job_id not in written),
        outcomes=count_outcomes(chain_result for _, chain_result in mine),
    )


def count_outcomes(chain_results: Iterable[ChainResult]) -> Mapping[tuple[str, str], int]:
    """Count the outcomes of each step, given the result of each job."""
    found: Counter[tuple[str, str]] = Counter()
    for chain_result in chain_results:
        found[chain_result.step, type(chain_result.outcome).__name__] += 1
        found.update((step, "Done") for step in chain_result.passed if step != chain_result.step)
    return found


def _ids(chain_results: _Results, outcome: type) -> tuple[int, ...]:
    return tuple(
        job.job_id for job, chain_result in chain_results if isinstance(chain_result.outcome, outcome)
    )
