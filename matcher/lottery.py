"""The order in which task queues are tried: at random, in proportion to their priority.

A heavy task queue comes first more often; a light one is never left out. Of a family, whose members each
weigh as much as all of them (`taskqueue.shares`), those that are drawn from have that weight together:
an owner who splits work wins no more often than one who does not.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from random import Random

from taskqueue.task_queues import TaskQueue

#: Weight of what has none: tried when nothing else is there.
LEAST = 1e-9
#: Draws before the rest is put in order; most requests are served by the first.
_FEW = 4


class Draw:
    """Task queues in the order in which one request tries them, and how far it has come."""

    def __init__(self, order: Iterator[TaskQueue]) -> None:
        self._order = order
        self.tried: list[TaskQueue] = []

    def next(self, fits: Callable[[TaskQueue], bool] = lambda _: True) -> TaskQueue | None:
        """The next that fits, as tried; None: there is none any more."""
        found = next(filter(fits, self._order), None)
        if found is not None:
            self.tried.append(found)
        return found

    def rest(self) -> Iterator[TaskQueue]:
        """Those that were not tried, once."""
        return self._order

    def start_over(self) -> None:
        """What was tried was not really: it comes again."""
        self._order = chain(self.tried, self._order)
        self.tried = []


class Weighed:
    """Task queues that one is drawn of again and again."""

    def __init__(self, task_queues: Sequence[TaskQueue]) -> None:
        self.task_queues = task_queues

    def draw(self, random: Random) -> TaskQueue | None:
        """The one that comes first; None: there are none."""
        if not self.task_queues:
            return None
        return random.choices(self.task_queues, cum_weights=self._cumulative)[0]

    @cached_property
    def _cumulative(self) -> list[float]:
        return list(accumulate(_weights(self.task_queues)))


def order(task_queues: Sequence[TaskQueue], random: Random) -> Iterator[TaskQueue]:
    """The task queues one by one; what is not asked for is not sorted."""
    if not task_queues:
        return
    weights = _weights(task_queues)
    drawn: set[int] = set()
    for each in random.choices(task_queues, cum_weights=list(accumulate(weights)), k=_FEW):
        if each.task_queue_id not in drawn:
            drawn.add(each.task_queue_id)
            yield each
    # The first of exponential waiting times with these rates is drawn in the same proportion.
    rest = [
        (random.expovariate(weight), each.task_queue_id, each)
        for weight, each in zip(weights, task_queues, strict=True)
        if each.task_queue_id not in drawn
    ]
    yield from (each for _, _, each in sorted(rest))


def _weights(task_queues: Sequence[TaskQueue]) -> list[float]:
    members = Counter([each.family for each in task_queues])
    return [max(each.priority / members[each.family], LEAST) for each in task_queues]
