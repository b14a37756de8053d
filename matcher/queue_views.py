"""One queue as a VO gets it, with all that an explanation looks at."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cs_config import admissions, bounds
from cs_config.address import QueueAddress
from cs_config.admission import Admission
from cs_config.configuration import Configuration
from cs_config.operations import operations
from matcher import offers, parts
from matcher.parts import Kind
from matcher.pilot_words import LARGEST
from matcher.resource import Resource
from requirements.errors import InvalidResource
from requirements.nodes import NO_NODE_ATTRIBUTES, NodeAttributes
from requirements.values import Value, exact, fold, shown

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
        return admissions.of(self.config, self.address, self.vo)

    @cached_property
    def expired(self) -> Mapping[str, Value]:
        """What it had until it expired, by folded name."""
        return {name: each.value for name, each in self.config.expired(self.address, self.vo).items()}

    @cached_property
    def resource(self) -> Resource:
        """What a pilot there offers."""
        place = {"sites": _named(self.address.site), "grid_ces": _named(self.address.ce)}
        return replace(self.offered, **place)  # type: ignore[arg-type]  # both are sets of names


def of(config: Configuration, vo: str, addresses: Sequence[QueueAddress]) -> tuple[QueueView, ...]:
    """What a VO gets of some queues, in their order."""
    offered: dict[Hashable, tuple[Resource, str | None]] = {}
    read: dict[str, bool] = {}  # whether an offer is made of this name
    managed = operations(config, vo).managed_types
    found = []
    for address in addresses:
        values = config.values(address, vo)
        for name in values.keys() - read.keys():
            read[name] = fold(name) in offers.READ
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
        return offers.offered(values, managed), None
    except InvalidResource as error:
        return _ANYTHING, "; ".join(f"{each.path}: {each.message}" for each in error.problems)


def shows(kind: Kind, queue: QueueView) -> str | None:
    """What a queue has of what a condition is about, for a person; None: it says nothing."""
    if kind in (parts.SITE, parts.BANNED_SITES):
        return queue.address.site
    if kind is parts.GRID_CE:
        return queue.address.ce
    name = "Tag" if kind is parts.WHOLE_NODE else kind.requirement
    value = getattr(queue.resource, kind.looks[0])
    if isinstance(value, frozenset):
        spelled = next((v for n, v in queue.values.items() if fold(n) == fold(name.removesuffix("s"))), None)
        return None if spelled is None else shown(spelled)
    return None if value is None else shown(value)


def _named(name: str) -> frozenset[str]:
    return frozenset({fold(name)})
