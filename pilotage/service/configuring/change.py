"""Propose, store and roll back changes of the configuration with a caller's rights.

Slow work is done outside of transactions. If another version is stored meanwhile, it is proposed again.
"""

from collections.abc import Callable, Sequence

from cs_config.errors import ConfigError, EditConflict, VersionConflict
from cs_config.tree.configuration import Configuration
from cs_config.versions import diff, permissions, proposals
from cs_config.versions import store as versions_store
from cs_config.versions.patch import Edit
from cs_config.versions.permissions import Rights
from cs_config.versions.proposals import Proposal
from matcher.preview import guards as guarding
from matcher.preview import outlook
from matcher.preview.guards import Guard
from matcher.preview.outlook import Outlook
from pilotage.service.auth import audit
from pilotage.service.auth.callers import Caller
from pilotage.service.configuring import in_force
from pilotage.service.services import Services
from requirements.errors import NotAllowed, Problem
from taskqueue.db import database


def propose_edits(
    parts: Services, caller: Caller, edits: Sequence[Edit], *, expected: int | None
) -> Proposal:
    """Apply edits without storing them.

    Args:
        parts: Dependencies.
        caller: Its rights are checked.
        edits: Of single paths.
        expected: The version that they start from; None: the newest.

    Raises:
        EditNotAllowed: The caller may not change a path.
        PathNotFound: A path to remove does not exist.
        VersionConflict: The same paths were changed meanwhile, or there is no such version yet.
        ConfigError: The result is invalid.
    """
    current = in_force.newest(parts)
    base = current if expected is None else in_force.version(parts, expected, current)
    allowed = in_force.rights_of(caller)
    try:
        return proposals.propose_edits(base, current, edits, allowed)
    except ConfigError as error:
        raise _as_seen(error, current, allowed) from None


def propose_text(
    parts: Services, caller: Caller, text: str, *, source: str, expected: int | None = None
) -> Proposal:
    """Replace the whole text without storing it.

    Raises:
        NotAllowed: The caller is not an operator.
        VersionConflict: `expected` is not the newest version; None skips this check.
        ConfigError: The text is invalid.
    """
    require_everything(caller)
    current = in_force.newest(parts)
    _require_newest(parts, caller, expected, current)
    return proposals.propose_text(current, text, source)


def require_everything(caller: Caller) -> None:
    """Raise `NotAllowed` unless the caller may read and write the whole text."""
    if not caller.is_operator:
        raise NotAllowed(f"a whole configuration is for operators; {in_force.rights_of(caller).allowed}")


def back_to(parts: Services, caller: Caller, number: int, *, expected: int | None) -> Proposal:
    """Restore an earlier version, as far as the caller may change it, without storing it.

    Raises:
        VersionNotFound: There is no such version.
        VersionConflict: `expected` is not the newest version.
        ConfigError: The result is invalid.
    """
    current = in_force.newest(parts)
    _require_newest(parts, caller, expected, current)
    with database.reading(parts.engine) as conn:
        older = versions_store.load_version(conn, number)
    return proposals.propose_rollback(current, older, in_force.rights_of(caller))


def conflict(parts: Services, caller: Caller, expected: int, current: Configuration) -> VersionConflict:
    """The conflict of a late change: the differences since `expected` that the caller may see."""
    try:
        base = in_force.version(parts, expected, current)
    except (VersionConflict, ConfigError):
        return VersionConflict(expected=expected, current=current.version)
    seen = in_force.rights_of(caller)
    found = diff.compare(permissions.visible_tree(base, seen), permissions.visible_tree(current, seen))
    return EditConflict(expected=expected, current=current.version, conflicts=found)


def outlook_of(parts: Services, caller: Caller, proposal: Proposal) -> Outlook:
    """The effects of a proposal on the jobs that the caller may see."""
    # A site admin's changes concern the site, where the jobs of every VO are visible to the admin.
    vos = None if caller.own_sites else caller.visible_vos
    with database.reading(parts.engine) as conn:
        return outlook.compute_outlook(conn, proposal, vos=vos, now=parts.clock())


def _as_seen(error: ConfigError, config: Configuration, allowed: Rights) -> ConfigError:
    """Leave out problems at paths of others, which the caller's edits may cause."""
    shown = tuple(each for each in error.problems if allowed.sees_path(config, tuple(each.path.split("/"))))
    return ConfigError(shown or (Problem(path="/", message="others depend on what this removes"),))


