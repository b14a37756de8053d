"""All task queues that have jobs, to draw those from that fit one resource, in time that does not grow.

The lottery gives a family of task queues, as far as they fit, the weight of one of them together
(`matcher.lottery`). So a family is drawn in proportion to its heaviest member, then one of its members
that fit, evenly, which is kept with the probability that its own weight has of the heaviest. Where little
of what is drawn fits, the caller has to look at all of what does.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

from matcher.lottery import LEAST
from taskqueue.task_queues import TaskQueue

#: Draws before it is up to the caller.
_PATIENCE = 64
#: Members of a family that are drawn before all of them are looked at.
_FEW = 8

Fits = Callable[[TaskQueue], bool]


class Urn:
    """Task queues by their families."""

    def __init__(self) -> None:
        self._members: dict[int, list[TaskQueue]] = {}
        self._heaviest: dict[int, float] = {}
        self._mixed: tuple[Sequence[list[TaskQueue]], Sequence[float]] | None = None

    def add(self, each: TaskQueue) -> None:
        """Put a task queue in that is not there."""
        self._mixed = None
        self._members.setdefault(each.family, []).append(each)
        self._heaviest[each.family] = max(self._heaviest.get(each.family, LEAST), each.priority)

    def discard(self, each: TaskQueue) -> None:
        """Take one out, as it was put in."""
        self._mixed = None
        members = self._members[each.family]
        members.remove(each)
        if members:
            self._heaviest[each.family] = max(LEAST, *(other.priority for other in members))
        else:
            del self._members[each.family], self._heaviest[each.family]

    def draw(self, random: Random, fits: Fits) -> TaskQueue | None:
        """One that fits; None: it did not come up, whether there is one or not."""
        if self._mixed is None:
            self._mixed = list(self._members.values()), list(accumulate(self._heaviest.values()))
        families, weights = self._mixed
        for _ in range(_PATIENCE if families else 0):
            number = bisect_right(weights, random.random() * weights[-1])
            members = families[min(number, len(families) - 1)]
            found = _member(members, random, fits)
            if found is not None and random.random() * self._heaviest[found.family] <= max(
                found.priority, LEAST
            ):
                return found
        return None


def _member(members: Sequence[TaskQueue], random: Random, fits: Fits) -> TaskQueue | None:
    """One of those that fit, each as likely as the others."""
    if len(members) > _FEW:
        for _ in range(_FEW):
            each = members[int(random.random() * len(members))]
            if fits(each):
                return each
    fitting = [each for each in members if fits(each)]
    return fitting[int(random.random() * len(fitting))] if fitting else None
