"""Of the task queues of one owner that a slot may serve, those first for which fewer slots come.

The owner whose turn it is was drawn before, so that nobody's chance changes: an owner's own jobs change
places. Where a slot is the only one for some of them, it does not go to those that others could run. With
slots that are nested (one fits all jobs of the other, and more) all ends as early as it can.

Source: M. Pinedo, Scheduling (least flexible job first); slots are counted by `matcher.slot_supply`.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from taskqueue.task_queues.task_queues import TaskQueue

#: Of one with fewer slots, how many times as many the other must have: closer numbers are chance.
_CLEARLY: Final = 1.1
#: Task queues of an owner that are looked at for one that was drawn.
_MOST: Final = 64

#: VO, group and name of an owner.
_Owner: TypeAlias = tuple[str, str, str]


def is_scarcer(one: TaskQueue, other: TaskQueue) -> bool:
    """Whether clearly fewer slots come for one task queue than for another of the same owner."""
    if one.supply is None or other.supply is None or _find_owner(one) != _find_owner(other):
        return False
    return one.supply * _CLEARLY < other.supply


class ScarcityOrder:
    """Task queues whose slots are counted, by owner, those with the fewest first."""

    def __init__(self, task_queues: Iterable[TaskQueue] = ()) -> None:
        self._of_owner: dict[_Owner, list[TaskQueue]] = {}
        for each in task_queues:
            self.add(each)

    def add(self, each: TaskQueue) -> None:
        """Add a task queue that is not in it."""
        if each.supply is not None:
            insort(self._of_owner.setdefault(_find_owner(each), []), each, key=_sort_key)

    def discard(self, each: TaskQueue) -> None:
        """Remove a task queue, given exactly as it was added."""
        if each.supply is None:
            return
        known = self._of_owner[_find_owner(each)]
        del known[bisect_left(known, _sort_key(each), key=_sort_key)]
        if not known:
            del self._of_owner[_find_owner(each)]

    def list_scarcer(
        self, drawn: TaskQueue, fits: Callable[[TaskQueue], bool] = lambda _: True
    ) -> list[TaskQueue]:
        """Those that fit and go before one that was drawn, in their order."""
        if drawn.supply is None:
            return []
        known = self._of_owner.get(_find_owner(drawn), [])
        found = []
        for each in known[:_MOST]:
            if not is_scarcer(each, drawn):
                break
            if fits(each):
                found.append(each)
        return found


def put_first(
    drawn: Iterator[TaskQueue], list_scarcer: Callable[[TaskQueue], list[TaskQueue]]
) -> Iterator[TaskQueue]:
    """Task queues as they are drawn, before each the scarcer ones of its owner; each once."""
    given: set[int] = set()
    for one in drawn:
        for each in (*(() if one.supply is None else list_scarcer(one)), one):
            if each.task_queue_id not in given:
                given.add(each.task_queue_id)
                yield each


def _find_owner(each: TaskQueue) -> _Owner:
    return each.vo, each.owner_group, each.owner


def _sort_key(each: TaskQueue) -> tuple[int, int]:
    return each.supply or 0, each.task_queue_id
