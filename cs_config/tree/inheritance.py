"""The levels of the resource tree, and the effective parameters that a queue inherits from them for a VO.

Source: RFC #7 (a queue inherits from its CE and its site), RFC #5 (values of a VO).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from requirements.nodes.node_attributes import NodeAttributes
from requirements.nodes.site_mapping import SiteMapping
from requirements.values import Scalar, Value, fold, key

UPDATE_TIME: Final = "update_time"
EXPIRY_TIME: Final = "expiry_time"
#: Attributes of the ad itself: requirements cannot refer to them.
TIMES: Final = frozenset({UPDATE_TIME, EXPIRY_TIME})
#: The section whose attributes are stored among the parameters as `NodeAttributes/<Name>`.
NODE_ATTRIBUTES: Final = "NodeAttributes"
_OF_NODES: Final = fold(NODE_ATTRIBUTES)


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


#: Sets: their levels are united instead of overriding each other.
UNITED = frozenset({"tag", "requiredtag"})


def effective_parameters(levels: Sequence[Level], vo: str) -> dict[str, Parameter]:
    """The effective parameters of a VO (lower case) below all levels, from the site down, by name."""
    found: dict[str, Parameter] = {}
    for level in levels:
        for name, parameter in level.settings(vo).items():
            if parameter is None:
                _remove_inherited(name, found)
            elif name in UNITED:
                found[name] = _unite(found.get(name), parameter)
            else:
                found[name] = parameter
                found.pop(_find_counterpart(name), None)
    return {parameter.name: parameter for parameter in found.values()}


def parameter_values(parameters: Mapping[str, Parameter]) -> dict[str, Value]:
    """Values of effective parameters that are the same for all nodes, by name."""
    return {name: each.value for name, each in parameters.items() if each.is_own and fold(name) not in TIMES}


def _unite(above: Parameter | None, here: Parameter) -> Parameter:
    if above is None:
        return replace(here, value=_unique(as_tuple(here.value)))
    value = _unique((*as_tuple(above.value), *as_tuple(here.value)))
    return replace(here, value=value, parts=(*(above.parts or (above,)), here))


def _unique(values: Iterable[Scalar]) -> tuple[Scalar, ...]:
    """Each value once, in the order and spelling of its first occurrence."""
    first: dict[tuple[int, float, str], Scalar] = {}
    for value in values:
        first.setdefault(key(value), value)
    return tuple(first.values())


def as_tuple(value: Value) -> tuple[Scalar, ...]:
    """A list as a tuple, anything else as a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def is_usable(levels: Sequence[Level], vo: str) -> bool:
    """Whether the VO may use a queue below all of `levels` now."""
    return is_enabled(levels, vo) and admits_vo(levels, vo)


def is_enabled(levels: Sequence[Level], vo: str) -> bool:
    """Whether all levels are enabled: `Enabled: false` at any level disables everything below."""
    return find_switch(levels, vo) is None


def find_switch(levels: Sequence[Level], vo: str) -> Parameter | None:
    """The first value that disables what is below it; None: there is none."""
    stated = (level.settings(vo).get("enabled") for level in levels)
    return next((each for each in stated if each is not None and each.value is False), None)


def admits_vo(levels: Sequence[Level], vo: str) -> bool:
    """Whether the VO lists admit the VO.

    The nearest `VO` list decides: an empty one admits no VO, and without any list all VOs are admitted.
    """
    lists = [settings["vo"] for level in levels if "vo" in (settings := level.settings(vo))]
    allowed = lists[-1] if lists else None
    return allowed is None or vo in {fold(str(name)) for name in as_tuple(allowed.value)}


def list_attributes(parameters: Iterable[Parameter]) -> NodeAttributes:
    """All node attributes among effective parameters."""
    found = [each.node_attribute for each in parameters if each.node_attribute is not None]
    declared = {fold(name): (name, options) for each in found for name, options in each.declared}
    return NodeAttributes(
        declared=tuple(declared[folded] for folded in sorted(declared)),
        advertised=frozenset(name for each in found for name in each.advertised),
    )


def _find_counterpart(folded: str) -> str:
    """The node attribute of a parameter's name, and the reverse: a queue has only one of the two."""
    inner = folded.removeprefix(f"{_OF_NODES}/")
    return inner if inner != folded else f"{_OF_NODES}/{folded}"


def _remove_inherited(folded: str, found: dict[str, Parameter]) -> None:
    """Remove what an empty parameter of this name removes: itself, or all node attributes."""
    found.pop(folded, None)
    if folded == _OF_NODES:
        for name in [name for name in found if name.startswith(f"{_OF_NODES}/")]:
            del found[name]
