"""Bulk edits: one edit for many places of the tree, by wildcards, conditions and additions to lists.

`Resources/Sites/*/VOs/cms/SoftwareTag+=v7` adds to the list at every site what the VO gets there already.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from cs_config.options.operations import options_for
from cs_config.source.sections import as_list
from cs_config.tree import glue, inheritance
from cs_config.tree.address import NODES, node_depth
from cs_config.tree.configuration import Configuration
from cs_config.versions import patch
from cs_config.versions.diff import ABSENT
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad.expression import parse_expression
from requirements.errors import InvalidRequest, Problem
from requirements.record.record import parse_record
from requirements.values import fold

_WILD: Final = re.compile(r"[*?\[]")
_VOS: Final = "VOs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkEdit:
    """An edit of all paths that match a pattern."""

    pattern: str  #: a path; `*` and `?` stand for characters of one name
    value: object
    operator: str = "="  #: or `+=`, `-=`: add the values to a list, or take them away

    @property
    def is_plain(self) -> bool:
        """Whether it is the edit of a single path."""
        return self.operator == "=" and not has_wildcard(self.pattern)


def has_wildcard(path: str) -> bool:
    """Whether a path is a pattern of many."""
    return _WILD.search(path) is not None


def expand_edits(
    config: Configuration, edits: Sequence[BulkEdit], where: Mapping[str, object] | str = ""
) -> dict[str, object]:
    """The values by path that the edits set; places that have them already are left out.

    `where` selects sites, CEs and queues by effective parameters, as required values or an expression.
    Raises InvalidRequest for a pattern without any place, and for a condition that is no selection.
    """
    values: dict[str, object] = {}
    for edit in edits:
        places = [names for names in _find_places(config, edit.pattern) if _fulfils(config, names, where)]
        if not places:
            condition = " that fulfils the condition" if where else ""
            raise InvalidRequest([Problem(path=edit.pattern, message=f"there is no such place{condition}")])
        for names in places:
            path = "/".join(names)
            before = values.get(path, patch.find_entry(config.tree, names))
            after = edit.value if edit.operator == "=" else _changed_list(config, names, before, edit)
            if after is not ABSENT and (before is ABSENT or before != after):
                values[path] = after
    return values


def _find_places(config: Configuration, pattern: str) -> Iterator[tuple[str, ...]]:
    """The paths of a pattern: up to its last wildcard there are such entries, what follows may be new."""
    parts = tuple(pattern.strip("/").split("/"))
    last = max((position for position, part in enumerate(parts) if _WILD.search(part)), default=-1)

    def walk(here: object, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(names) > last:
            yield (*names, *parts[len(names) :])
        elif isinstance(here, dict):
            part = parts[len(names)]
            for name, below in here.items():
                if fnmatchcase(fold(name), fold(part)) if _WILD.search(part) else name == part:
                    yield from walk(below, (*names, name))

    return walk(config.tree, ())


def _place(names: tuple[str, ...]) -> tuple[int, str]:
    """How many of the names are those of the site, CE or queue of a path, and the VO whose value it is."""
    depth = node_depth(names)
    is_of_vo = depth and names[depth : depth + 1] == (_VOS,) and len(names) > depth + 1
    return depth, fold(names[depth + 1]) if is_of_vo else ""


def _effective(config: Configuration, names: tuple[str, ...]) -> dict[str, inheritance.Parameter]:
    depth, vo = _place(names)
    paths = ["/".join(names[:each]) for each in NODES if each <= depth]
    return inheritance.effective_parameters(
        [config.nodes[each] for each in paths if each in config.nodes], vo
    )


def _fulfils(config: Configuration, names: tuple[str, ...], where: Mapping[str, object] | str) -> bool:
    if not where:
        return True
    depth, vo = _place(names)
    if not depth:
        message = "a condition is for sites, CEs and queues: Resources/Sites/…"
        raise InvalidRequest([Problem(path="/".join(names), message=message)])
    declarations = options_for(config, vo or None).job_description.declarations
    if isinstance(where, str):
        asked: Requirements = parse_expression(where, "where")
    else:
        asked = parse_record(where, declarations, "where")
    parameters = _effective(config, names)
    nodes = inheritance.list_attributes(parameters.values())
    alike = nodes.without_these(inheritance.parameter_values(parameters))
    return evaluator.eligible(asked, glue.build_ad(alike), declarations, nodes)


def _changed_list(config: Configuration, names: tuple[str, ...], before: object, edit: BulkEdit) -> object:
    """The list after an addition or removal; ABSENT: nothing is there to be removed.

    A value replaces what is inherited, so an addition starts from that, but for sets that are united anyway.
    """
    name = fold(names[-1])
    if before is ABSENT and edit.operator == "+=" and name not in inheritance.UNITED:
        found = (
            each for each in _effective(config, names).values() if fold(each.name) == name and each.is_own
        )
        before = next((each.value for each in found), ABSENT)
    if isinstance(before, dict):
        message = f"is a section; {edit.operator} is for lists of values"
        raise InvalidRequest([Problem(path="/".join(names), message=message)])
    listed = list(before) if isinstance(before, tuple) else as_list(before)
    items = [] if before is ABSENT or before is None else listed
    changed = as_list(edit.value)
    if edit.operator == "+=":
        return [*items, *(each for each in changed if each not in items)]
    return ABSENT if before is ABSENT else [each for each in items if each not in changed]
