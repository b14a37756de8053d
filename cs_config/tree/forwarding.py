"""`Forwarding` of a site, CE or queue: translation of node requirements for its batch system.

The nearest level with the section decides about the whole of it.
"""

import json
from collections.abc import Iterable
from typing import Final

from cs_config.source import yaml_reader
from cs_config.source.sections import Leaf, Section, find_line, to_plain
from cs_config.tree.levels import Parameter
from cs_config.tree.parameters import ParameterReader
from requirements.errors import InvalidInput
from requirements.nodes.site_mapping import SiteMapping, parse_mapping
from requirements.values import Scalar, fold

SECTION: Final = "Forwarding"
#: Subsections whose names are values of nodes.
_OF_VALUES: Final = ("values", "features")


def read_forwarding(
    into: dict[str, Parameter | None],
    entry: Leaf | Section,
    parameters: ParameterReader,
    *,
    path: str,
    level: str,
) -> None:
    """Add the section to the parameters; None if it is empty, which removes the inherited one."""
    below = f"{path}/{SECTION}"
    if isinstance(entry, Leaf):
        into[fold(SECTION)] = None
        if entry.value is not None:
            message = f"{entry.value!r:.60} is a value, a section is needed here: {{Vocabulary: Slurm}}"
            parameters.error(below, entry.line, message)
        return
    try:
        mapping = parse_mapping(_raw(entry), below)
    except InvalidInput as error:
        for problem in error.problems:
            inside = tuple(problem.path.removeprefix(f"{below}/").split("/"))
            parameters.error(problem.path, find_line(entry, inside), problem.message, problem.suggestion)
        return
    into[fold(SECTION)] = Parameter(
        name=SECTION,
        value=json.dumps(to_plain(entry), ensure_ascii=False, sort_keys=True),
        level=level,
        below=path,
        file=parameters.file,
        line=entry.line,
        forwarding=mapping,
    )


def _raw(section: Section) -> dict[str, object]:
    """As plain data; names that stand for values of nodes become these values."""
    return {
        name: _attributes(below) if name == "Attributes" else to_plain(below)
        for name, below in section.entries.items()
    }


def _attributes(entry: Leaf | Section) -> object:
    if isinstance(entry, Leaf):
        return entry.value
    return {name: _attribute(below) for name, below in entry.entries.items()}


def _attribute(entry: Leaf | Section) -> object:
    if isinstance(entry, Leaf):
        return entry.value
    return {
        name: {_value(ours): to_plain(theirs) for ours, theirs in below.entries.items()}
        if name in _OF_VALUES and isinstance(below, Section)
        else to_plain(below)
        for name, below in entry.entries.items()
    }


def _value(name: str) -> Scalar:
    """Parse a name as a value: `true`, `8`. A text that looks like one is never sent to a batch system."""
    try:
        value = yaml_reader.resolve_word(name) if name else None
    except ValueError:
        value = None
    return name if value is None else value


def find_mapping(parameters: Iterable[Parameter]) -> SiteMapping | None:
    """The mapping among effective parameters, if any."""
    return next((each.forwarding for each in parameters if each.forwarding is not None), None)
