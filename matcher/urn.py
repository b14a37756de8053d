"""All task queues that have jobs, to draw those from that fit one resource, in time that does not grow.

The lottery gives a family of task queues, as far as they fit, the weight of one of them together
(`matcher.lottery`). So a family is drawn in proportion to its heaviest member, then one of its members
that fit, evenly, which is kept with the probability that its own weight has of the heaviest. Where little
of what is drawn fits, the caller has to look at all of what does.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from matcher.lottery import LEAST
from matcher.weight_tree import WeightTree
from taskqueue.task_queues import TaskQueue

#: Draws before it is up to the caller.
_PATIENCE = 64
#: Members that are looked at before it is: of a large family none may fit, and it may come up each time.
_LOOKS = 10_000
#: Members of a family that are drawn before all of them are looked at.
_FEW = 8

Fits = Callable[[TaskQueue], bool]


class _Family:
    """Task queues in no order, so that one that goes leaves its place to the last."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.members: list[TaskQueue] = []
        self._place: dict[int, int] = {}
        self._weights: Counter[float] = Counter()

    @property
    def weight(self) -> float:
        """That of its heaviest member; 0: it has none."""
        return max(LEAST, max(self._weights)) if self._weights else 0.0

    def add(self, each: TaskQueue) -> None:
        self._place[each.task_queue_id] = len(self.members)
        self.members.append(each)
        self._weights[each.priority] += 1

    def discard(self, each: TaskQueue) -> None:
        place, last = self._place.pop(each.task_queue_id), self.members.pop()
        if last.task_queue_id != each.task_queue_id:
            self.members[place] = last
            self._place[last.task_queue_id] = place
        self._weights[each.priority] -= 1
        if not self._weights[each.priority]:
            del self._weights[each.priority]


class Urn:
    """Task queues by their families."""

    def __init__(self) -> None:
        self._families: dict[int, _Family] = {}
        self._numbers: dict[int, int] = {}  # of the families, by which their weights are kept
        self._numbered: list[_Family | None] = []
        self._free: list[int] = []
        self._weights = WeightTree()

    def add(self, each: TaskQueue) -> None:
        """Put a task queue in that is not there."""
        family = self._families.get(each.family)
        if family is None:
            family = self._families[each.family] = _Family(self._number())
            self._numbered[family.number] = family
        self._weigh(family, family.add, each)

    def discard(self, each: TaskQueue) -> None:
        """Take one out, as it was put in."""
        family = self._families[each.family]
        self._weigh(family, family.discard, each)
        if not family.members:
            del self._families[each.family]
            self._numbered[family.number] = None
            self._free.append(family.number)

    def draw(self, random: Random, fits: Fits) -> TaskQueue | None:
        """One that fits; None: it did not come up, whether there is one or not."""
        total, looks = self._weights.total, 0
        for _ in range(_PATIENCE if self._families else 0):
            if (family := self._at(random.random() * total)) is None:
                continue
            found, looked = _member(family.members, random, fits)
            if found is not None and random.random() * family.weight <= max(found.priority, LEAST):
                return found
            looks += looked
            if looks > _LOOKS:
                break
        return None

    def _at(self, point: float) -> _Family | None:
        """The family in whose weight a point lies; None: by rounding it lies in that of none."""
        number = self._weights.find(point)
        return self._numbered[number] if number < len(self._numbered) else None

    def _number(self) -> int:
        if self._free:
            return self._free.pop()
        self._numbered.append(None)
        return len(self._numbered) - 1

    def _weigh(self, family: _Family, change: Callable[[TaskQueue], None], each: TaskQueue) -> None:
        before = family.weight
        change(each)
        if family.weight != before:
            self._weights.set(family.number, family.weight)


def _member(members: Sequence[TaskQueue], random: Random, fits: Fits) -> tuple[TaskQueue | None, int]:
    """One of those that fit, each as likely as the others, and how many were looked at."""
    if len(members) > _FEW:
        for looks in range(1, _FEW + 1):
            each = members[int(random.random() * len(members))]
            if fits(each):
                return each, looks
    fitting = [each for each in members if fits(each)]
    return (fitting[int(random.random() * len(fitting))] if fitting else None), len(members)
