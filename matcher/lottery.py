"""The order in which task queues are tried: at random, in proportion to their priority.

A heavy task queue comes first more often; a light one is never left out. Of a family, whose members each
weigh as much as all of them (`taskqueue.shares`), those that are drawn from have that weight together.

Source: DIRAC TaskQueueDB; it draws `random / priority`, by which a share of 1 beside one of 1000 comes
first half as often as it should. What an exponential clock rings at first is in proportion.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop
from math import log
from random import Random

from taskqueue.task_queues import TaskQueue

#: Weight of what has none: tried when nothing else is there.
_LEAST = 1e-9


def order(task_queues: Sequence[TaskQueue], random: Random) -> Iterator[TaskQueue]:
    """The task queues one by one; what is not asked for is not sorted."""
    members = Counter(each.family for each in task_queues)
    draws = [
        (
            -log(1.0 - random.random()) * members[each.family] / max(each.priority, _LEAST),
            each.task_queue_id,
            each,
        )
        for each in task_queues
    ]
    heapify(draws)
    while draws:
        yield heappop(draws)[2]
