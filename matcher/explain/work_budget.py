"""Bounds of what one request evaluates: for explanations, reports of queues and previews.

Work is counted in characters of requirements: parsing and evaluating take about as long for each, whatever
they are. It is counted, not timed, so it is reproducible.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import Final

from taskqueue.task_queues.listing import WaitingClass

#: For one explanation; parsing dominates the time.
EXPLANATION: Final = 40_000
#: A search for one similar name or value.
SEARCH: Final = 400
#: For the report of one queue: well below a second of processor time.
QUEUE_REPORT: Final = 250_000
#: The same for a preview, which administrators ask for now and then: some seconds.
PREVIEWED: Final = 2_000_000
#: A class without requirements, and each of its tags, which are conditions of their own and are cached, in
#: characters.
CLASS: Final = 10
_TAG: Final = 24
#: Queues of different values that cost as much as parsing.
QUEUES: Final = 32


@dataclass(slots=True)
class WorkBudget:
    """The work that is still allowed."""

    left: int = EXPLANATION

    @property
    def over(self) -> bool:
        """Whether something was or will be left out."""
        return self.left < 0

    def spend(self, characters: int) -> bool:
        """Take this much; False once the budget is exceeded."""
        self.left -= characters
        return not self.over


def share(number: int, characters: int | None = None) -> Iterator[WorkBudget]:
    """A budget for each of so many VOs in turn; what one has not spent is left to those after it."""
    left = PREVIEWED if characters is None else characters
    for others in reversed(range(number)):
        budget = WorkBudget(left=left // (others + 1))
        left -= budget.left
        yield budget
        left += max(budget.left, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenClasses:
    """The classes that a request evaluates, and the others."""

    chosen: Sequence[WaitingClass]
    left: Sequence[WaitingClass]


def choose_classes(
    waiting: Iterable[WaitingClass], *, queues: int = 1, characters: int = QUEUE_REPORT
) -> ChosenClasses:
    """Choose the classes of each VO with the most jobs, as many as one request can evaluate for some queues.

    What a VO with few classes does not need is left to the others.
    """
    by_vo: defaultdict[str, list[WaitingClass]] = defaultdict(list)
    for each in waiting:
        by_vo[each.asked.vo].append(each)
    remaining = int(characters / (1 + max(queues - 1, 0) / QUEUES))
    chosen: list[WaitingClass] = []
    left: list[WaitingClass] = []
    by_size = sorted(by_vo.values(), key=lambda classes: sum(map(class_size, classes)))
    for number, classes in enumerate(by_size):
        ordered = list(_order(classes))
        these = _take(ordered, remaining // (len(by_size) - number))
        remaining -= sum(map(class_size, these))
        chosen += these
        left += ordered[len(these) :]
    return ChosenClasses(chosen=chosen, left=left)


def _order(classes: Iterable[WaitingClass]) -> Iterator[WaitingClass]:
    """Those with most jobs, then the smallest, then the oldest first.

    In groups: while Python sorts tens of thousands of tuples no other thread runs.
    """
    alike: defaultdict[tuple[int, int], list[WaitingClass]] = defaultdict(list)
    for each in classes:
        alike[-each.jobs, class_size(each)].append(each)
    for key in sorted(alike):
        yield from sorted(alike[key], key=attrgetter("first_job"))


def _take(ordered: Sequence[WaitingClass], characters: int) -> list[WaitingClass]:
    budget = WorkBudget(left=characters)
    return list(takewhile(lambda each: budget.spend(class_size(each)), ordered))


def class_size(waiting: WaitingClass) -> int:
    """The work for a class, in characters."""
    return CLASS + len(waiting.requirements or "") + _TAG * len(waiting.asked.tags)
