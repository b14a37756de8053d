"""One level of the resource tree: what a site, a CE or a queue itself says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One value of a resource with the place it comes from."""

    name: str  #: as it is spelled there
    value: Value
    level: str  #: `Site`, `CE` or `Queue`; `CE VOs/cms` for the value of a VO
    below: str  #: `Resources/Sites/…`: its node, or the VO of that
    file: str
    line: int
    parts: "tuple[Parameter, ...]" = ()  #: of a set that unites several levels, from the site down
    node_attribute: NodeAttributes | None = None  #: this one, if it differs from node to node
    forwarding: SiteMapping | None = None  #: how node attributes are said to the batch system

    @property
    def path(self) -> str:
        """Where it stands: `Resources/Sites/…/MaxRAM`."""
        return f"{self.below}/{self.name}"

    @property
    def is_own(self) -> bool:
        """Whether it says something of all nodes alike."""
        return self.node_attribute is None and self.forwarding is None


#: Folded name to parameter; None takes away what the levels above say.
Settings = Mapping[str, Parameter | None]


_NOTHING: Mapping[str, tuple[Parameter, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What one node of the tree says for everybody, and for single VOs."""

    path: str
    plain: Settings
    by_vo: Mapping[str, Settings]  #: VO in lower case
    #: What would stand here had it not expired, for everybody under the empty name; see `freshness`.
    expired: Mapping[str, tuple[Parameter, ...]] = field(default_factory=lambda: _NOTHING)

    def settings(self, vo: str) -> Settings:
        """What holds here for a VO: its own values over the plain ones."""
        own = self.by_vo.get(vo)
        if not own:
            return self.plain
        # Its own last: of a parameter and a node attribute of one name the later one holds.
        return {name: each for name, each in self.plain.items() if name not in own} | dict(own)
