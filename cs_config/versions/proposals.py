"""A proposed configuration compared with the current one."""

from collections.abc import Sequence
from dataclasses import dataclass

from cs_config import validate
from cs_config.source import yaml_writer
from cs_config.source.sections import LineOrigins, Tree
from cs_config.tree.configuration import Configuration
from cs_config.versions import diff, patch, permissions
from cs_config.versions.diff import Difference
from cs_config.versions.patch import Edit
from cs_config.versions.permissions import Rights
from requirements.errors import Problem

#: Source of versions that were not read from a file.
API = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A validated candidate for the next version, with its differences from the current one."""

    before: Configuration
    after: Configuration  #: with the version of `before` until it is stored
    differences: tuple[Difference, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all differences."""
        return diff.list_paths(self.differences)

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
    after = validate.parse(text, file, current.version, origins=origins)
    return Proposal(before=current, after=after, differences=diff.compare(current.tree, after.tree))


def propose_rollback(current: Configuration, older: Configuration, allowed: Rights) -> Proposal:
    """Restore an earlier version, limited to the parts that the author may change.

    Raises EditNotAllowed if restoring these would change others.
    """
    if allowed.everything:
        after = validate.parse(older.source, API, current.version, origins=older.origins)
        return Proposal(before=current, after=after, differences=diff.compare(current.tree, after.tree))
    back = [
        Edit(names=names, value=patch.find_entry(older.tree, names))
        for difference in diff.compare(current.tree, older.tree)
        for names in diff.list_leaves(difference)
        if allowed.may_change(names)
    ]
    tree = patch.apply_edits(current.tree, current.tree, back, versions=(older.version, current.version))
    return _propose_tree(current, tree, allowed, restoring=True)


def _propose_tree(
    current: Configuration, tree: Tree, allowed: Rights, *, restoring: bool = False
) -> Proposal:
    found = diff.compare(current.tree, tree)
    permissions.check_differences(current, allowed, found)
    permissions.check_groups(current, allowed, tree)
    if not restoring:
        permissions.check_amount(current, allowed, tree)
    if not found:
        return Proposal(before=current, after=current, differences=())
    text = yaml_writer.edit_text(current.source, current.tree, tree)
    after = validate.parse(text, API, current.version, origins=_follow_origins(current, text))
    return Proposal(before=current, after=after, differences=found)


def _follow_origins(current: Configuration, text: str) -> LineOrigins:
    """Origins of the lines of an edited text, which becomes the next version."""
    return current.origins.follow(current.source, text, f"version {current.version + 1}")
