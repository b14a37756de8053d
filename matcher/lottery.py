"""The order in which task queues are tried: at random, in proportion to their priority.

A heavy task queue comes first more often; a light one is never left out.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random

from taskqueue.task_queues import TaskQueue

#: Weight of what has none: tried when nothing else is there.
_LEAST = 1e-9
#: Draws before the rest is put in order; most requests are served by the first.
_FEW = 4


def order(task_queues: Sequence[TaskQueue], random: Random) -> Iterator[TaskQueue]:
    """The task queues one by one; what is not asked for is not sorted."""
    if not task_queues:
        return
    weights = list(accumulate(max(each.priority, _LEAST) for each in task_queues))
    drawn: set[int] = set()
    for each in random.choices(task_queues, cum_weights=weights, k=_FEW):
        if each.task_queue_id not in drawn:
            drawn.add(each.task_queue_id)
            yield each
    # The first of exponential waiting times with these rates is drawn in the same proportion.
    rest = [
        (random.expovariate(max(each.priority, _LEAST)), each.task_queue_id, each)
        for each in task_queues
        if each.task_queue_id not in drawn
    ]
    yield from (each for _, _, each in sorted(rest))
