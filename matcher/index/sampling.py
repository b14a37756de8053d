"""Weighted random order of task queues, and a sampler over all of them with logarithmic updates.

Task queues are drawn in proportion to their priority; a light one is never left out. The members of a family
each have the weight of the whole family (`taskqueue.task_queues.shares`), so the candidates of one family
share that weight: an owner who splits work wins no more often than one who does not.

`TaskQueueSampler` draws a family in proportion to its heaviest member, then one of its members that fit,
evenly, and accepts it with the ratio of its own weight to the heaviest (rejection sampling). After too many
rejections the caller must list all candidates instead.

Source of the tree: P. M. Fenwick, A new data structure for cumulative frequency tables, 1994.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, filterfalse
from random import Random

from taskqueue.task_queues.task_queues import TaskQueue


class FenwickTree:
    """Weights by number, 0 by default, with logarithmic update and search."""

    def __init__(self) -> None:
        self._weights: list[float] = []
        # [i]: sum of the weights that end at i, as many as i's lowest set bit
        self._sums: list[float] = [0.0]

    @property
    def total(self) -> float:
        """Sum of all weights, rounded."""
        return self._sums[-1]

    def set(self, number: int, weight: float) -> None:
        """Set the weight of a number."""
        if number >= len(self._weights):
            self._grow(number + 1)
        difference = weight - self._weights[number]
        self._weights[number] = weight
        place = number + 1
        while place < len(self._sums):
            self._sums[place] += difference
            place += place & -place

    def find(self, point: float) -> int:
        """The number whose weight contains a point between 0 and `total`, weights laid end to end."""
        sums = self._sums
        place, step = 0, len(self._weights) >> 1
        while step:
            if (weight := sums[place + step]) <= point:
                place += step
                point -= weight
            step >>= 1
        return place

    def _grow(self, least: int) -> None:
        """Grow to a power of two and compute the sums again, so that rounding errors do not accumulate."""
        size = 1 << (least - 1).bit_length()
        self._weights += [0.0] * (size - len(self._weights))
        self._sums = [0.0, *self._weights]
        for place in range(1, size + 1):
            above = place + (place & -place)
            if above <= size:
                self._sums[above] += self._sums[place]


#: Weight of a task queue with priority 0: tried when nothing else is there.
LEAST = 1e-9
#: Draws before the rest is sorted; most requests need only the first.
_FEW = 4


@dataclass(slots=True, eq=False)
class CandidateOrder:
    """Task queues in the order in which one request tries them."""

    order: Iterator[TaskQueue]  #: those that are untried; can be iterated once
    tried: list[TaskQueue] = field(default_factory=list)

    def next(self, fits: Callable[[TaskQueue], object] | None = None) -> TaskQueue | None:
        """The next task queue that fits (None: any does), recorded as tried; None: none is left."""
        found = next(filter(fits, self.order), None)
        if found is not None:
            self.tried.append(found)
        return found

    def leave_out(self, is_out: Callable[[TaskQueue], bool]) -> None:
        """Leave out some of those that are untried."""
        self.order = filterfalse(is_out, self.order)


@dataclass(frozen=True, eq=False)
class CumulativeWeights:
    """Task queues for repeated draws by weight."""

    task_queues: Sequence[TaskQueue]

    @cached_property
    def cumulative(self) -> list[float]:
        """The sums of their weights, computed at the first draw."""
        return list(accumulate(_compute_weights(self.task_queues)))


def draw_order(task_queues: Sequence[TaskQueue], random: Random) -> Iterator[TaskQueue]:
    """The task queues in random order by weight, lazily."""
    if not task_queues:
        return
    weights = _compute_weights(task_queues)
    drawn: set[int] = set()
    for each in random.choices(task_queues, cum_weights=list(accumulate(weights)), k=_FEW):
        if each.task_queue_id not in drawn:
            drawn.add(each.task_queue_id)
            yield each
    # Sorting by exponential waiting times with these rates gives the same distribution.
    rest = [
        (random.expovariate(weight), each.task_queue_id, each)
        for weight, each in zip(weights, task_queues, strict=True)
        if each.task_queue_id not in drawn
    ]
    yield from (each for _, _, each in sorted(rest))


def compute_chance(one: TaskQueue, other: TaskQueue) -> float:
    """The chance that one task queue is drawn before another one, whatever else there is."""
    weight, other_weight = _compute_weights([one, other])
    return weight / (weight + other_weight)


def _compute_weights(task_queues: Sequence[TaskQueue]) -> list[float]:
    members = Counter([each.family for each in task_queues])
    return [max(each.priority / members[each.family], LEAST) for each in task_queues]


#: Draws before giving up.
_MOST_DRAWS = 64
#: Members checked before giving up: in a large family that is drawn often, none may fit.
_MOST_CHECKS = 10_000
#: Random members tried before the whole family is checked.
_FEW_MEMBERS = 8

Fits = Callable[[TaskQueue], bool]


class _Family:
    """Task queues without order; a removed one is replaced by the last."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.members: list[TaskQueue] = []
        self._place: dict[int, int] = {}
        self._weights: Counter[float] = Counter()

    @property
    def weight(self) -> float:
        """Weight of the heaviest member; 0: empty."""
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


class TaskQueueSampler:
    """Task queues grouped by family, for weighted draws."""

    def __init__(self) -> None:
        self._families: dict[int, _Family] = {}
        self._numbered: list[_Family | None] = []
        self._free: list[int] = []
        self._weights = FenwickTree()

    def add(self, each: TaskQueue) -> None:
        """Add a task queue that is not in it."""
        family = self._families.get(each.family)
        if family is None:
            if self._free:
                number = self._free.pop()
            else:
                number = len(self._numbered)
                self._numbered.append(None)
            family = self._families[each.family] = self._numbered[number] = _Family(number)
        self._weigh(family, family.add, each)

    def discard(self, each: TaskQueue) -> None:
        """Remove a task queue, given exactly as it was added."""
        family = self._families[each.family]
        self._weigh(family, family.discard, each)
        if not family.members:
            del self._families[each.family]
            self._numbered[family.number] = None
            self._free.append(family.number)

    def draw(self, random: Random, fits: Fits) -> TaskQueue | None:
        """A random task queue that fits; None: none came up, though one may exist."""
        total, checks = self._weights.total, 0
        for _ in range(_MOST_DRAWS if self._families else 0):
            number = self._weights.find(random.random() * total)
            family = self._numbered[number] if number < len(self._numbered) else None
            if family is None:
                continue  # by rounding, the point belongs to none
            if len(family.members) == 1:  # it has the weight of the family
                [only] = family.members
                if fits(only):
                    return only
                continue
            found, checked = _draw_member(family.members, random, fits)
            if found is not None and random.random() * family.weight <= max(found.priority, LEAST):
                return found
            checks += checked
            if checks > _MOST_CHECKS:
                break
        return None

    def _weigh(self, family: _Family, change: Callable[[TaskQueue], None], each: TaskQueue) -> None:
        before = family.weight
        change(each)
        if family.weight != before:
            self._weights.set(family.number, family.weight)


def _draw_member(members: Sequence[TaskQueue], random: Random, fits: Fits) -> tuple[TaskQueue | None, int]:
    """A random member that fits, all equally likely, and the number of members checked."""
    if len(members) > _FEW_MEMBERS:
        for checks in range(1, _FEW_MEMBERS + 1):
            each = members[int(random.random() * len(members))]
            if fits(each):
                return each, checks
    fitting = [each for each in members if fits(each)]
    return (fitting[int(random.random() * len(fitting))] if fitting else None), len(members)
