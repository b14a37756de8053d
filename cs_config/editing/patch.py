"""Edits of single paths, merged with concurrent edits of other paths; of the text of one section; bulk edits.

A bulk edit is one for many places of the tree, by wildcards, conditions and additions to lists:
`Resources/Sites/*/VOs/cms/SoftwareTag+=v7` adds to the list at every site what the VO gets there already.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Final

from pydantic import BaseModel

from cs_config.errors import ConfigError, EditConflict, PathNotFound, one_problem
from cs_config.options.operations import options_for
from cs_config.source import diff, yaml_reader, yaml_writer
from cs_config.source.diff import ABSENT, Difference, Entry, is_equal
from cs_config.source.sections import Section, Tree, as_list, find_line, to_plain
from cs_config.tree import glue, inheritance
from cs_config.tree.address import NODES, node_depth
from cs_config.tree.configuration import Configuration
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad.expression import parse_expression
from requirements.errors import InvalidRequest, Problem, did_you_mean
from requirements.record import parse_record
from requirements.values import Scalar, fold

#: VO sections: removed together with their last entry.
_VOS = "VOs"
#: Name of a section's text in messages.
_TEXT_FILE = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The new value of one path."""

    names: tuple[str, ...]  #: from the top
    value: Entry  #: a scalar, a list or a section; ABSENT: remove the path

    @property
    def path(self) -> str:
        """The names joined by `/`."""
        return "/".join(self.names)


def read_edits(values: Mapping[str, object], removed: Sequence[str] = ()) -> tuple[Edit, ...]:
    """The edits of a request: values by path, from the top, and removed paths.

    Raises InvalidRequest if there is no edit, a path is invalid, or two edits concern the same place.
    """
    entries = [*values.items(), *((path, ABSENT) for path in removed)]
    edits = [
        Edit(names=tuple(path.removeprefix("/").removesuffix("/").split("/")), value=value)
        for path, value in entries
    ]
    problems = [*_invalid_places(edits), *_overlapping(edits)]
    if not edits:
        problems = [Problem(path="set", message="nothing is to be set or removed")]
    if problems:
        raise InvalidRequest(problems)
    return tuple(edits)


def edits_from_differences(found: Iterable[Difference]) -> tuple[dict[str, Entry], list[str]]:
    """Convert differences to arguments of `read_edits`: values by path, and removed paths.

    A difference that concerns several VOs becomes one path for each, so that each is permitted by itself.
    """
    found = [each for difference in found for each in diff.split_by_vo(difference)]
    values = {each.path: each.after for each in found if each.after is not ABSENT}
    return values, [each.path for each in found if each.after is ABSENT]


def _invalid_places(edits: Sequence[Edit]) -> Iterator[Problem]:
    for edit in edits:
        if not all(edit.names):
            message = "is not a path, which is names with / between them: Resources/Sites/LCG.CERN.ch/MaxRAM"
            yield Problem(path=repr(edit.path)[:200], message=message)
        elif _is_too_deep(edit):
            yield Problem(path=edit.path[:200], message=f"nested more than {yaml_reader.MAX_DEPTH} deep")


