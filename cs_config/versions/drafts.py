"""Drafts of changes: edits of single paths, the text of a section or of the whole, a return to a version."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cs_config import validate
from cs_config.errors import VersionConflict
from cs_config.options import bounds
from cs_config.source import yaml_writer
from cs_config.source.sections import Tree
from cs_config.tree.configuration import Configuration
from cs_config.versions import diff, patch, permissions
from cs_config.versions.diff import ABSENT
from cs_config.versions.patch import Edit
from cs_config.versions.permissions import EditNotAllowed, Rights
from requirements.errors import InvalidInput, InvalidRequest, NotFound, PilotageError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """A new value for one path, or its removal, as someone typed it."""

    path: str
    value: str = ""  #: as written in the file
    is_removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDraft:
    """A change that someone wants: `edits`, or a `text`, or an earlier version."""

    version: int | None = None  #: that it starts from; None: the newest
    edits: tuple[Edit, ...] = ()
    text: str | None = None
    names: tuple[str, ...] = ()  #: of the section of the text; empty: the whole tree
    file: str | None = None  #: of a whole text: its file; None: that of the current version
    restored: int | None = None  #: the earlier version

    @property
    def is_whole(self) -> bool:
        """Whether it replaces the whole configuration, so that every concurrent change is a conflict."""
        return self.restored is not None or (self.text is not None and not self.names)


def read_rows(rows: Sequence[DraftRow]) -> tuple[Edit, ...]:
    """The edits of rows; `InvalidRequest` if one is not a valid edit, or two concern the same path."""
    twice = [path for path, number in Counter(row.path for row in rows).items() if number > 1]
    if twice:
        raise InvalidRequest(
            [Problem(path=path, message="occurs twice, only one is allowed") for path in twice]
        )
    values = {row.path: yaml_writer.read_value(row.value, row.path) for row in rows if not row.is_removed}
    return patch.read_edits(values, [row.path for row in rows if row.is_removed])


def list_edits(draft: ConfigDraft, base: Configuration, rights: Rights) -> tuple[Edit, ...]:
    """The edits of a draft of single paths or of a section.

    Raises ConfigError if its text cannot be read, InvalidRequest if it is too large for anyone but operators.
    """
    _check_size(rights, len(draft.text or ""), "characters in one text", bounds.EDITED_TEXT)
    edits = draft.edits
    if draft.text is not None:
        edits = patch.edits_from_text(permissions.visible_tree(base, rights), draft.names, draft.text)
    values = sum(diff.count_values(edit.value) for edit in edits)
    _check_size(rights, values, "values in one change", bounds.EDITED_VALUES)
    length = sum(len(edit.path) + diff.count_characters(edit.value) for edit in edits)
    _check_size(rights, length, "characters in one change", bounds.EDITED_TEXT)
    return edits


def _check_size(rights: Rights, number: int, what: str, most: int) -> None:
    if number > most and not rights.everything:
        message = f"{number} {what}, allowed are {most}; split it, or let an operator make it"
        raise InvalidRequest([Problem(path="", message=message)])


def rebase_text(draft: ConfigDraft, base: Configuration, current: Configuration, rights: Rights) -> str:
    """The draft's text as a change of the current version; at paths changed by others too, the draft wins."""
    if not draft.is_whole:
        tree = _apply(permissions.visible_tree(current, rights), list_edits(draft, base, rights))
        return patch.section_text(tree, draft.names)
    wanted = validate.parse(draft.text or "").tree
    edits = [Edit(names=each.names, value=each.after) for each in diff.compare(base.tree, wanted)]
    return yaml_writer.edit_text(current.source, current.tree, _apply(current.tree, edits))


def _apply(tree: Tree, edits: Iterable[Edit]) -> Tree:
    """Apply edits, except removals that others have made already."""
    left = [
        each for each in edits if each.value is not ABSENT or patch.find_entry(tree, each.names) is not ABSENT
    ]
    return patch.apply_edits(tree, tree, left, versions=(0, 0))


#: Errors that the author of a draft can correct.
CORRECTABLE = (InvalidInput, EditNotAllowed, NotFound, VersionConflict)


def list_problems(error: PilotageError, names: tuple[str, ...], text: str | None) -> tuple[Problem, ...]:
    """Split an error of a draft into its problems, with line numbers of its own text."""
    if isinstance(error, InvalidInput):
        return add_lines(error.problems, names, text)
    if isinstance(error, EditNotAllowed):
        return tuple(Problem(path=path, message="not yours to change") for path in error.paths)
    return (Problem(path="", message=str(error)),)


def add_lines(problems: Iterable[Problem], names: tuple[str, ...], text: str | None) -> tuple[Problem, ...]:
    """The problems with line numbers of the text of a section; those of a whole text have them."""
    return tuple(problems) if text is None or not names else tuple(patch.with_lines(problems, names, text))
