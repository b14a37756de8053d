"""Queues as one VO gets them, in groups of equal values; and those that fail a condition, with their values.

A set of queues is an integer with one bit per queue. Thousands of queues have few distinct values, so each
column is computed once and kept. A condition is evaluated once per group of equal queues; results are cached.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import cast

from cs_config.cache import CacheByLength
from cs_config.options import bounds
from cs_config.options.operations import options_for
from cs_config.tree import glue
from cs_config.tree.address import QueueAddress
from cs_config.tree.admission import Admission
from cs_config.tree.configuration import Configuration
from cs_config.tree.storage import list_near
from matcher.explain import job_conditions
from matcher.explain.job_conditions import (
    AdmissionCondition,
    ClassCondition,
    ConditionKind,
    JobCondition,
    RequirementCondition,
)
from matcher.request import queue_offer
from matcher.request.match_request import LARGEST
from requirements import evaluator
from requirements.bitset import mask_from
from requirements.classad import evaluation
from requirements.classad.evaluation import Operands
from requirements.errors import InvalidResource
from requirements.nodes.node_attributes import NO_NODE_ATTRIBUTES, NodeAttributes
from requirements.record import Declarations
from requirements.resource import Resource
from requirements.values import Value, exact, fold, format_value, lookup

#: Offer of a queue with contradictory parameters: only the contradiction itself is reported.
_ANYTHING = Resource(cpu_time=LARGEST, tags=None, gpus=bounds.GPUS, whole_node=True)


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """A queue as the VO gets it; rarely used properties are computed on demand."""

    address: QueueAddress
    config: Configuration = field(repr=False)
    vo: str
    plain: Mapping[str, Value] = field(repr=False)  #: effective parameters, with values of nested ads
    offered: Resource = field(repr=False)  #: a pilot's offer there, without site and CE
    fault: str | None = None  #: why pilots there cannot request jobs; `offered` then refuses nothing
    nodes: NodeAttributes = NO_NODE_ATTRIBUTES

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """Parameters that are equal on all nodes, including GLUE names."""
        return self.config.ad(self.address, self.vo)

    @property
    def admission(self) -> Admission | None:
        """The queue's conditions on jobs."""
        return self.config.admission(self.address, self.vo)

    @cached_property
    def expired(self) -> Mapping[str, Value]:
        """Expired values by folded name."""
        return {name: each.value for name, each in self.config.expired(self.address, self.vo).items()}

    @cached_property
    def resource(self) -> Resource:
        """A pilot's offer there, including site and CE."""
        site, ce = frozenset({fold(self.address.site)}), frozenset({fold(self.address.ce)})
        near = list_near(self.config, [self.address.site])
        return replace(self.offered, sites=site, grid_ces=ce, near=near)


def queue_views(config: Configuration, vo: str, addresses: Sequence[QueueAddress]) -> tuple[QueueView, ...]:
    """Queues as a VO gets them, in the given order."""
    offered: dict[Hashable, tuple[Resource, str | None]] = {}
    read: dict[str, bool] = {}  # whether an offer depends on this name
    managed = options_for(config, vo).managed_types
    found = []
    for address in addresses:
        values = config.values(address, vo)
        for name in values.keys() - read.keys():
            read[name] = fold(name) in queue_offer.READ
        key = frozenset((name, exact(value)) for name, value in values.items() if read[name])
        if key not in offered:
            offered[key] = _offered(values, managed, config)
        resource, fault = offered[key]
        found.append(
            QueueView(
                address=address,
                config=config,
                vo=vo,
                plain={**dict(glue.nested_values(values)), **values},
                offered=resource,
                fault=fault,
                nodes=config.node_attributes(address, vo),
            )
        )
    return tuple(found)


def _offered(
    values: Mapping[str, Value], managed: frozenset[str], config: Configuration
) -> tuple[Resource, str | None]:
    """The offer, or an unlimited one with the reason why there is none."""
    try:
        resource = queue_offer.build_resource(values, managed)
    except InvalidResource as error:
        return _ANYTHING, "; ".join(f"{each.path}: {each.message}" for each in error.problems)
    if resource.platforms is None:
        return resource, None
    return replace(resource, platforms=config.list_runnable_platforms(resource.platforms)), None


