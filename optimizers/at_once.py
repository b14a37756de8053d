"""Jobs that ask what others asked before: they wait as soon as they are stored.

What the chain says of them is remembered where it ran, in this process. In a service whose optimizers run in
workers nothing is, and all jobs go to them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from optimizers import arrival, batch, passages, plugins
from optimizers.batch import BatchResult
from optimizers.chain import Passage
from optimizers.context import Context
from optimizers.verdict import verdict_of
from taskqueue import pools, task_queues
from taskqueue.descriptions import NewDescription
from taskqueue.new_jobs import Arrival, Arrivals, Placed
from taskqueue.queue_places import Place

#: What the chain will say, by the place of the description of the jobs.
Known = Mapping[int, Passage]


def known(described: Sequence[NewDescription], placed: Sequence[Placed], context: Context) -> Known:
    """What is known of jobs that are to be stored.

    Of more than a batch nothing is: others would have to wait too long for the same task queues.
    """
    if len(placed) > batch.MOST_AT_ONCE:
        return {}
    remembered = passages.of(context.config, plugins.installed())
    found: dict[int, Passage] = {}
    for place, job in dict(placed).items():
        body = json.dumps(described[place].body)
        passage = remembered.of_new(body, job.vo, context, shared=job.parameters is not None)
        if passage is not None:
            found[place] = passage
    return found


def unless_held(conn: Connection, known: Known) -> Known:
    """The same, if nobody else holds one of their pools at this moment: no submission waits for another."""
    candidates = [each.candidate for each in known.values()]
    pool_ids = {each.pool.pool_id for each in candidates if each and each.pool}
    return known if pools.are_free(conn, pool_ids) else {}


def arrivals(conn: Connection, known: Known, placed: Sequence[Placed], context: Context) -> Arrivals:
    """Where and how those jobs wait; their pools and task queues are locked from here on."""
    if not known:
        return {}
    candidates = {place: each for place, passage in known.items() if (each := passage.candidate)}
    matchable = arrival.touch_pools(conn, candidates.values(), context)
    wanted: dict[int, Place] = {}
    for place, job in dict(placed).items():
        if place in candidates and (asked := candidates[place].requirement_class):
            wanted[place] = asked, job.owner_group, job.owner
    ids = task_queues.hold(conn, set(wanted.values()), now=context.now)
    return {
        place: Arrival(
            verdict=verdict_of(known[place], candidates[place].vo, context, matchable),
            task_queue_id=ids[where],
        )
        for place, where in wanted.items()
    }


def result(known: Known, placed: Sequence[Placed], job_ids: Sequence[int]) -> BatchResult:
    """What became of them, as if the optimizers had looked at each."""
    jobs = Counter(place for place, _ in placed)
    return BatchResult(
        waiting=tuple(job_id for job_id, (place, _) in zip(job_ids, placed, strict=True) if place in known),
        outcomes=batch.outcomes((passage, jobs[place]) for place, passage in known.items()),
    )
