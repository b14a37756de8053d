"""Numbered weights to draw from in proportion, in time that grows with the logarithm of how many there are.

Source: P. M. Fenwick, A new data structure for cumulative frequency tables, 1994.

The order in which task queues are tried: at random, in proportion to their priority.

A heavy task queue comes first more often; a light one is never left out. Of a family, whose members each
weigh as much as all of them (`taskqueue.task_queues.shares`), those that are drawn from have that weight
together: an owner who splits work wins no more often than one who does not.

All task queues that have jobs, to draw those from that fit one resource, in time that does not grow.

The lottery gives a family of task queues, as far as they fit, the weight of one of them together
(`matcher.index.sampling`). So a family is drawn in proportion to its heaviest member, then one of its members
that fit, evenly, which is kept with the probability that its own weight has of the heaviest. Where little
of what is drawn fits, the caller has to look at all of what does.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from random import Random

from taskqueue.task_queues.task_queues import TaskQueue


class FenwickTree:
    """A weight for each number; none is 0."""

    def __init__(self) -> None:
        self._weights: list[float] = []
        self._sums: list[float] = [0.0]  # [i]: of the weights whose numbers end at i, as many as i's last bit

    @property
    def total(self) -> float:
        """All weights together, rounded."""
        return self._sums[-1]

    def set(self, number: int, weight: float) -> None:
        """Give a number its weight."""
        if number >= len(self._weights):
            self._grow(number + 1)
        difference = weight - self._weights[number]
        self._weights[number] = weight
        place = number + 1
        while place < len(self._sums):
            self._sums[place] += difference
            place += place & -place

    def find(self, point: float) -> int:
        """The number in whose weight a point between 0 and `total` lies, if they are laid end to end."""
        place, step = 0, len(self._weights) >> 1
        while step:
            if self._sums[place + step] <= point:
                place += step
                point -= self._sums[place]
            step >>= 1
        return place

    def _grow(self, least: int) -> None:
        """Make room for a power of two, with sums made anew: so rounding does not add up for ever."""
        size = 1 << (least - 1).bit_length()
        self._weights += [0.0] * (size - len(self._weights))
        self._sums = [0.0, *self._weights]
        for place in range(1, size + 1):
            above = place + (place & -place)
            if above <= size:
                self._sums[above] += self._sums[place]


#: Weight of what has none: tried when nothing else is there.
LEAST = 1e-9
#: Draws before the rest is put in order; most requests are served by the first.
_FEW = 4


class CandidateOrder:
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


class CumulativeWeights:
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


def draw_order(task_queues: Sequence[TaskQueue], random: Random) -> Iterator[TaskQueue]:
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


#: Draws before it is up to the caller.
_PATIENCE = 64
#: Members that are looked at before it is: of a large family none may fit, and it may come up each time.
_LOOKS = 10_000
#: Members of a family that are drawn before all of them are looked at.
_FEW_MEMBERS = 8

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


class TaskQueueSampler:
    """Task queues by their families."""

    def __init__(self) -> None:
        self._families: dict[int, _Family] = {}
        self._numbers: dict[int, int] = {}  # of the families, by which their weights are kept
        self._numbered: list[_Family | None] = []
        self._free: list[int] = []
        self._weights = FenwickTree()

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
            if (family := self._family_at(random.random() * total)) is None:
                continue
            found, looked = _draw_member(family.members, random, fits)
            if found is not None and random.random() * family.weight <= max(found.priority, LEAST):
                return found
            looks += looked
            if looks > _LOOKS:
                break
        return None

    def _family_at(self, point: float) -> _Family | None:
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


def _draw_member(members: Sequence[TaskQueue], random: Random, fits: Fits) -> tuple[TaskQueue | None, int]:
    """One of those that fit, each as likely as the others, and how many were looked at."""
    if len(members) > _FEW_MEMBERS:
        for looks in range(1, _FEW_MEMBERS + 1):
            each = members[int(random.random() * len(members))]
            if fits(each):
                return each, looks
    fitting = [each for each in members if fits(each)]
    return (fitting[int(random.random() * len(fitting))] if fitting else None), len(members)