def describe_queue(kind: ConditionKind, queue: QueueView) -> str | None:
    """The queue's value for a condition, as text for people; None: it states none."""
    if kind in (job_conditions.SITE, job_conditions.BANNED_SITES, job_conditions.INPUT_DATA):
        return queue.address.site
    if kind is job_conditions.GRID_CE:
        return queue.address.ce
    name = "Tag" if kind is job_conditions.WHOLE_NODE else kind.requirement
    value = getattr(queue.resource, kind.resource_fields[0])
    if isinstance(value, frozenset):
        value = lookup(queue.values, name.removesuffix("s"))
    return None if value is None else format_value(value)


#: Groups of equal queues: the first queue's number, and the group as a bit set.
Column = list[tuple[int, int]]

#: Single capacities: a larger value refuses nothing that a smaller one accepts.
_CAPACITIES = frozenset(kind.resource_fields for kind in job_conditions.CAPACITIES)
#: Names that every queue has implicitly.
_GLUE = frozenset(map(fold, [*(each.name for each in glue.TABLE), *glue.OF_ADDRESS]))
#: Fields that follow from a queue's address.
_PLACES: Mapping[tuple[str, ...], Callable[[QueueView], Hashable]] = {
    ("sites",): lambda queue: queue.address.site,
    ("near",): lambda queue: queue.address.site,
    ("grid_ces",): lambda queue: queue.address.ce,
}


class QueueColumns:
    """Cached groupings of queues."""

    def __init__(self, queues: Sequence[QueueView]) -> None:
        self._queues = queues
        self._columns: dict[object, Column] = {}

    def refused_by_resource(self, fields: tuple[str, ...]) -> Column:
        """Group by fields of `Resource`; a single capacity is sorted, the largest last."""
        return self._column(
            ("resource", fields),
            _PLACES.get(fields) or (lambda queue: tuple(getattr(queue.offered, name) for name in fields)),
            ordered=fields in _CAPACITIES,
        )

    def group_by_values(self, names: Iterable[str]) -> Column:
        """Group by the values of these parameters."""
        # A name that no queue has distinguishes none.
        folded = tuple(sorted(self.present.intersection(map(fold, names))))
        return self._column(
            ("values", folded), lambda queue: tuple(self._comparable_value(queue, name) for name in folded)
        )

    def count_groups(self, part: JobCondition, declarations: Declarations) -> int:
        """How many groups of queues a condition is evaluated for."""
        if isinstance(part, AdmissionCondition):
            return len(self.group_by_admission())
        if isinstance(part, RequirementCondition):
            return len(self.group_by_values(evaluator.parameters(part.asked, declarations)))
        column = self.refused_by_resource(part.kind.resource_fields)
        return len(column).bit_length() if part.kind in job_conditions.CAPACITIES else len(column)

    def group_by_admission(self) -> Column:
        """Group by the queues' conditions on jobs."""
        return self._column("admission", lambda queue: queue.admission and queue.admission.key)

    def distinct(self, name: str) -> Iterator[tuple[Value, int]]:
        """The values of a parameter, for all nodes or some, each with the queues that have it."""
        for number, mask in self.group_by_values((name,)):
            queue = self._queues[number]
            value = self._value(queue, fold(name))
            for each in (value, *(queue.nodes.options(name) or ())):
                if each is not None:
                    yield each, mask

    def with_nodes(self, names: Iterable[str]) -> int:
        """The queues whose nodes differ in one of these names."""
        return reduce(or_, (self._node_values.get(fold(name), 0) for name in names), 0)

    @cached_property
    def _node_values(self) -> Mapping[str, int]:
        """The folded names of node attributes, with the queues that have them."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for number, queue in enumerate(self._queues):
            for name in queue.nodes.names:
                found[fold(name)].append(number)
        return {name: mask_from(numbers) for name, numbers in found.items()}

    def _comparable_value(self, queue: QueueView, name: str) -> Hashable:
        """A comparable form of the queue's value, or of the values that its nodes may have."""
        if queue.nodes and name in queue.nodes:
            options = queue.nodes.options(name)
            return "nodes", queue.nodes.describe(name) if options is None else tuple(map(exact, options))
        return exact(self._value(queue, name))

    def _value(self, queue: QueueView, name: str) -> Value | None:
        """The queue's value of a folded name; None: absent, or it depends on the node."""
        if name in _GLUE:
            return lookup(queue.values, name)
        if queue.nodes and name in queue.nodes:
            return None
        spelled = (queue.plain.get(each) for each in self._spellings.get(name, ()))
        return next((value for value in spelled if value is not None), None)

    @cached_property
    def _spellings(self) -> Mapping[str, list[str]]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(set[str]().union(*(queue.plain for queue in self._queues))):
            found[fold(name)].append(name)
        return found

    @cached_property
    def present(self) -> frozenset[str]:
        """Folded names that some queue has."""
        return _GLUE.union(self._spellings, self._node_values)

    def _column(self, key: object, of: Callable[[QueueView], Hashable], *, ordered: bool = False) -> Column:
        """Group the queues by the result of `of`, each group with its first queue.

        With `ordered`, results are 1-tuples of a number, sorted; None sorts last, as unlimited.
        """
        if key not in self._columns:
            members: defaultdict[Hashable, list[int]] = defaultdict(list)
            for number, queue in enumerate(self._queues):
                members[of(queue)].append(number)
            values = sorted(members, key=_capacity) if ordered else members
            self._columns[key] = [(members[value][0], mask_from(members[value])) for value in values]
        return self._columns[key]


