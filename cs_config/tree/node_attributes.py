"""`NodeAttributes` of a site, CE or queue: attributes that differ between nodes, with possible values.

Each attribute is inherited by its name like a parameter, and stored among the parameters as
`NodeAttributes/<Name>`.

Source: gLite's forwarding of requirements to the batch system.
"""

from collections.abc import Iterable
from typing import Final

from cs_config.source.sections import Leaf, Section
from cs_config.tree import parameters as tree_parameters
from cs_config.tree.levels import Parameter
from cs_config.tree.parameters import ParameterReader
from requirements.errors import InvalidInput, did_you_mean
from requirements.nodes.node_attributes import (
    UNKNOWN,
    NodeAttributes,
    Option,
    format_option,
    parse_node_attributes,
)
from requirements.values import Value, fold

SECTION: Final = "NodeAttributes"
_FOLDED: Final = fold(SECTION)
#: Access to a queue is decided before a job reaches its nodes.
_NEVER: Final = frozenset({"enabled", "vo"})


def read_attributes(
    into: dict[str, Parameter | None],
    entry: Leaf | Section,
    parameters: ParameterReader,
    *,
    path: str,
    level: str,
) -> None:
    """Add each attribute to the parameters; None for one that is removed.

    Args:
        into: The parameters of the level.
        entry: The value of `NodeAttributes`; an empty value removes all inherited attributes.
        parameters: Parses names and values, and collects problems.
        path: Path of the node, or of its VO section.
        level: Name of the level in origins.
    """
    below = f"{path}/{SECTION}"
    if isinstance(entry, Section):
        for name, each in entry.entries.items():
            if parameters.is_name(name, f"{below}/{name}", each.line):
                _read_attribute(into, name, each, parameters, path=below, level=level)
    elif entry.value is None:
        into[_FOLDED] = None
    else:
        message = f"{entry.value!r:.60} is a value, a section is needed here: {{OS: [el8, el9]}}"
        parameters.error(below, entry.line, message)


def _read_attribute(
    into: dict[str, Parameter | None],
    name: str,
    entry: Leaf | Section,
    parameters: ParameterReader,
    *,
    path: str,
    level: str,
) -> None:
    folded, below = f"{_FOLDED}/{fold(name)}", f"{path}/{name}"
    if isinstance(entry, Leaf) and entry.value is None:
        into[folded] = None
        return
    attribute = _attribute(name, entry, parameters, below)
    if attribute is not None:
        into[folded] = Parameter(
            name=f"{SECTION}/{name}",
            value=_format_options(attribute.options(name)),
            level=level,
            below=path.removesuffix(f"/{SECTION}"),
            file=parameters.file,
            line=entry.line,
            node_attribute=attribute,
        )


def _attribute(
    name: str, entry: Leaf | Section, parameters: ParameterReader, path: str
) -> NodeAttributes | None:
    """One attribute; None, and a problem, if it is invalid."""
    if fold(name) in _NEVER:
        parameters.error(path, entry.line, f"{name} is an access rule and cannot differ between nodes")
        return None
    options = entry.value if isinstance(entry, Leaf) else "a section"
    try:
        found = parse_node_attributes({name: options}, path.removesuffix(f"/{name}"))
    except InvalidInput as error:
        meant = did_you_mean(options, [UNKNOWN]) if isinstance(options, str) else None
        for problem in error.problems:
            parameters.error(problem.path, entry.line, problem.message, meant)
        return None
    faults = [fault for option in found.options(name) or () if (fault := _fault(name, option))]
    for fault in faults:
        parameters.error(path, entry.line, fault)
    return None if faults else found


def _fault(name: str, option: Option) -> str | None:
    """The problem of one value of a node attribute, if any."""
    if isinstance(option, str) and fold(option) == UNKNOWN:
        return f"{option} is no value of a node; in place of the list it means that the values are unknown"
    return None if option is None else tree_parameters.find_fault(fold(name), option)


def _format_options(options: tuple[Option, ...] | None) -> Value:
    return (
        UNKNOWN
        if options is None
        else tuple(
            format_option(option) if option is None or isinstance(option, tuple) else option
            for option in options
        )
    )


def list_attributes(parameters: Iterable[Parameter]) -> NodeAttributes:
    """All node attributes among effective parameters."""
    declared = {
        fold(name): (name, options)
        for parameter in parameters
        if parameter.node_attribute is not None
        for name, options in parameter.node_attribute.declared
    }
    return NodeAttributes(declared=tuple(declared[folded] for folded in sorted(declared)))


def find_counterpart(folded: str) -> str:
    """The node attribute of a parameter's name, and the reverse: a queue has only one of the two."""
    inner = folded.removeprefix(f"{_FOLDED}/")
    return inner if inner != folded else f"{_FOLDED}/{folded}"


def remove_inherited(folded: str, found: dict[str, Parameter]) -> None:
    """Remove what an empty parameter of this name removes: itself, or all node attributes."""
    found.pop(folded, None)
    if folded == _FOLDED:
        for name in [name for name in found if name.startswith(f"{_FOLDED}/")]:
            del found[name]
