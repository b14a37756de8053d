"""The sections of a site, CE or queue about the nodes behind it: `NodeAttributes` and `Forwarding`.

`NodeAttributes` lists attributes that differ between nodes, with possible values. Each is inherited by its
name like a parameter, and stored among the parameters as `NodeAttributes/<Name>`. `Forwarding` translates
node requirements for the batch system; the nearest level with the section decides about the whole of it.

Source: gLite's forwarding of requirements to the batch system.
"""

import json
from typing import Final

from cs_config.source import yaml_reader
from cs_config.source.sections import Leaf, Section, find_line, to_plain
from cs_config.tree import parameters as tree_parameters
from cs_config.tree.inheritance import NODE_ATTRIBUTES, Parameter
from cs_config.tree.parameters import ParameterReader
from requirements.errors import InvalidInput, did_you_mean
from requirements.nodes.node_attributes import (
    ADVERTISED,
    UNKNOWN,
    NodeAttributes,
    Option,
    format_option,
    parse_node_attributes,
)
from requirements.nodes.site_mapping import parse_mapping
from requirements.values import Scalar, Value, fold

_FOLDED: Final = fold(NODE_ATTRIBUTES)
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
    """Add each attribute to the parameters; None for one, or the section, that is removed."""
    below = f"{path}/{NODE_ATTRIBUTES}"
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
        file, line = parameters.origins.find(entry.line)
        into[folded] = Parameter(
            name=f"{NODE_ATTRIBUTES}/{name}",
            value=_format_options(attribute, name),
            level=level,
            below=path.removesuffix(f"/{NODE_ATTRIBUTES}"),
            file=file,
            line=line,
            node_attribute=attribute,
        )


def _attribute(
    name: str, entry: Leaf | Section, parameters: ParameterReader, path: str
) -> NodeAttributes | None:
    if fold(name) in _NEVER:
        parameters.error(path, entry.line, f"{name} is an access rule and cannot differ between nodes")
        return None
    options = entry.value if isinstance(entry, Leaf) else "a section"
    try:
        found = parse_node_attributes({name: options}, path.removesuffix(f"/{name}"))
    except InvalidInput as error:
        meant = did_you_mean(options, [UNKNOWN, ADVERTISED]) if isinstance(options, str) else None
        for problem in error.problems:
            parameters.error(problem.path, entry.line, problem.message, meant)
        return None
    faults = [fault for option in found.options(name) or () if (fault := _fault(name, option))]
    for fault in faults:
        parameters.error(path, entry.line, fault)
    for option in found.options(name) or ():
        if option is not None:
            parameters.check_comparison(option, path, fold(name), entry.line)
    return None if faults else found


def _fault(name: str, option: Option) -> str | None:
    if isinstance(option, str) and fold(option) in (UNKNOWN, ADVERTISED):
        return (
            f"{option} is not a value of a node; in place of the list it means that the values are {option}"
        )
    return None if option is None else tree_parameters.find_fault(fold(name), option)


def _format_options(attribute: NodeAttributes, name: str) -> Value:
    if (options := attribute.options(name)) is None:
        return attribute.describe(name)
    return tuple(format_option(each) if each is None or isinstance(each, tuple) else each for each in options)


FORWARDING: Final = "Forwarding"
#: Subsections whose names are values of nodes.
_KEYED_BY_VALUES: Final = ("values", "features")


def read_forwarding(
    into: dict[str, Parameter | None],
    entry: Leaf | Section,
    parameters: ParameterReader,
    *,
    path: str,
    level: str,
) -> None:
    """Add the section to the parameters; None if it is empty, which removes the inherited one."""
    below = f"{path}/{FORWARDING}"
    if isinstance(entry, Leaf):
        into[fold(FORWARDING)] = None
        if entry.value is not None:
            message = f"{entry.value!r:.60} is a value, a section is needed here: {{Vocabulary: Slurm}}"
            parameters.error(below, entry.line, message)
        return
    try:
        mapping = parse_mapping({name: _raw(each, name) for name, each in entry.entries.items()}, below)
    except InvalidInput as error:
        for problem in error.problems:
            inside = tuple(problem.path.removeprefix(f"{below}/").split("/"))
            parameters.error(problem.path, find_line(entry, inside), problem.message, problem.suggestion)
        return
    file, line = parameters.origins.find(entry.line)
    into[fold(FORWARDING)] = Parameter(
        name=FORWARDING,
        value=json.dumps(to_plain(entry), ensure_ascii=False, sort_keys=True),
        level=level,
        below=path,
        file=file,
        line=line,
        forwarding=mapping,
    )


def _raw(entry: Leaf | Section, *names: str) -> object:
    """The entry as plain data; names that stand for values of nodes become these values."""
    if isinstance(entry, Leaf):
        return entry.value
    if names[:1] == ("Attributes",) and len(names) == 3 and names[2] in _KEYED_BY_VALUES:
        return {_value_of(ours): to_plain(theirs) for ours, theirs in entry.entries.items()}
    return {name: _raw(below, *names, name) for name, below in entry.entries.items()}


def _value_of(name: str) -> Scalar:
    """Parse a name as a value: `true`, `8`. A text that looks like one is never sent to a batch system."""
    try:
        value = yaml_reader.resolve_word(name) if name else None
    except ValueError:
        value = None
    return name if value is None else value
