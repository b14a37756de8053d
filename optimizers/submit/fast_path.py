"""Fast path of submission: jobs with a cached chain result are stored as Waiting right away.

Results are cached in the process that ran the chain. If the optimizers run in worker processes, the service
has none, and all jobs go to the workers.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from optimizers.chain import batch, chain, enqueue, result_cache
from optimizers.chain.batch import BatchResult, status_update_from
from optimizers.chain.chain import ChainContext, ChainResult
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.submission import DescribedJob, KnownResult, KnownResults
from taskqueue.pools import pools
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueueKey

#: Cached chain result by index of the description.
KnownJobs = Mapping[int, ChainResult]


def find_known(
    described: Sequence[Description], placed: Sequence[DescribedJob], context: ChainContext
) -> KnownJobs:
    """Return the cached chain results of jobs that are about to be stored.

    Empty for more jobs than one batch: other submissions would wait too long for locked task queues.
    """
    if len(placed) > batch.MOST_AT_ONCE:
        return {}
    remembered = result_cache.result_cache_of(context.config, chain.installed_steps())
    found: dict[int, ChainResult] = {}
    for place, job in dict(placed).items():
        body = json.dumps(described[place].body)
        chain_result = remembered.result_of_new(body, job.vo, context, shared=job.parameters is not None)
        if chain_result is not None:
            found[place] = chain_result
    return found


def skip_if_locked(conn: Connection, known: KnownJobs) -> KnownJobs:
    """Return `known`, or nothing if another transaction holds one of the pools: submissions do not wait."""
    candidates = [each.candidate for each in known.values()]
    pool_ids = {each.pool.pool_id for each in candidates if each and each.pool}
    return known if pools.try_lock(conn, pool_ids) else {}


def lock_arrivals(
    conn: Connection, known: KnownJobs, placed: Sequence[DescribedJob], context: ChainContext
) -> KnownResults:
    """Return state and task queue of those jobs; their pools and task queues are locked from here on."""
    if not known:
        return {}
    candidates = {place: each for place, chain_result in known.items() if (each := chain_result.candidate)}
    matchable = enqueue.touch_pools(conn, candidates.values(), context)
    wanted: dict[int, TaskQueueKey] = {}
    for place, job in dict(placed).items():
        if place in candidates and (asked := candidates[place].requirement_class):
            wanted[place] = asked, job.owner_group, job.owner
    ids = task_queues.hold_task_queues(conn, set(wanted.values()), now=context.now)
    return {
        place: KnownResult(
            verdict=status_update_from(known[place], candidates[place].vo, context, matchable),
            task_queue_id=ids[where],
        )
        for place, where in wanted.items()
    }


def build_result(known: KnownJobs, placed: Sequence[DescribedJob], job_ids: Sequence[int]) -> BatchResult:
    """Return the same result as if the optimizers had processed the jobs."""
    jobs = Counter(place for place, _ in placed)
    return BatchResult(
        waiting=tuple(job_id for job_id, (place, _) in zip(job_ids, placed, strict=True) if place in known),
        outcomes=batch.count_outcomes((chain_result, jobs[place]) for place, chain_result in known.items()),
    )
