"""What a queue says about its nodes: attributes that differ from node to node (`NodeAttributes`).

Of such an attribute the queue only knows which values there are; the pilot measures the one of its node.

Source: gLite, "DIY approach" to the selection of worker nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from requirements.errors import InvalidInput, Problem
from requirements.values import Value, as_value, fold, format_value, text_fault

#: One thing that a node may have; None: the node has no such attribute.
Option = Value | None
#: In the configuration it stands where a list of values would.
UNKNOWN = "unknown"
#: Values of one attribute; more are not told apart in flags anyway, `unknown` does.
MAX_OPTIONS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAttributes:
    """What the nodes behind a queue may have, by name."""

    #: Sorted by the folded name. None in place of the options: anything, or nothing of that name.
    declared: tuple[tuple[str, tuple[Option, ...] | None], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.declared)

    def __contains__(self, name: str) -> bool:
        return any(fold(other) == fold(name) for other, _ in self.declared)

    @property
    def names(self) -> tuple[str, ...]:
        """The names as the configuration spells them."""
        return tuple(name for name, _ in self.declared)

    def options(self, name: str) -> tuple[Option, ...] | None:
        """What a node may have of that name; None: unknown, or no attribute of the nodes at all."""
        return next((options for other, options in self.declared if fold(other) == fold(name)), None)

    def without_these(self, resource: Mapping[str, Value]) -> dict[str, Value]:
        """The parameters of a queue that hold for every node: an attribute of the nodes hides a parameter."""
        hidden = {fold(name) for name in self.names}
        return {name: value for name, value in resource.items() if fold(name) not in hidden}

    def as_json(self) -> dict[str, object]:
        """The same as it stands in a configuration; `parse_node_attributes` reads it."""
        return {name: UNKNOWN if options is None else list(options) for name, options in self.declared}


#: A queue whose nodes are all the same.
NO_NODE_ATTRIBUTES = NodeAttributes()


def parse_node_attributes(raw: object, path: str = "NodeAttributes") -> NodeAttributes:
    """What a configuration says under `NodeAttributes`.

    Args:
        raw: `{Name: [values] | unknown}`; a value is text, a number, a boolean, a list of these (a node has
            several) or null (some nodes have none).
        path: Where it stands, for the messages.

    Raises:
        InvalidInput: With every problem.
    """
    if not isinstance(raw, Mapping):
        raise InvalidInput([Problem(path=path, message=f"{raw!r}, allowed is {{Name: [values] or unknown}}")])
    problems: list[Problem] = []
    declared: dict[str, tuple[str, tuple[Option, ...] | None]] = {}
    for name, said in raw.items():
        try:
            options = _parse_attribute(name, said, f"{path}/{name}")
        except InvalidInput as error:
            problems.extend(error.problems)
            continue
        first, _ = declared.setdefault(fold(name), (name, options))
        if first != name:
            problems.append(Problem(path=f"{path}/{name}", message=f"named twice, the other time as {first}"))
    if problems:
        raise InvalidInput(problems)
    return NodeAttributes(declared=tuple(declared[folded] for folded in sorted(declared)))


def _parse_attribute(name: object, said: object, path: str) -> tuple[Option, ...] | None:
    fault = None
    if not isinstance(name, str) or not name.strip():
        fault = f"{name!r} is no name"
    elif text_fault(name):
        fault = text_fault(name)
    elif not isinstance(said, list | tuple) and said != UNKNOWN:
        fault = f"{said!r}, allowed is a list of the values that its nodes may have, or {UNKNOWN}"
    elif not said:
        fault = f"the list is empty; for nodes of which nothing is known it is {UNKNOWN}"
    elif said != UNKNOWN and len(said) > MAX_OPTIONS:
        fault = f"{len(said)} values, allowed are {MAX_OPTIONS}; beyond it is {UNKNOWN}"
    if fault:
        raise InvalidInput([Problem(path=path, message=fault)])
    return None if isinstance(said, str) else _options(said, path)


def _options(said: object, path: str) -> tuple[Option, ...]:
    options: list[Option] = []
    problems: list[Problem] = []
    for position, item in enumerate(said if isinstance(said, list | tuple) else ()):
        try:
            option = None if item is None else as_value(item, f"{path}[{position}]")
        except InvalidInput as error:
            problems.extend(error.problems)
            continue
        if not any(_identical(option, other) for other in options):
            options.append(option)
    if problems:
        raise InvalidInput(problems)
    return tuple(options)


def merge_facts(
    resource: Mapping[str, Value], nodes: NodeAttributes, facts: Mapping[str, Value]
) -> dict[str, Value]:
    """A queue with the facts of one node: what a whole requirement is evaluated on.

    Only facts that the queue declares count; one that it declares and the node does not state is absent.
    """
    stated = {name: fact for name in nodes.names if (fact := _find_fact(facts, name)) is not None}
    return nodes.without_these(resource) | stated


def format_options(options: tuple[Option, ...] | None) -> str:
    """What nodes may have, for a person to read."""
    return UNKNOWN if options is None else ", ".join(format_option(option) for option in options)


def format_option(option: Option) -> str:
    """One thing that a node may have, for a person to read."""
    if option is None:
        return "none"
    return f"[{format_value(option)}]" if isinstance(option, tuple) else format_value(option)


def _find_fact(facts: Mapping[str, Value], name: str) -> Option:
    return next((fact for other, fact in facts.items() if fold(other) == fold(name)), None)


def _identical(one: Option, other: Option) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)
