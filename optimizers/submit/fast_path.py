"""Jobs that ask what others asked before: they wait as soon as they are stored.

What the chain says of them is remembered where it ran, in this process. In a service whose optimizers run in
workers nothing is, and all jobs go to them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from optimizers.chain import batch, chain, enqueue, result_cache
from optimizers.chain.batch import BatchResult, status_update_from
from optimizers.chain.chain import ChainContext, ChainResult
from taskqueue.jobs.descriptions import NewDescription
from taskqueue.jobs.submission import DescribedJob, KnownResult, KnownResults
from taskqueue.pools import pools
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueueKey

#: What the chain will say, by the place of the description of the jobs.
KnownJobs = Mapping[int, ChainResult]


def find_known(
    described: Sequence[NewDescription], placed: Sequence[DescribedJob], context: ChainContext
) -> KnownJobs:
    """What is known of jobs that are to be stored.

    Of more than a batch nothing is: others would have to wait too long for the same task queues.
    """
    if len(placed) > batch.MOST_AT_ONCE:
        return {}
    remembered = result_cache.result_cache_of(context.config, chain.installed_steps())
    found: dict[int, ChainResult] = {}
    for place, job in dict(placed).items():
        body = json.dumps(described[place].body)
        passage = remembered.result_of_new(body, job.vo, context, shared=job.parameters is not None)
        if passage is not None:
            found[place] = passage
    return found


def skip_if_locked(conn: Connection, known: KnownJobs) -> KnownJobs:
    """The same, if nobody else holds one of their pools at this moment: no submission waits for another."""
    candidates = [each.candidate for each in known.values()]
    pool_ids = {each.pool.pool_id for each in candidates if each and each.pool}
    return known if pools.try_lock(conn, pool_ids) else {}


def lock_arrivals(
    conn: Connection, known: KnownJobs, placed: Sequence[DescribedJob], context: ChainContext
) -> KnownResults:
    """Where and how those jobs wait; their pools and task queues are locked from here on."""
    if not known:
        return {}
    candidates = {place: each for place, passage in known.items() if (each := passage.candidate)}
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
    """What became of them, as if the optimizers had looked at each."""
    jobs = Counter(place for place, _ in placed)
    return BatchResult(
        waiting=tuple(job_id for job_id, (place, _) in zip(job_ids, placed, strict=True) if place in known),
        outcomes=batch.count_outcomes((passage, jobs[place]) for place, passage in known.items()),
    )
