"""A proposed configuration compared with the current one, and drafts of proposals.

A draft holds edits of single paths, the text of a section or of the whole, or the return to a version.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cs_config import validate
from cs_config.editing import patch, permissions
from cs_config.editing.patch import Edit
from cs_config.editing.permissions import EditNotAllowed, Rights
from cs_config.errors import ConfigError, VersionConflict
from cs_config.options import bounds
from cs_config.source import diff, yaml_writer
from cs_config.source.diff import ABSENT, Difference
from cs_config.source.sections import LineOrigins, Tree
from cs_config.tree.configuration import Configuration
from requirements.errors import InvalidInput, InvalidRequest, NotFound, PilotageError, Problem

#: Source of versions that were not read from a file.
API = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A validated candidate for the next version, with its differences from the current one."""

    before: Configuration
    after: Configuration  #: with the version of `before` until it is stored
    differences: tuple[Difference, ...]

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Warnings that the current version does not have."""
        known = {(each.path, each.message) for each in self.before.warnings}
        return tuple(each for each in self.after.warnings if (each.path, each.message) not in known)


def propose_edits(
    base: Configuration,
    current: Configuration,
    edits: Sequence[Edit],
    allowed: Rights,
    *,
    restoring: bool = False,
) -> Proposal:
    """Apply edits that were made for an earlier version (`base`) to the current configuration.

    `restoring`: they bring back what was there, which may be more than is allowed at once.
    Raises EditNotAllowed, and the errors of `apply_edits`.
    """
    permissions.check_edits(allowed, edits)
    named = patch.respell_edits(base.tree, edits)
    permissions.check_edits(allowed, named)
    versions = (base.version, current.version)
    tree = patch.apply_edits(base.tree, current.tree, named, versions=versions)
    return _propose_tree(current, tree, allowed, restoring=restoring)


def propose_text(current: Configuration, text: str, file: str = API) -> Proposal:
    """Replace the current configuration by a whole text."""
    origins = _follow_origins(current, text) if file == API else None
    after = validate.parse(
        text, file, current.version, origins=origins, kept=current.kept_values, earlier=current
    )
    return Proposal(before=current, after=after, differences=diff.compare(current.tree, after.tree))


def propose_rollback(current: Configuration, older: Configuration, allowed: Rights) -> Proposal:
    """Restore an earlier version, limited to the parts that the author may change.

    Raises EditNotAllowed if restoring these would change others.
    """
    if allowed.everything:
        after = validate.parse(older.source, API, current.version, origins=older.origins, kept=None)
        return Proposal(before=current, after=after, differences=diff.compare(current.tree, after.tree))
    back = [
        Edit(names=names, value=patch.find_entry(older.tree, names))
        for difference in diff.compare(current.tree, older.tree)
        for names in diff.list_leaves(difference)
        if allowed.may_change(names)
    ]
    tree = patch.apply_edits(current.tree, current.tree, back, versions=(older.version, current.version))
    advice = (
        f"nothing was restored: an operator may restore these, and you the other values of version "
        f"{older.version} by `pilotage config set` (`config diff --from {older.version}` lists them)"
    )
    return _propose_tree(current, tree, allowed, restoring=True, advice=advice)


def _propose_tree(
    current: Configuration,
    tree: Tree,
    allowed: Rights,
    *,
    restoring: bool = False,
    advice: str = "an operator may set it",
) -> Proposal:
    found = diff.compare(current.tree, tree)
    permissions.check_change(current, allowed, tree, found, restoring=restoring, advice=advice)
    if not found:
        return Proposal(before=current, after=current, differences=())
    reading = yaml_writer.edit_and_read(current.source, current.tree, tree)
    try:
        origins, kept = _follow_origins(current, reading.text), None if restoring else current.kept_values
        after = validate.parse(reading, API, current.version, origins=origins, kept=kept, earlier=current)
    except ConfigError as error:
        # The author of edits has no text whose lines could be named.
        problems = [replace(each, file=None, line=None, column=None) for each in error.problems]
        raise ConfigError(problems) from None
    permissions.check_default_groups(current.registry, allowed, after.registry)
    return Proposal(before=current, after=after, differences=found)


def _follow_origins(current: Configuration, text: str) -> LineOrigins:
    """Origins of the lines of an edited text, which becomes the next version."""
    return current.origins.follow(current.source, text, f"version {current.version + 1}")


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
    edits = draft.edits
    if draft.text is not None:
        if not rights.everything:
            _check_size(len(draft.text), "characters in one text", bounds.EDITED_TEXT)
        edits = patch.edits_from_text(permissions.visible_tree(base, rights), draft.names, draft.text)
    if not rights.everything:
        values = sum(diff.count_values(edit.value) for edit in edits)
        _check_size(values, "values in one change", bounds.EDITED_VALUES)
        length = sum(len(edit.path) + diff.count_characters(edit.value) for edit in edits)
        _check_size(length, "characters in one change", bounds.EDITED_TEXT)
    return edits


def _check_size(number: int, what: str, most: int) -> None:
    if number > most:
        message = f"{number} {what}, allowed are {most}; split it, or let an operator make it"
        raise InvalidRequest([Problem(path="", message=message)])


def rebase_text(draft: ConfigDraft, base: Configuration, current: Configuration, rights: Rights) -> str:
    """The draft's text as a change of the current version; at paths changed by others too, the draft wins."""
    if not draft.is_whole:
        tree = _apply(permissions.visible_tree(current, rights), list_edits(draft, base, rights))
        return patch.section_text(tree, draft.names)
    wanted = validate.parse(draft.text or "", kept=None).tree
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
        return tuple(Problem(path=path, message=reason) for path, reason in error.reasons.items())
    return (Problem(path="", message=str(error)),)


def add_lines(problems: Iterable[Problem], names: tuple[str, ...], text: str | None) -> tuple[Problem, ...]:
    """The problems with line numbers of the text of a section; those of a whole text have them."""
    return tuple(problems) if text is None or not names else tuple(patch.with_lines(problems, names, text))
