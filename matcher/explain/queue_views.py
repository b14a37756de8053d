"""Queues as one VO gets them, with what a pilot there offers."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from cs_config.options.operations import options_for
from cs_config.tree import glue
from cs_config.tree.address import QueueAddress
from cs_config.tree.admission import Admission
from cs_config.tree.configuration import Configuration
from cs_config.tree.inheritance import as_tuple
from cs_config.tree.storage import list_near
from matcher.conditions import CONDITIONS
from matcher.request import queue_offer
from matcher.request.match_request import LARGEST
from requirements.errors import InvalidResource
from requirements.nodes.node_attributes import NO_NODE_ATTRIBUTES, NodeAttributes
from requirements.resource import Resource
from requirements.values import Value, exact, fold, lookup

_CAPACITIES = {each.capacity for each in CONDITIONS} & {each.name for each in fields(Resource)}
#: Offer of a queue with contradictory parameters: only the contradiction itself is reported.
_ANYTHING = Resource(tags=None, **dict.fromkeys(_CAPACITIES, LARGEST))  # type: ignore[arg-type]


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

    @property
    def site(self) -> str:
        """The name of its site."""
        return self.address.site

    @property
    def ce(self) -> str:
        """The name of its CE."""
        return self.address.ce

    def list_texts(self, parameter: str) -> list[str]:
        """The values of a parameter as texts."""
        value = lookup(self.values, parameter)
        return [] if value is None else [str(item) for item in as_tuple(value)]


def build_views(config: Configuration, vo: str, addresses: Sequence[QueueAddress]) -> tuple[QueueView, ...]:
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
                plain={**dict(glue.nested_values(values)), **glue.read_numbers(values)},
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
