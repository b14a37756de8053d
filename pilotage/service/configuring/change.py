"""What somebody wants the configuration to be, and what that would do; nothing is changed.

Changing the configuration for somebody.

What takes long is done outside of transactions; who was overtaken meanwhile looks again.
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
    """What edits would make of the configuration.

    Args:
        parts: Of the service.
        caller: Who wants it.
        edits: Of single paths.
        expected: The version that they start from; None: the newest.

    Raises:
        EditNotAllowed: The caller may not.
        PathNotFound: What is to be removed is not there.
        VersionConflict: The same paths were changed meanwhile, or there is no such version yet.
        ConfigError: What comes out is wrong.
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
    """What a whole text would make of the configuration.

    Raises:
        NotAllowed: It is for operators.
        VersionConflict: `expected` is not the newest any more; None is whichever is.
        ConfigError: It is wrong.
    """
    require_everything(caller)
    current = in_force.newest(parts)
    _refuse_overtaken(parts, caller, expected, current)
    return proposals.propose_text(current, text, source)


def require_everything(caller: Caller) -> None:
    """Let only those look at, or write, a whole text who may change all of it.

    Raises:
        NotAllowed: It is for operators.
    """
    if not caller.is_operator:
        raise NotAllowed(f"a whole configuration is for operators; {in_force.rights_of(caller).allowed}")


def back_to(parts: Services, caller: Caller, number: int, *, expected: int | None) -> Proposal:
    """What the caller may change as it was in an earlier version; for an operator that is all.

    Raises:
        VersionNotFound: There is no such version.
        VersionConflict: `expected` is not the newest any more.
        ConfigError: What comes out is wrong.
    """
    current = in_force.newest(parts)
    _refuse_overtaken(parts, caller, expected, current)
    with database.reading(parts.engine) as conn:
        older = versions_store.load_version(conn, number)
    return proposals.propose_rollback(current, older, in_force.rights_of(caller))


def conflict(parts: Services, caller: Caller, expected: int, current: Configuration) -> VersionConflict:
    """Why a change comes too late: what is another now than in `expected`, as far as the caller sees it."""
    try:
        base = in_force.version(parts, expected, current)
    except (VersionConflict, ConfigError):
        return VersionConflict(expected=expected, current=current.version)
    seen = in_force.rights_of(caller)
    found = diff.compare(permissions.visible_tree(base, seen), permissions.visible_tree(current, seen))
    return EditConflict(expected=expected, current=current.version, conflicts=found)


def outlook_of(parts: Services, caller: Caller, proposal: Proposal) -> Outlook:
    """What a proposal would do, to all jobs that are the caller's business."""
    # What a site admin may change concerns his site, where every VO's jobs are his business.
    vos = None if caller.own_sites else caller.visible_vos
    with database.reading(parts.engine) as conn:
        return outlook.compute_outlook(conn, proposal, vos=vos, now=parts.clock())


def _as_seen(error: ConfigError, config: Configuration, allowed: Rights) -> ConfigError:
    """The same without what it tells of others: their values may become wrong by this one's edits."""
    shown = tuple(each for each in error.problems if allowed.sees_path(config, tuple(each.path.split("/"))))
    return ConfigError(shown or (Problem(path="/", message="others rely on what this takes away"),))


def _refuse_overtaken(parts: Services, caller: Caller, expected: int | None, current: Configuration) -> None:
    if expected is not None and expected != current.version:
        raise conflict(parts, caller, expected, current)


#: Tries while others store versions too.
_TRIES = 10
#: Characters of paths that a line of the audit log names.
_TOLD = 4000


def edit(
    parts: Services,
    caller: Caller,
    edits: Sequence[Edit],
    *,
    message: str,
    expected: int,
    guards: Sequence[Guard] = (),
) -> tuple[int, Proposal]:
    """Change single paths; changes of other paths that came meanwhile stay.

    Returns:
        The version in force, and what was changed; nothing is stored if that is nothing.

    Raises:
        EditNotAllowed: The caller may not.
        PathNotFound: What is to be removed is not there.
        VersionConflict: The same paths were changed meanwhile, or there is no such version yet.
        ConfigError: What comes out is wrong.
        GuardFailed: It would do what it must not.
    """
    return _stored(
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
    """Make what the caller may change as it was in an earlier version; for an operator that is all.

    The history says so, and the message after it.

    Raises:
        VersionNotFound: There is no such version.
        VersionConflict: `expected` is not the newest any more.
        ConfigError: What comes out is wrong.
    """
    return _stored(
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
    """Make a text the version in force.

    Raises:
        ConfigError: It is wrong.
        VersionConflict: `expected` is not the newest any more.
        GuardFailed: It would do what it must not.
    """
    try:
        current = in_force.newest(parts)
    except ConfigError:  # what cannot be read any more can be replaced all the same
        return _replaced_unseen(parts, caller, text, message=message, source=source, expected=expected)
    proposal = proposals.propose_text(current, text, source)
    if expected != current.version:
        raise conflict(parts, caller, expected, current)
    return store(parts, caller, proposal, message=message, guards=guards)


def _replaced_unseen(
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


def _stored(
    parts: Services,
    caller: Caller,
    proposed: Callable[[], Proposal],
    *,
    message: str,
    guards: Sequence[Guard] = (),
) -> tuple[int, Proposal]:
    for left in reversed(range(_TRIES)):
        proposal = proposed()
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
    """Make a proposal the version in force, and write down who did.

    Raises:
        GuardFailed: It would do what it must not.
        VersionConflict: What it was made from is not the newest any more.
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
    paths = ", ".join(proposal.paths)[:_TOLD]
    audit.done(caller, "configuration", version=number, message=message, paths=paths)
    return number