def _capacity(value: Hashable) -> float:
    [number] = cast(tuple[float | None], value)
    return math.inf if number is None else number


#: Requirement and demanded value, as in `UnmetCondition`.
_Wanted = tuple[str, str]
#: The queues' values (None: no such parameter), each with the queues that have it.
_SeenValues = list[tuple[str | None, int]]
_Reason = tuple[_Wanted, str | None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmetCondition:
    """Queues that fail one condition of a demand."""

    part: JobCondition | None  #: None: the queues are closed to the VO, disabled or faulty
    requirement: str
    wanted: str  #: demanded value, as text for people
    queues: int


class UnmetConditions:
    """Unmet conditions of some queues, computed on demand."""

    def __init__(
        self, queues: Sequence[QueueView], columns: QueueColumns, declarations: Declarations
    ) -> None:
        self._queues = queues
        self._columns = columns
        self._declarations = declarations
        self._cache: CacheByLength[Hashable, tuple[UnmetCondition, ...]] = CacheByLength(_measure)
        self._last_reasons: tuple[object, Mapping[_Wanted, _SeenValues]] = (None, {})

    def __contains__(self, part: JobCondition) -> bool:
        """Whether the result for this condition is cached."""
        return self._cache.find(part.key) is not None

    def find(self, part: JobCondition) -> tuple[UnmetCondition, ...]:
        """The queues that fail a condition; an expression has one result per failing operand."""
        found = self._cache.find(part.key)
        return self._cache.store(part.key, tuple(self._find(part))) if found is None else found

    def list_values(self, failure: UnmetCondition) -> Iterator[tuple[str | None, int]]:
        """The values of the failing queues (None: no such parameter), each with the queues that have it."""
        part = failure.part
        if isinstance(part, ClassCondition):
            for queue, mask in self._columns.refused_by_resource(part.kind.resource_fields):
                if mask & failure.queues:
                    yield describe_queue(part.kind, self._queues[queue]), mask
        elif part is not None:
            yield from self._describe(part).get((failure.requirement, failure.wanted), ())
        if not isinstance(part, RequirementCondition):
            return
        among = failure.queues & ~self._evaluated_whole(part)
        for group in self._operands(part):
            if failure.wanted in group.programs:
                for queue, mask in self._columns.group_by_values(group.names):
                    if queues := mask & among:
                        yield group.has(failure.wanted, self._queues[queue].values), queues

    def describe(self, failure: UnmetCondition, queue: QueueView, has: str | None) -> str | None:
        """The value of a failing queue, as text for people; an expired value is reported as such."""
        if not queue.expired or not isinstance(failure.part, RequirementCondition):
            return has
        for name in self._names(failure.part):
            if (value := queue.expired.get(fold(name))) is not None:
                text, absent = f"expired, it was {format_value(value)}", f"{name} {evaluation.ABSENT}"
                entries = [] if has is None else has.split("; ")
                named = (f"{name} {text}" if each == absent else each for each in entries)
                has = "; ".join(named) or text
        return has

    def _find(self, part: JobCondition) -> Iterator[UnmetCondition]:
        if isinstance(part, ClassCondition):
            queues = self._find_refusing(part)
            found = {(part.kind.requirement, part.wanted): queues} if queues else {}
        else:
            found = {asked: _all(seen) for asked, seen in self._describe(part).items()}
        if isinstance(part, RequirementCondition):
            # The failing operands of an expression, where no node attribute is involved.
            among = ~self._evaluated_whole(part)
            for group in self._operands(part):
                for queue, mask in self._columns.group_by_values(group.names):
                    for text, _ in group.failing(self._queues[queue].values) if mask & among else ():
                        wanted = "Requirements", text
                        found[wanted] = found.get(wanted, 0) | mask & among
        for (requirement, text), queues in found.items():
            yield UnmetCondition(part=part, requirement=requirement, wanted=text, queues=queues)

    def _operands(self, part: RequirementCondition) -> tuple[Operands, ...]:
        return evaluator.operands(part.asked, self._columns.present)

    def _evaluated_whole(self, part: RequirementCondition) -> int:
        """Queues for which the whole expression is evaluated: no operands, or attributes of nodes."""
        if not self._operands(part):
            return (1 << len(self._queues)) - 1
        return self._columns.with_nodes(self._names(part))

    def _names(self, part: RequirementCondition) -> tuple[str, ...]:
        return evaluator.parameters(part.asked, self._declarations)

    def _find_refusing(self, part: ClassCondition) -> int:
        """The queues that refuse a condition; in a sorted column of capacities they come first."""
        column = self._columns.refused_by_resource(part.kind.resource_fields)
        isolated = part.isolated

        def is_refused(group: tuple[int, int]) -> bool:
            return job_conditions.is_refused(part.kind, isolated, self._queues[group[0]].resource)

        if part.kind in job_conditions.CAPACITIES:
            return _all(column[: bisect_left(column, 1, key=lambda group: int(not is_refused(group)))])
        return _all(each for each in column if is_refused(each))

    def _describe(self, part: AdmissionCondition | RequirementCondition) -> Mapping[_Wanted, _SeenValues]:
        """Reasons of a whole condition; the last ones are cached, since each failure reads them."""
        key, found = self._last_reasons
        if key != part.key:
            found = defaultdict(list)
            reasons = self._misses(part) if isinstance(part, AdmissionCondition) else self._reasons(part)
            for asked, has, queues in reasons:
                found[asked].append((has, queues))
            self._last_reasons = (part.key, found)
        return found

    def _misses(self, part: AdmissionCondition) -> Iterator[_Reason]:
        for queue, mask in self._columns.group_by_admission():
            admission = self._queues[queue].admission
            for why in () if admission is None else admission.failing(part.job):
                yield (why.requirement, why.wanted), why.has, mask

    def _reasons(self, part: RequirementCondition) -> Iterator[_Reason]:
        among = self._evaluated_whole(part)
        for queue, mask in self._columns.group_by_values(self._names(part)) if among else ():
            if queues := mask & among:
                offer = self._queues[queue]
                for why in evaluator.failing(part.asked, offer.values, self._declarations, offer.nodes):
                    yield (why.requirement, why.wanted), why.has, queues


def _measure(key: Hashable, found: Iterable[UnmetCondition]) -> int:
    """Characters of a condition and of what it is divided into."""
    return len(str(key)) + sum(len(each.requirement) + len(each.wanted) for each in found)


def _all(masks: Iterable[tuple[object, int]]) -> int:
    return reduce(or_, (mask for _, mask in masks), 0)
