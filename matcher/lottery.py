"""The order in which task queues are tried: at random, in proportion to their priority.

A heavy task queue comes first more often; a light one is never left out. Source: DIRAC TaskQueueDB.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop
from random import Random

from taskqueue.task_queues import TaskQueue

#: Weight of what has none: tried when nothing else is there.
_LEAST = 1e-9


def order(task_queues: Iterable[TaskQueue], random: Random) -> Iterator[TaskQueue]:
    """The task queues one by one; what is not asked for is not sorted."""
    draws = [(random.random() / max(each.priority, _LEAST), each.task_queue_id, each) for each in task_queues]
    heapify(draws)
    while draws:
        yield heappop(draws)[2]