def _is_too_deep(edit: Edit) -> bool:
    level: list[object] = [edit.value]
    for _ in range(yaml_reader.MAX_DEPTH - len(edit.names) + 1):
        level = [
            below
            for each in level
            if isinstance(each, dict | list)
            for below in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def _overlapping(edits: Sequence[Edit]) -> Iterator[Problem]:
    before: Edit | None = None
    for edit in sorted(edits, key=lambda each: tuple(map(fold, each.names))):
        if before is not None and _is_within(edit.names, before.names):
            yield Problem(path=edit.path, message=f"{before.path} is edited too; edit only one of them")
        else:
            before = edit


def _is_within(names: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    return tuple(map(fold, names[: len(outer)])) == tuple(map(fold, outer))


def respell_edits(tree: Tree, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The edits with existing names spelled as in the tree."""
    spellings: dict[int, dict[str, str]] = {}  # of the names in a section, by its id
    return tuple(replace(edit, names=_respell(tree, edit.names, spellings)) for edit in edits)


def _respell(tree: Tree, names: tuple[str, ...], spellings: dict[int, dict[str, str]]) -> tuple[str, ...]:
    here: Entry = tree
    found = []
    for name in names:
        known = here if isinstance(here, dict) else {}
        if known and name not in known:
            if id(known) not in spellings:
                spellings[id(known)] = {fold(each): each for each in reversed(known)}
            name = spellings[id(known)].get(fold(name), name)
        found.append(name)
        here = known.get(name)
    return tuple(found)


def apply_edits(base: Tree, current: Tree, edits: Sequence[Edit], *, versions: tuple[int, int]) -> Tree:
    """Apply edits, spelled as in `base`, which they were made for, to the current tree.

    Raises ConfigError if a path continues below a value, PathNotFound if there is nothing to remove,
    EditConflict if the same paths were changed in the meantime.
    """
    for edit in edits:
        _check(base, edit)
    conflicts = [found for edit in edits if (found := _conflict(base, current, edit)) is not None]
    if conflicts:
        raise EditConflict(expected=versions[0], current=versions[1], conflicts=conflicts)
    tree = dict(current)
    copies = {id(tree)}
    for edit in edits:
        _set_entry(tree, edit.names, edit.value, copies)
    return tree


def find_entry(tree: Tree, names: Sequence[str]) -> Entry:
    """The entry at a path; ABSENT if there is none."""
    here: Entry = tree
    for name in names:
        if not isinstance(here, dict) or name not in here:
            return ABSENT
        here = here[name]
    return here


def _check(base: Tree, edit: Edit) -> None:
    here: Entry = base
    for depth, name in enumerate(edit.names):
        if isinstance(here, dict) and name in here:
            here = here[name]
            continue
        if not isinstance(here, dict) and here is not None:
            path = "/".join(edit.names[:depth])
            raise one_problem(edit.path, f"{path} is a value, {here!r:.60}, and cannot have entries below it")
        if edit.value is ABSENT:
            of_others = edit.names[depth - 1 : depth] == (_VOS,)
            meant = did_you_mean(name, here if isinstance(here, dict) and not of_others else ())
            raise PathNotFound(edit.path, "/".join((*edit.names[:depth], meant)) if meant else None)
        return


def _conflict(base: Tree, current: Tree, edit: Edit) -> Difference | None:
    """The shortest part of an edit's path that changed in the meantime."""
    for depth in range(1, len(edit.names)):
        names = edit.names[:depth]
        before, now = find_entry(base, names), find_entry(current, names)
        if isinstance(before, dict) and not isinstance(now, dict):
            return Difference(names=names, before={}, after=now)  # its content may be hidden from the editor
    before, now = find_entry(base, edit.names), find_entry(current, edit.names)
    changed = not is_equal(before, now) and not is_equal(now, edit.value)
    return Difference(names=edit.names, before=before, after=now) if changed else None


def _set_entry(
    tree: dict[str, object],
    names: Sequence[str],
    value: Entry,
    copies: set[int],
    *,
    within_vos: bool = False,
) -> None:
    """Change one path of a copied tree; sections below are copied once, before their first change.

    `copies` are the ids of the sections that are copies.
    """
    name, *rest = names
    if rest:
        is_vos, below = name == _VOS, tree.get(name)
        if not isinstance(below, dict) or id(below) not in copies:
            below = dict(below) if isinstance(below, dict) else {}
            copies.add(id(below))
        _set_entry(below, rest, value, copies, within_vos=is_vos)
        # The VO has no values left here.
        value = ABSENT if not below and (is_vos or within_vos) else below
    if value is ABSENT:
        tree.pop(name, None)
    else:
        tree[name] = value


def section_text(tree: Tree, names: Sequence[str]) -> str:
    """The text of the section at a path; empty if the section is missing or empty."""
    entry = find_entry(tree, names)
    return yaml_writer.to_yaml(entry) if isinstance(entry, dict) and entry else ""


def edits_from_text(tree: Tree, names: tuple[str, ...], text: str) -> tuple[Edit, ...]:
    """The edits that make the section equal to a text; an empty text removes the section.

    Lines of a ConfigError are those of the text.
    """
    before = find_entry(tree, names)
    after = to_plain(_read_section(names, text))
    if after == {}:
        return (Edit(names=names, value=ABSENT),) if before is not ABSENT else ()
    if not isinstance(before, dict) or not isinstance(after, dict):
        return (Edit(names=names, value=after),)
    found = diff.compare(before, after)
    return tuple(Edit(names=(*names, *each.names), value=each.after) for each in found)


def _read_section(names: tuple[str, ...], text: str) -> Section:
    if not text.strip():
        return Section(1)
    reading = yaml_reader.read_yaml(text, _TEXT_FILE)
    if reading.problems:
        raise ConfigError(tuple(_place_below(names, each) for each in reading.problems))
    return reading.root


def _place_below(names: tuple[str, ...], problem: Problem) -> Problem:
    path = "/".join(filter(None, (*names, problem.path.strip("/"))))
    return replace(problem, path=path)


def with_lines(problems: Iterable[Problem], names: tuple[str, ...], text: str) -> Iterator[Problem]:
    """The problems with lines of the section's own text; without lines if they are about other sections."""
    placed = [(problem, tuple(problem.path.split("/"))) for problem in problems]
    within = any(path[: len(names)] == names for _, path in placed)
    root = yaml_reader.read_yaml(text, _TEXT_FILE).root if within else Section(1)
    for problem, path in placed:
        line = find_line(root, path[len(names) :]) if path[: len(names)] == names else None
        yield replace(problem, line=line, file=None, column=None, excerpt=None)


_WILD: Final = re.compile(r"[*?\[]")


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


def format_replay(words: Iterable[str]) -> str:
    """The command that replays the last day with other values, each `PATH=VALUE`; operators may run it."""
    return " ".join(("pilotage replay --from 1d", *(f"--set {shlex.quote(word)}" for word in words)))


def expand_edits(
    config: Configuration,
    edits: Sequence[BulkEdit],
    where: Mapping[str, object] | str = "",
    temporary: Iterable[str] = (),
) -> dict[str, object]:
    """The values by path that the edits set; places that have them already, not temporarily, are left out.

    `where` selects sites, CEs and queues by effective parameters, as required values or an expression;
    `temporary` has the paths of values that would be reverted.
    Raises InvalidRequest for a pattern without any place, and for a condition that is no selection.
    """
    values: dict[str, object] = {}
    # With the sections around them.
    reverted = {each for path in temporary for each in accumulate(fold(path).split("/"), "{}/{}".format)}
    for edit in edits:
        places = [names for names in _find_places(config, edit.pattern) if _fulfils(config, names, where)]
        if not places:
            condition = " that fulfils the condition" if where else ""
            raise InvalidRequest([Problem(path=edit.pattern, message=f"there is no such place{condition}")])
        for names in places:
            path = "/".join(names)
            before = values.get(path, find_entry(config.tree, names))
            after = edit.value if edit.operator == "=" else _changed_list(config, names, before, edit)
            if after is not ABSENT and (fold(path) in reverted or not is_equal(before, after)):
                values[path] = after
    return values


def _find_places(config: Configuration, pattern: str) -> Iterator[tuple[str, ...]]:
    """The paths of a pattern, spelled as in the tree: names after its last wildcard may be new."""
    parts = tuple(pattern.strip("/").split("/"))
    last = max((position for position, part in enumerate(parts) if _WILD.search(part)), default=-1)

    def walk(here: object, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(names) > last:
            yield _respell(config.tree, (*names, *parts[len(names) :]), {})
        elif isinstance(here, dict):
            part = parts[len(names)]
            for name, below in here.items():
                if fnmatchcase(fold(name), fold(part)) if _WILD.search(part) else fold(name) == fold(part):
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


def _value_in_force(config: Configuration, names: tuple[str, ...]) -> object:
    """The value in force at a place that has none of its own, or an empty one; ABSENT: there is none.

    Sets are united with those of the levels above, so of these only the value of the level itself counts.
    """
    depth, vo = _place(names)
    if not depth:
        return _option_in_force(config, names)
    inner = fold("/".join(names[depth + (2 if vo else 0) :]))
    if inner in inheritance.UNITED:
        level = config.nodes.get("/".join(names[:depth]))
        found = None if level is None else level.settings(vo).get(inner)
    else:
        effective = _effective(config, names).items()
        found = next((each for name, each in effective if fold(name) == inner), None)
    if found is None or found.forwarding is not None:
        return ABSENT
    nodes = found.node_attribute
    options = nodes and nodes.options(nodes.names[0])
    return found.value if options is None else options


def _option_in_force(config: Configuration, names: tuple[str, ...]) -> object:
    """The list that an option of the operations has by the defaults; ABSENT: it is no option with a list."""
    here: object = options_for(config, names[1]) if names[0] == "Operations" and len(names) > 2 else None
    for name in names[2:]:
        fields = type(here).model_fields.items() if isinstance(here, BaseModel) else ()
        here = next((getattr(here, field) for field, each in fields if each.alias == name), None)
    is_list = isinstance(here, tuple) and all(isinstance(each, Scalar) for each in here)
    return here if is_list else ABSENT


def _changed_list(config: Configuration, names: tuple[str, ...], before: object, edit: BulkEdit) -> object:
    """The list after an addition or removal; ABSENT: nothing is there to be removed.

    A value replaces what is inherited, so an addition starts from that.
    """
    if edit.operator == "+=" and (before is ABSENT or before is None):
        before = _value_in_force(config, names)
    if isinstance(before, dict):
        message = f"is a section; {edit.operator} is for lists of values"
        raise InvalidRequest([Problem(path="/".join(names), message=message)])
    listed = list(before) if isinstance(before, tuple) else as_list(before)
    items = [] if before is ABSENT or before is None else listed
    changed = as_list(edit.value)
    if edit.operator == "+=":
        return [*items, *(each for each in changed if not _is_among(each, items))]
    return ABSENT if before is ABSENT else [each for each in items if not _is_among(each, changed)]


def _is_among(value: object, items: Iterable[object]) -> bool:
    return any(is_equal(value, each) for each in items)
