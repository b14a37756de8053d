"""One level of the resource tree: the settings of a site, a CE or a queue itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.values import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One value of a resource with its origin."""

    name: str  #: as spelled in the text
    value: Value
    level: str  #: `Site`, `CE` or `Queue`; `CE VOs/cms` for the value of a VO
    below: str  #: path of its node, or of the VO section there
    file: str
    line: int
    parts: "tuple[Parameter, ...]" = ()  #: of a set united from several levels, from the site down
    node_attribute: NodeAttributes | None = None  #: the attribute, if its value differs from node to node
    forwarding: SiteMapping | None = None  #: translation of node attributes for the batch system

    @property
    def path(self) -> str:
        """The path of the parameter: `Resources/Sites/…/MaxRAM`."""
        return f"{self.below}/{self.name}"

    @property
    def is_own(self) -> bool:
        """Whether it is an ordinary parameter with one value for all nodes."""
        return self.node_attribute is None and self.forwarding is None


#: Folded name to parameter; None removes the value of the levels above.
Settings = Mapping[str, Parameter | None]


_NOTHING: Mapping[str, tuple[Parameter, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The settings of one node of the tree, for all VOs and for single VOs."""

    path: str
    plain: Settings
    by_vo: Mapping[str, Settings]  #: VO in lower case
    #: Expired settings, under the VO or the empty name; see `expiry`.
    expired: Mapping[str, tuple[Parameter, ...]] = field(default_factory=lambda: _NOTHING)

    def settings(self, vo: str) -> Settings:
        """The settings of a VO here: its own values over the plain ones."""
        own = self.by_vo.get(vo)
        if not own:
            return self.plain
        # The VO's own last: of a parameter and a node attribute of one name the later one is effective.
        return {name: each for name, each in self.plain.items() if name not in own} | dict(own)
