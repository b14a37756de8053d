"""What one resource may serve: drawn one by one, since most requests need no more than the first."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from random import Random
from threading import Lock
from typing import overload

from matcher import lottery
from matcher.resource import Resource
from matcher.waiting import Waiting
from taskqueue.task_queues import TaskQueue

#: Draws before the rest is put in order.
_FEW = 4
#: By how much one piece is larger than the one before it.
_GROWS = 16


class Candidates(Sequence[TaskQueue]):
    """The task queues that fit, as they are when they are looked at."""

    def __init__(
        self, waiting: Waiting, resource: Resource, pools: frozenset[str], *, lock: Lock, random: Random
    ) -> None:
        self._waiting = waiting
        self._asked = (resource, pools)
        self._lock = lock
        self._random = random

    def __bool__(self) -> bool:
        return self._first is not None

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> TaskQueue: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TaskQueue]: ...

    def __getitem__(self, index: int | slice) -> TaskQueue | Sequence[TaskQueue]:
        return self._all[index]

    def __iter__(self) -> Iterator[TaskQueue]:
        return iter(self._all)

    def in_order(self) -> Iterator[TaskQueue]:
        """In the order in which one request tries them; what is not asked for is not drawn."""
        drawn: dict[int, TaskQueue] = {}
        for number in range(_FEW):
            each = self._draw() if number else self._first
            if each is not None and each.task_queue_id not in drawn:
                drawn[each.task_queue_id] = each
                yield each
        others = [each for each in self._all if each.task_queue_id not in drawn]
        yield from lottery.order(others, self._random)

    def by_and_by(self) -> Iterator[TaskQueue]:
        """All of them, looked up one after the other; what comes or goes meanwhile may be missed."""
        with self._lock:
            mask = self._waiting.mask(*self._asked)
        return self._waiting.in_classes(mask, self._asked[0])

    @cached_property
    def _first(self) -> TaskQueue | None:
        return self._draw()

    @cached_property
    def _all(self) -> Sequence[TaskQueue]:
        with self._lock:
            return self._waiting.candidates(*self._asked)

    def _draw(self) -> TaskQueue | None:
        with self._lock:
            return self._waiting.draw(*self._asked, self._random)


def in_order(task_queues: Sequence[TaskQueue], random: Random) -> Iterator[TaskQueue]:
    """The order in which one request tries them."""
    return (
        task_queues.in_order() if isinstance(task_queues, Candidates) else lottery.order(task_queues, random)
    )


def by_and_by(task_queues: Sequence[TaskQueue]) -> Iterator[TaskQueue]:
    """All of them, for one who has time."""
    return task_queues.by_and_by() if isinstance(task_queues, Candidates) else iter(task_queues)


def pieces(task_queues: Iterable[TaskQueue]) -> Iterator[list[TaskQueue]]:
    """All of them, a few first and then more at a time, for one who mostly needs no more than those."""
    left, size = iter(task_queues), _FEW
    while some := list(islice(left, size)):
        yield some
        size *= _GROWS
