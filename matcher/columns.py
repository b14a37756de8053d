"""Queues sorted by what they say, so that a question is asked once for all that are alike.

A set of queues is an integer, one bit a queue. What is looked at has few distinct values over thousands of
queues; each column is made once and kept.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import or_
from typing import cast

from cs_config import glue
from matcher import parts
from matcher.queue_views import QueueView
from requirements.bits import mask_of
from requirements.values import Value, exact, fold, lookup

#: A queue that stands for all that are alike, and those.
Column = list[tuple[int, int]]

#: What capacities look at: who has more refuses nothing that others take.
_CAPACITIES = frozenset(kind.looks for kind in parts.CAPACITIES)
#: Names that a queue has without having been given them.
_GLUE = frozenset(map(fold, [*(each.name for each in glue.TABLE), *glue.OF_ADDRESS]))
#: What follows from where a queue is.
_PLACES: Mapping[tuple[str, ...], Callable[[QueueView], Hashable]] = {
    ("sites",): lambda queue: queue.address.site,
    ("grid_ces",): lambda queue: queue.address.ce,
}


class Columns:
    """The columns of some queues."""

    def __init__(self, queues: Sequence[QueueView]) -> None:
        self._queues = queues
        self._made: dict[object, Column] = {}

    def by_resource(self, looks: tuple[str, ...]) -> Column:
        """By fields of `Resource`; in order if that is one capacity, the largest last."""
        return self._column(
            ("resource", looks),
            _PLACES.get(looks) or (lambda queue: tuple(getattr(queue.offered, name) for name in looks)),
            ordered=looks in _CAPACITIES,
        )

    def by_values(self, names: Iterable[str]) -> Column:
        """By the parameters of these names."""
        # What no queue has tells none from another.
        folded = tuple(sorted(self.present.intersection(map(fold, names))))
        return self._column(
            ("values", folded),
            lambda queue: tuple(self._said(queue, name) for name in folded),
        )

    def by_admission(self) -> Column:
        """By what queues ask of jobs."""
        return self._column("admission", lambda queue: queue.admission and queue.admission.key)

    def distinct(self, name: str) -> Iterator[tuple[Value, int]]:
        """What queues say of one name, for all their nodes or some, with those that do."""
        for number, mask in self.by_values((name,)):
            queue = self._queues[number]
            value = self._value(queue, fold(name))
            for each in (value, *(queue.nodes.options(name) or ())):
                if each is not None:
                    yield each, mask

    def with_nodes(self, names: Iterable[str]) -> int:
        """The queues whose nodes differ in one of these names."""
        return reduce(or_, (self._of_nodes.get(fold(name), 0) for name in names), 0)

    @cached_property
    def _of_nodes(self) -> Mapping[str, int]:
        """The folded names of node attributes, with the queues that have them."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for number, queue in enumerate(self._queues):
            for name in queue.nodes.names:
                found[fold(name)].append(number)
        return {name: mask_of(numbers) for name, numbers in found.items()}

    def _said(self, queue: QueueView, name: str) -> Hashable:
        """What a queue says of a name: for all its nodes alike, or what each may have."""
        if queue.nodes and name in queue.nodes:
            options = queue.nodes.options(name)
            return "nodes", None if options is None else tuple(map(exact, options))
        return exact(self._value(queue, name))

    def _value(self, queue: QueueView, name: str) -> Value | None:
        """What a queue has of a folded name, for all its nodes; None: nothing, or it depends on the node."""
        if name in _GLUE:
            return lookup(queue.values, name)
        if queue.nodes and name in queue.nodes:
            return None
        spelled = (queue.plain.get(each) for each in self._spellings.get(name, ()))
        return next((value for value in spelled if value is not None), None)

    @cached_property
    def _spellings(self) -> Mapping[str, list[str]]:
        """How the queues write each name."""
        names = set[str]().union(*(queue.plain for queue in self._queues))
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(names):
            found[fold(name)].append(name)
        return found

    @cached_property
    def present(self) -> frozenset[str]:
        """Every name, folded, that some queue has."""
        return _GLUE.union(self._spellings, self._of_nodes)

    def _column(self, key: object, of: Callable[[QueueView], Hashable], *, ordered: bool = False) -> Column:
        """For each distinct answer of `of` the first queue that gives it, and all that do.

        Ordered: by the answers, which are numbers; none at all is as much as there can be.
        """
        if key not in self._made:
            masks: dict[Hashable, int] = {}
            firsts: dict[Hashable, int] = {}
            members: defaultdict[Hashable, list[int]] = defaultdict(list)
            for number, queue in enumerate(self._queues):
                answer = of(queue)
                firsts.setdefault(answer, number)
                members[answer].append(number)
            for answer, numbers in members.items():
                masks[answer] = mask_of(numbers)
            answers = sorted(masks, key=_capacity) if ordered else list(masks)
            self._made[key] = [(firsts[answer], masks[answer]) for answer in answers]
        return self._made[key]


def _capacity(answer: Hashable) -> float:
    [number] = cast(tuple[float | None], answer)
    return math.inf if number is None else number
