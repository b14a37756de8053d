"""What somebody has written on a page and not stored yet."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cs_config import differences, edits, inline_values, section_text, text_edit, validate, visible
from cs_config.differences import ABSENT
from cs_config.edits import Edit
from cs_config.proposals import Proposal
from cs_config.sections import Tree
from matcher.preview.guards import Guard
from pilotage.service.callers import Caller
from pilotage.service.configuring import in_force, proposing, rights, storing
from pilotage.service.parts import Parts
from requirements.errors import InvalidRequest
from requirements.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One path that shall say something else."""

    path: str
    value: str = ""  #: as it would be in the file
    is_removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Values for single paths, or a text for a section."""

    version: int  #: that it starts from
    names: tuple[str, ...] = ()  #: of the section that the text is for; none: of the whole tree
    rows: tuple[Row, ...] = ()
    text: str | None = None  #: None: it is about single paths

    @property
    def is_whole(self) -> bool:
        """Whether it is the text of the whole configuration, with its comments."""
        return self.text is not None and not self.names


def text_of(parts: Parts, caller: Caller, names: tuple[str, ...]) -> str:
    """What somebody begins to write from: the section as it is now."""
    current = in_force.readable(parts)
    if not names:
        return current.source if caller.is_operator else ""
    return section_text.of(visible.tree(current, rights.of(caller)), names)


def proposal(parts: Parts, caller: Caller, draft: Draft) -> Proposal:
    """What the draft would make of the configuration.

    Raises:
        InvalidRequest: A row is no edit.
        EditNotAllowed: The caller may not.
        PathNotFound: What is to be removed is not there.
        VersionConflict: The same paths were changed meanwhile.
        ConfigError: What comes out is wrong.
    """
    if draft.is_whole:
        source = in_force.newest(parts).file
        return proposing.of_text(parts, caller, draft.text or "", source=source, expected=draft.version)
    return proposing.of_edits(parts, caller, edits_of(parts, caller, draft), expected=draft.version)


def store(
    parts: Parts, caller: Caller, draft: Draft, *, message: str, guards: Sequence[Guard]
) -> tuple[int, Proposal]:
    """Make the draft the version in force.

    Returns:
        The version in force, and what was changed; nothing is stored if that is nothing.

    Raises:
        GuardFailed: It would do what it must not; and what `proposal` raises.
    """
    if draft.is_whole:
        found = proposal(parts, caller, draft)
        if found.after.source == found.before.source:
            return found.before.version, found
        return storing.store(parts, caller, found, message=message, guards=guards), found
    asked = edits_of(parts, caller, draft)
    return storing.edit(parts, caller, asked, message=message, expected=draft.version, guards=guards)


def edits_of(parts: Parts, caller: Caller, draft: Draft) -> tuple[Edit, ...]:
    """The edits of single paths that the draft is.

    Raises:
        InvalidRequest: A row is none, or two concern the same place.
        ConfigError: The text cannot be read.
    """
    if draft.text is None:
        return _edits_of_rows(draft.rows)
    base = in_force.version(parts, draft.version, in_force.newest(parts))
    return section_text.edits_of(visible.tree(base, rights.of(caller)), draft.names, draft.text)


def _edits_of_rows(rows: Sequence[Row]) -> tuple[Edit, ...]:
    twice = [path for path, number in Counter(row.path for row in rows).items() if number > 1]
    if twice:
        raise InvalidRequest([Problem(path=path, message="is there twice, say it once") for path in twice])
    values = {row.path: inline_values.read(row.value, row.path) for row in rows if not row.is_removed}
    return edits.read(values, [row.path for row in rows if row.is_removed])


def rebased(parts: Parts, caller: Caller, draft: Draft) -> Draft:
    """The draft as one of what is in force now: where others changed the same, it says its own.

    Raises:
        NotAllowed: A whole text is for operators.
        ConfigError: The text cannot be read.
    """
    current = in_force.newest(parts)
    if draft.text is None:
        return replace(draft, version=current.version)
    base = in_force.version(parts, draft.version, current)
    if draft.is_whole:
        proposing.require_everything(caller)
        wanted = validate.parse(draft.text).tree
        asked = [Edit(names=each.names, value=each.after) for each in differences.between(base.tree, wanted)]
        tree = _applied(current.tree, asked)
        text = text_edit.edited(current.source, current.tree, tree)
        return replace(draft, version=current.version, text=text)
    tree = _applied(visible.tree(current, rights.of(caller)), edits_of(parts, caller, draft))
    return replace(draft, version=current.version, text=section_text.of(tree, draft.names))


def _applied(tree: Tree, asked: Sequence[Edit]) -> Tree:
    return edits.applied(tree, tree, list(_left(tree, asked)), versions=(0, 0))


def _left(tree: Tree, asked: Sequence[Edit]) -> Iterator[Edit]:
    """What is not done already: others may have removed the same."""
    return (each for each in asked if each.value is not ABSENT or edits.at(tree, each.names) is not ABSENT)
