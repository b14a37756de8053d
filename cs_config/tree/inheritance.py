"""Inheritance: the effective parameters of a queue for a VO from the levels of the tree.

Source: RFC #7 (a queue inherits from its CE and its site), RFC #5 (values of a VO).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cs_config.tree import expiry, node_attributes
from cs_config.tree.levels import Level, Parameter
from requirements.values import Scalar, Value, fold, key

#: Sets: their levels are united instead of overriding each other.
UNITED = frozenset({"tag", "requiredtag"})


def effective_parameters(levels: Sequence[Level], vo: str) -> dict[str, Parameter]:
    """The effective parameters of a VO below all of `levels`, by name.

    Args:
        levels: From the site down.
        vo: In lower case.
    """
    found: dict[str, Parameter] = {}
    for level in levels:
        for name, parameter in level.settings(vo).items():
            if parameter is None:
                node_attributes.remove_inherited(name, found)
            elif name in UNITED:
                found[name] = _unite(found.get(name), parameter)
            else:
                found[name] = parameter
                found.pop(node_attributes.find_counterpart(name), None)
    return {parameter.name: parameter for parameter in found.values()}


def parameter_values(parameters: Mapping[str, Parameter]) -> dict[str, Value]:
    """Values of effective parameters that are the same for all nodes, by name."""
    return {
        name: each.value
        for name, each in parameters.items()
        if each.is_own and fold(name) not in expiry.TIMES
    }


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
    return not any(_is_off(level.settings(vo).get("enabled")) for level in levels)


def admits_vo(levels: Sequence[Level], vo: str) -> bool:
    """Whether the VO lists admit the VO.

    The nearest `VO` list decides: an empty one admits no VO, and without any list all VOs are admitted.
    """
    lists = [settings["vo"] for level in levels if "vo" in (settings := level.settings(vo))]
    allowed = lists[-1] if lists else None
    return allowed is None or vo in {fold(str(name)) for name in as_tuple(allowed.value)}


def _is_off(parameter: Parameter | None) -> bool:
    return parameter is not None and parameter.value is False
