"""Drafts of changes, written on a page and not stored yet, and their checks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cs_config import validate
from cs_config.errors import VersionConflict
from cs_config.source import yaml_writer
from cs_config.source.sections import Tree
from cs_config.versions import diff, patch, permissions
from cs_config.versions.diff import ABSENT
from cs_config.versions.patch import Edit
from cs_config.versions.permissions import EditNotAllowed
from cs_config.versions.proposals import Proposal
from matcher.preview.guards import Guard
from pilotage.service.auth.callers import Caller
from pilotage.service.configuring import change, in_force, previews
from pilotage.service.services import Services
from requirements.errors import InvalidInput, InvalidRequest, NotFound, PilotageError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """A new value for one path, or its removal."""

    path: str
    value: str = ""  #: as written in the file
    is_removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDraft:
    """Values for single paths, or a text for a section."""

    version: int  #: that it starts from
    names: tuple[str, ...] = ()  #: of the section of the text; empty: the whole tree
    rows: tuple[DraftRow, ...] = ()
    text: str | None = None  #: None: a draft of single paths

    @property
    def is_whole(self) -> bool:
        """Whether it is the text of the whole configuration."""
        return self.text is not None and not self.names


def text_of(parts: Services, caller: Caller, names: tuple[str, ...]) -> str:
    """The text of a section to start editing from."""
    current = in_force.readable(parts)
    if not names:
        return current.source if caller.is_operator else ""
    return patch.section_text(permissions.visible_tree(current, in_force.rights_of(caller)), names)


def build_proposal(parts: Services, caller: Caller, draft: ConfigDraft) -> Proposal:
    """Apply the draft without storing it.

    Raises:
        InvalidRequest: A row is not a valid edit.
        EditNotAllowed, PathNotFound, VersionConflict, ConfigError: As for `change.propose_edits`.
    """
    if draft.is_whole:
        source = in_force.newest(parts).file
        return change.propose_text(parts, caller, draft.text or "", source=source, expected=draft.version)
    return change.propose_edits(parts, caller, edits_of(parts, caller, draft), expected=draft.version)


def store(
    parts: Services, caller: Caller, draft: ConfigDraft, *, message: str, guards: Sequence[Guard]
) -> tuple[int, Proposal]:
    """Store the draft as the version in force.

    Returns:
        The version in force, and the change; nothing is stored if that is empty.

    Raises:
        GuardFailed: A guard does not hold; further errors as for `build_proposal`.
    """
    if draft.is_whole:
        found = build_proposal(parts, caller, draft)
        if found.after.source == found.before.source:
            return found.before.version, found
        return change.store(parts, caller, found, message=message, guards=guards), found
    edits = edits_of(parts, caller, draft)
    return change.edit(parts, caller, edits, message=message, expected=draft.version, guards=guards)


def edits_of(parts: Services, caller: Caller, draft: ConfigDraft) -> tuple[Edit, ...]:
    """The draft as edits of single paths.

    Raises:
        InvalidRequest: A row is not a valid edit, or two concern the same path.
        ConfigError: The text cannot be read.
    """
    if draft.text is None:
        return _edits_of_rows(draft.rows)
    base = in_force.version(parts, draft.version, in_force.newest(parts))
    return patch.edits_from_text(
        permissions.visible_tree(base, in_force.rights_of(caller)), draft.names, draft.text
    )


def _edits_of_rows(rows: Sequence[DraftRow]) -> tuple[Edit, ...]:
    twice = [path for path, number in Counter(row.path for row in rows).items() if number > 1]
    if twice:
        raise InvalidRequest(
            [Problem(path=path, message="occurs twice, only one is allowed") for path in twice]
        )
    values = {row.path: yaml_writer.read_value(row.value, row.path) for row in rows if not row.is_removed}
    return patch.read_edits(values, [row.path for row in rows if row.is_removed])


def rebased(parts: Services, caller: Caller, draft: ConfigDraft) -> ConfigDraft:
    """Move the draft onto the version in force; at paths changed by others too, the draft wins.

    Raises:
        NotAllowed: A whole text is for operators.
        ConfigError: The text cannot be read.
    """
    current = in_force.newest(parts)
    if draft.text is None:
        return replace(draft, version=current.version)
    base = in_force.version(parts, draft.version, current)
    if draft.is_whole:
        change.require_everything(caller)
        wanted = validate.parse(draft.text).tree
        edits = [Edit(names=each.names, value=each.after) for each in diff.compare(base.tree, wanted)]
        tree = _applied(current.tree, edits)
        text = yaml_writer.edit_text(current.source, current.tree, tree)
        return replace(draft, version=current.version, text=text)
    tree = _applied(
        permissions.visible_tree(current, in_force.rights_of(caller)), edits_of(parts, caller, draft)
    )
    return replace(draft, version=current.version, text=patch.section_text(tree, draft.names))


def _applied(tree: Tree, edits: Sequence[Edit]) -> Tree:
    return patch.apply_edits(tree, tree, list(_remaining_edits(tree, edits)), versions=(0, 0))


def _remaining_edits(tree: Tree, edits: Sequence[Edit]) -> Iterator[Edit]:
    """Leave out removals that others have made already."""
    return (
        each for each in edits if each.value is not ABSENT or patch.find_entry(tree, each.names) is not ABSENT
    )


#: Errors that the author of a draft can correct; shown as problems.
MENDABLE = (InvalidInput, EditNotAllowed, NotFound, VersionConflict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDraft:
    """The result of checking a draft."""

    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    proposal: Proposal | None = None  #: None: there are errors


def check(parts: Services, caller: Caller, draft: ConfigDraft) -> CheckedDraft:
    """Find all problems of a draft, with line numbers of its own text."""
    try:
        proposal = build_proposal(parts, caller, draft)
    except MENDABLE as error:
        return CheckedDraft(errors=format_problems(error, draft))
    warnings = previews.visible_outlook(proposal.warnings, proposal.after, in_force.rights_of(caller))
    return CheckedDraft(warnings=_with_lines(warnings, draft), proposal=proposal)


def format_problems(error: PilotageError, draft: ConfigDraft) -> tuple[Problem, ...]:
    """Split an error into its problems."""
    if isinstance(error, InvalidInput):
        return _with_lines(error.problems, draft)
    if isinstance(error, EditNotAllowed):
        return tuple(Problem(path=path, message="not yours to change") for path in error.paths)
    return (Problem(path="", message=str(error)),)


def _with_lines(problems: Iterable[Problem], draft: ConfigDraft) -> tuple[Problem, ...]:
    if draft.text is None or draft.is_whole:
        return tuple(problems)
    return tuple(patch.with_lines(problems, draft.names, draft.text))
