"""Attributes that differ between the nodes of a queue (`NodeAttributes`).

The queue states only which values occur; the pilot measures that of its node, or the site advertises one.

Source: gLite, "DIY approach" to the selection of worker nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from requirements.errors import InvalidInput, Problem
from requirements.values import Value, as_value, fold, format_value, text_fault

#: A possible value on a node; None: the node does not have the attribute.
Option = Value | None
#: In the configuration, in place of a list of values.
UNKNOWN = "unknown"
#: In place of a list of values: the site, CE or queue advertises the value, for all its nodes.
ADVERTISED = "advertised"
#: Values of one attribute; for more, `unknown` is as good.
MAX_OPTIONS = 1_000
_WORDS = (UNKNOWN, ADVERTISED)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAttributes:
    """Possible values on the nodes of a queue, by attribute."""

    #: Sorted by the folded name. None in place of the options: any value, or none.
    declared: tuple[tuple[str, tuple[Option, ...] | None], ...] = ()
    #: Folded names whose value is advertised, among those with any value.
    advertised: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.declared)

    def __contains__(self, name: str) -> bool:
        return any(fold(other) == fold(name) for other, _ in self.declared)

    @property
    def names(self) -> tuple[str, ...]:
        """The names as spelled in the configuration."""
        return tuple(name for name, _ in self.declared)

    def options(self, name: str) -> tuple[Option, ...] | None:
        """Return the possible values of an attribute; None: unknown, or not an attribute of the nodes."""
        return next((options for other, options in self.declared if fold(other) == fold(name)), None)

    def without_these(self, resource: Mapping[str, Value]) -> dict[str, Value]:
        """Return the queue's parameters that hold for every node: node attributes hide parameters."""
        hidden = {fold(name) for name in self.names}
        return {name: value for name, value in resource.items() if fold(name) not in hidden}

    def describe(self, name: str) -> str:
        """Format the possible values of an attribute for people."""
        return ADVERTISED if fold(name) in self.advertised else _format_options(self.options(name))


#: For queues with uniform nodes.
NO_NODE_ATTRIBUTES = NodeAttributes()


def parse_node_attributes(raw: object, path: str = "NodeAttributes") -> NodeAttributes:
    """Parse the section `NodeAttributes` of the configuration: `{Name: [values] | unknown | advertised}`.

    A value is text, a number, a boolean, a list of these (a node has several) or null (some nodes have none).

    Raises:
        InvalidInput: With every problem.
    """
    if not isinstance(raw, Mapping):
        raise InvalidInput(
            [Problem(path=path, message=f"{raw!r}, allowed is {{Name: [values], {UNKNOWN} or {ADVERTISED}}}")]
        )
    problems: list[Problem] = []
    declared: dict[str, tuple[str, tuple[Option, ...] | None]] = {}
    for name, stated in raw.items():
        try:
            options = _parse_attribute(name, stated, f"{path}/{name}")
        except InvalidInput as error:
            problems.extend(error.problems)
            continue
        first, _ = declared.setdefault(fold(name), (name, options))
        if first != name:
            problems.append(Problem(path=f"{path}/{name}", message=f"named twice, the other time as {first}"))
    if problems:
        raise InvalidInput(problems)
    return NodeAttributes(
        declared=tuple(declared[folded] for folded in sorted(declared)),
        advertised=frozenset(fold(str(name)) for name, stated in raw.items() if stated == ADVERTISED),
    )


def _parse_attribute(name: object, stated: object, path: str) -> tuple[Option, ...] | None:
    fault = None
    if not isinstance(name, str) or not name.strip():
        fault = f"{name!r} is not a name"
    elif text_fault(name):
        fault = text_fault(name)
    elif not isinstance(stated, list | tuple) and stated not in _WORDS:
        fault = (
            f"{stated!r}, allowed is a list of the values that its nodes may have, {UNKNOWN} or {ADVERTISED}"
        )
    elif not stated:
        fault = f"the list is empty; if the values are not known, write {UNKNOWN}"
    elif stated not in _WORDS and len(stated) > MAX_OPTIONS:
        fault = f"{len(stated)} values, allowed are {MAX_OPTIONS}; for more, write {UNKNOWN}"
    if fault:
        raise InvalidInput([Problem(path=path, message=fault)])
    return None if isinstance(stated, str) else _options(stated, path)


def _options(stated: object, path: str) -> tuple[Option, ...]:
    options: list[Option] = []
    problems: list[Problem] = []
    for position, item in enumerate(stated if isinstance(stated, list | tuple) else ()):
        try:
            option = None if item is None else as_value(item, f"{path}[{position}]")
        except InvalidInput as error:
            problems.extend(error.problems)
            continue
        if not any(type(option) is type(other) and repr(option) == repr(other) for other in options):
            options.append(option)
    if problems:
        raise InvalidInput(problems)
    return tuple(options)


def merge_facts(
    resource: Mapping[str, Value], nodes: NodeAttributes, facts: Mapping[str, Value]
) -> dict[str, Value]:
    """Combine a queue's parameters with the facts of one node.

    Only facts that the queue declares count; a declared attribute without a fact is absent.
    """
    stated = {
        name: next((fact for other, fact in facts.items() if fold(other) == fold(name)), None)
        for name in nodes.names
    }
    return nodes.without_these(resource) | {name: fact for name, fact in stated.items() if fact is not None}


def _format_options(options: tuple[Option, ...] | None) -> str:
    return UNKNOWN if options is None else ", ".join(format_option(option) for option in options)


def format_option(option: Option) -> str:
    """Format one possible value for people."""
    if option is None:
        return "none"
    return f"[{format_value(option)}]" if isinstance(option, tuple) else format_value(option)
