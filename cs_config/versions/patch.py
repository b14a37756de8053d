"""Edits of single paths, merged with concurrent edits of other paths; edits from the text of one section."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cs_config.errors import ConfigError, EditConflict, PathNotFound, one_problem
from cs_config.source import yaml_reader, yaml_writer
from cs_config.source.sections import Section, Tree, find_line, to_plain
from cs_config.versions import diff
from cs_config.versions.diff import ABSENT, Difference, Entry, is_equal
from requirements.errors import InvalidRequest, Problem, did_you_mean
from requirements.values import fold

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
    edits = [Edit(names=_names(path), value=value) for path, value in values.items()]
    edits += [Edit(names=_names(path), value=ABSENT) for path in removed]
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


def _names(path: str) -> tuple[str, ...]:
    return tuple(path.removeprefix("/").removesuffix("/").split("/"))


def _invalid_places(edits: Sequence[Edit]) -> Iterator[Problem]:
    for edit in edits:
        if not all(edit.names):
            message = "is no path, which is names with / between them: Resources/Sites/LCG.CERN.ch/MaxRAM"
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
