"""One queue as a VO gets it, with all that an explanation looks at.

Queues sorted by what they say, so that a question is asked once for all that are alike.

A set of queues is an integer, one bit a queue. What is looked at has few distinct values over thousands of
queues; each column is made once and kept.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import cast

from cs_config.options import bounds
from cs_config.options.operations import options_for
from cs_config.tree import admission_cache, glue
from cs_config.tree.address import QueueAddress
from cs_config.tree.admission import Admission
from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions
from matcher.explain.job_conditions import ConditionKind
from matcher.request import queue_offer
from matcher.request.match_request import LARGEST
from matcher.request.resource import Resource
from requirements.bitset import mask_from
from requirements.errors import InvalidResource
from requirements.nodes.node_attributes import NO_NODE_ATTRIBUTES, NodeAttributes
from requirements.values import Value, exact, fold, format_value, lookup

#: Of a queue whose parameters contradict each other: nothing but that is told of it.
_ANYTHING = Resource(cpu_time=LARGEST, tags=None, gpus=bounds.GPUS, whole_node=True)


@dataclass(frozen=True, kw_only=True)
class QueueView:
    """A queue as the VO gets it; what few are asked for is made when it is."""

    address: QueueAddress
    config: Configuration = field(repr=False)
    vo: str
    plain: Mapping[str, Value] = field(repr=False)  #: effective parameters
    offered: Resource = field(repr=False)  #: what a pilot there offers, but for the place
    fault: str | None = None  #: why no pilot there could ask for jobs; `offered` refuses nothing then
    nodes: NodeAttributes = NO_NODE_ATTRIBUTES

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """What is the same for all its nodes, GLUE names included."""
        return self.config.ad(self.address, self.vo)

    @property
    def admission(self) -> Admission | None:
        """What it asks of jobs."""
        return admission_cache.read_admission(self.config, self.address, self.vo)

    @cached_property
    def expired(self) -> Mapping[str, Value]:
        """What it had until it expired, by folded name."""
        return {name: each.value for name, each in self.config.expired(self.address, self.vo).items()}

    @cached_property
    def resource(self) -> Resource:
        """What a pilot there offers."""
        place = {"sites": _address_name(self.address.site), "grid_ces": _address_name(self.address.ce)}
        return replace(self.offered, **place)  # type: ignore[arg-type]  # both are sets of names


def queue_views(config: Configuration, vo: str, addresses: Sequence[QueueAddress]) -> tuple[QueueView, ...]:
    """What a VO gets of some queues, in their order."""
    offered: dict[Hashable, tuple[Resource, str | None]] = {}
    read: dict[str, bool] = {}  # whether an offer is made of this name
    managed = options_for(config, vo).managed_types
    found = []
    for address in addresses:
        values = config.values(address, vo)
        for name in values.keys() - read.keys():
            read[name] = fold(name) in queue_offer.READ
        key = frozenset((name, exact(value)) for name, value in values.items() if read[name])
        if key not in offered:
            offered[key] = _offered(values, managed)
        resource, fault = offered[key]
        found.append(
            QueueView(
                address=address,
                config=config,
                vo=vo,
                plain=values,
                offered=resource,
                fault=fault,
                nodes=config.node_attributes(address, vo),
            )
        )
    return tuple(found)


def _offered(values: Mapping[str, Value], managed: frozenset[str]) -> tuple[Resource, str | None]:
    """What is offered, and what keeps it from being one."""
    try:
        return queue_offer.build_resource(values, managed), None
    except InvalidResource as error:
        return _ANYTHING, "; ".join(f"{each.path}: {each.message}" for each in error.problems)


def describe_queue(kind: ConditionKind, queue: QueueView) -> str | None:
    """What a queue has of what a condition is about, for a person; None: it says nothing."""
    if kind in (job_conditions.SITE, job_conditions.BANNED_SITES):
        return queue.address.site
    if kind is job_conditions.GRID_CE:
        return queue.address.ce
    name = "Tag" if kind is job_conditions.WHOLE_NODE else kind.requirement
    value = getattr(queue.resource, kind.looks[0])
    if isinstance(value, frozenset):
        spelled = next((v for n, v in queue.values.items() if fold(n) == fold(name.removesuffix("s"))), None)
        return None if spelled is None else format_value(spelled)
    return None if value is None else format_value(value)


def _address_name(name: str) -> frozenset[str]:
    return frozenset({fold(name)})


#: A queue that stands for all that are alike, and those.
Column = list[tuple[int, int]]

#: What capacities look at: who has more refuses nothing that others take.
_CAPACITIES = frozenset(kind.looks for kind in job_conditions.CAPACITIES)
#: Names that a queue has without having been given them.
_GLUE = frozenset(map(fold, [*(each.name for each in glue.TABLE), *glue.OF_ADDRESS]))
#: What follows from where a queue is.
_PLACES: Mapping[tuple[str, ...], Callable[[QueueView], Hashable]] = {
    ("sites",): lambda queue: queue.address.site,
    ("grid_ces",): lambda queue: queue.address.ce,
}


class QueueColumns:
    """The columns of some queues."""

    def __init__(self, queues: Sequence[QueueView]) -> None:
        self._queues = queues
        self._made: dict[object, Column] = {}

    def refused_by_resource(self, looks: tuple[str, ...]) -> Column:
        """By fields of `Resource`; in order if that is one capacity, the largest last."""
        return self._column(
            ("resource", looks),
            _PLACES.get(looks) or (lambda queue: tuple(getattr(queue.offered, name) for name in looks)),
            ordered=looks in _CAPACITIES,
        )

    def group_by_values(self, names: Iterable[str]) -> Column:
        """By the parameters of these names."""
        # What no queue has tells none from another.
        folded = tuple(sorted(self.present.intersection(map(fold, names))))
        return self._column(
            ("values", folded),
            lambda queue: tuple(self._stated_values(queue, name) for name in folded),
        )

    def group_by_admission(self) -> Column:
        """By what queues ask of jobs."""
        return self._column("admission", lambda queue: queue.admission and queue.admission.key)

    def distinct(self, name: str) -> Iterator[tuple[Value, int]]:
        """What queues say of one name, for all their nodes or some, with those that do."""
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

    def _stated_values(self, queue: QueueView, name: str) -> Hashable:
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
        return _GLUE.union(self._spellings, self._node_values)

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
                masks[answer] = mask_from(numbers)
            answers = sorted(masks, key=_capacity) if ordered else list(masks)
            self._made[key] = [(firsts[answer], masks[answer]) for answer in answers]
        return self._made[key]


def _capacity(answer: Hashable) -> float:
    [number] = cast(tuple[float | None], answer)
    return math.inf if number is None else number