def _require_newest(parts: Services, caller: Caller, expected: int | None, current: Configuration) -> None:
    if expected is not None and expected != current.version:
        raise conflict(parts, caller, expected, current)


#: Retries while others store versions.
_TRIES = 10
#: Characters of paths in one line of the audit log.
_AUDITED_CHARACTERS = 4000


def edit(
    parts: Services,
    caller: Caller,
    edits: Sequence[Edit],
    *,
    message: str,
    expected: int,
    guards: Sequence[Guard] = (),
) -> tuple[int, Proposal]:
    """Change single paths; concurrent changes of other paths are kept.

    Returns:
        The version in force, and the change; nothing is stored if that is empty.

    Raises:
        EditNotAllowed, PathNotFound, VersionConflict, ConfigError: As for `propose_edits`.
        GuardFailed: A guard does not hold.
    """
    return _store_with_retries(
        parts,
        caller,
        lambda: propose_edits(parts, caller, edits, expected=expected),
        message=message,
        guards=guards,
    )


def rollback(
    parts: Services,
    caller: Caller,
    number: int,
    *,
    expected: int | None,
    message: str = "",
    guards: Sequence[Guard] = (),
) -> tuple[int, Proposal]:
    """Restore an earlier version as far as the caller may change it; for an operator, its whole text.

    The stored message names the version, followed by `message`. Errors are those of `back_to`.
    """
    return _store_with_retries(
        parts,
        caller,
        lambda: back_to(parts, caller, number, expected=expected),
        message=": ".join(filter(None, (f"back to version {number}", message))),
        guards=guards,
    )


def replace(
    parts: Services,
    caller: Caller,
    text: str,
    *,
    message: str,
    source: str,
    expected: int,
    guards: Sequence[Guard] = (),
) -> int:
    """Store a whole text as the version in force.

    Raises:
        ConfigError: The text is invalid.
        VersionConflict: `expected` is not the newest version.
        GuardFailed: A guard does not hold.
    """
    try:
        current = in_force.newest(parts)
    except ConfigError:  # a version that this release cannot read can still be replaced
        return _replace_unreadable(parts, caller, text, message=message, source=source, expected=expected)
    proposal = proposals.propose_text(current, text, source)
    if expected != current.version:
        raise conflict(parts, caller, expected, current)
    return store(parts, caller, proposal, message=message, guards=guards)


def _replace_unreadable(
    parts: Services, caller: Caller, text: str, *, message: str, source: str, expected: int
) -> int:
    with database.writing(parts.engine) as conn:
        number = versions_store.store_text(
            conn,
            text,
            author=in_force.author(caller),
            message=message,
            source=source,
            expected=expected,
            now=parts.clock(),
        )
    audit.done(caller, "configuration", version=number, message=message)
    return number


def _store_with_retries(
    parts: Services,
    caller: Caller,
    propose: Callable[[], Proposal],
    *,
    message: str,
    guards: Sequence[Guard] = (),
) -> tuple[int, Proposal]:
    for left in reversed(range(_TRIES)):
        proposal = propose()
        if proposal.after.source == proposal.before.source:
            return proposal.before.version, proposal
        try:
            return store(parts, caller, proposal, message=message, guards=guards), proposal
        except VersionConflict:
            if not left:
                raise
    raise AssertionError("not reached")


def store(
    parts: Services, caller: Caller, proposal: Proposal, *, message: str, guards: Sequence[Guard] = ()
) -> int:
    """Store a proposal as the version in force, and audit it.

    Raises:
        GuardFailed: A guard does not hold.
        VersionConflict: The proposal does not start from the newest version any more.
    """
    if guards:
        guarding.check_guards(guards, outlook_of(parts, caller, proposal))
    with database.writing(parts.engine) as conn:
        number = versions_store.store_checked(
            conn,
            proposal.after,
            author=in_force.author(caller),
            message=message,
            expected=proposal.before.version,
            now=parts.clock(),
            changed=proposal.paths,
        )
    with database.reading(parts.engine) as conn:
        parts.live.refresh(conn)
    paths = ", ".join(proposal.paths)[:_AUDITED_CHARACTERS]
    audit.done(caller, "configuration", version=number, message=message, paths=paths)
    return number
