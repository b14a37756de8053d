"""Changing the configuration: what the HTTP interface and the pages do for somebody.

What takes long is done outside of transactions; who was overtaken meanwhile looks again.
"""

from collections.abc import Callable, Sequence

from cs_config import differences, live, proposals, versions, visible
from cs_config.configuration import Configuration
from cs_config.edits import Edit
from cs_config.errors import ConfigError, EditConflict, VersionConflict
from cs_config.proposals import Proposal
from cs_config.rights import Rights
from matcher.preview import guards as guarding
from matcher.preview import outlook
from matcher.preview.guards import Guard
from matcher.preview.outlook import Outlook
from pilotage.service import audit
from pilotage.service.callers import Caller, Role
from pilotage.service.parts import Parts
from requirements.errors import NotAllowed
from taskqueue import database

#: Tries while others store versions too.
_TRIES = 10
#: Characters of paths that a line of the audit log names.
_TOLD = 4000


def rights_of(caller: Caller) -> Rights:
    """What somebody may do with the configuration."""
    if caller.is_operator:
        return Rights(everything=True)
    return Rights(
        sees=caller.vos,
        vos=caller.vos if caller.role is Role.VO_ADMIN else frozenset(),
        sites=caller.sites if caller.role is Role.SITE_ADMIN else frozenset(),
    )


def running(parts: Parts) -> Configuration:
    """The newest version that this release can read, with what has expired."""
    with database.reading(parts.engine) as conn:
        parts.live.refresh(conn)  # a change that starts from this answer should not find it outdated
    now = parts.live.current
    return now.written or now


def in_force(parts: Parts) -> Configuration:
    """The newest version.

    Raises:
        ConfigError: It cannot be read by this release.
    """
    known = running(parts)
    with database.reading(parts.engine) as conn:
        newest = versions.current_version(conn)
        return known if known.version == newest else versions.load(conn, newest)


def version(parts: Parts, number: int, current: Configuration) -> Configuration:
    """A version that somebody starts from.

    Raises:
        VersionConflict: It is newer than the newest.
        ConfigError: It cannot be read by this release.
    """
    if number == current.version:
        return current
    if number > current.version:
        raise VersionConflict(expected=number, current=current.version)
    if number == 0:
        return live.NOTHING
    with database.reading(parts.engine) as conn:
        return versions.load(conn, number)


def proposed_edits(parts: Parts, caller: Caller, edits: Sequence[Edit], *, expected: int | None) -> Proposal:
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
    current = in_force(parts)
    base = current if expected is None else version(parts, expected, current)
    return proposals.of_edits(base, current, edits, rights_of(caller))


def proposed_text(parts: Parts, caller: Caller, text: str, *, source: str) -> Proposal:
    """What a whole text would make of the configuration.

    Raises:
        NotAllowed: It is for operators.
        ConfigError: It is wrong.
    """
    if not caller.is_operator:
        raise NotAllowed(f"a whole configuration is for operators; {rights_of(caller).allowed}")
    return proposals.of_text(in_force(parts), text, source)


def edit(
    parts: Parts,
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
        lambda: proposed_edits(parts, caller, edits, expected=expected),
        message=message,
        guards=guards,
    )


def rollback(parts: Parts, caller: Caller, number: int, *, expected: int | None) -> tuple[int, Proposal]:
    """Make what the caller may change as it was in an earlier version; for an operator that is all.

    Raises:
        VersionNotFound: There is no such version.
        VersionConflict: `expected` is not the newest any more.
        ConfigError: What comes out is wrong.
    """

    def proposed() -> Proposal:
        current = in_force(parts)
        if expected is not None and expected != current.version:
            raise conflict(parts, caller, expected, current)
        with database.reading(parts.engine) as conn:
            older = versions.load(conn, number)
        return proposals.of_older(current, older, rights_of(caller))

    return _stored(parts, caller, proposed, message=f"back to version {number}")


def replace(
    parts: Parts,
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
        current = in_force(parts)
    except ConfigError:  # what cannot be read any more can be replaced all the same
        return _replaced_unseen(parts, caller, text, message=message, source=source, expected=expected)
    proposal = proposals.of_text(current, text, source)
    if expected != current.version:
        raise conflict(parts, caller, expected, current)
    return store(parts, caller, proposal, message=message, guards=guards)


def _replaced_unseen(
    parts: Parts, caller: Caller, text: str, *, message: str, source: str, expected: int
) -> int:
    with database.writing(parts.engine) as conn:
        number = versions.store(
            conn,
            text,
            author=author(caller),
            message=message,
            source=source,
            expected=expected,
            now=parts.clock(),
        )
    audit.done(caller, "configuration", version=number, message=message)
    return number


def conflict(parts: Parts, caller: Caller, expected: int, current: Configuration) -> VersionConflict:
    """Why a change comes too late: what is another now than in `expected`, as far as the caller sees it."""
    try:
        base = version(parts, expected, current)
    except (VersionConflict, ConfigError):
        return VersionConflict(expected=expected, current=current.version)
    rights = rights_of(caller)
    found = differences.between(visible.tree(base, rights), visible.tree(current, rights))
    return EditConflict(expected=expected, current=current.version, conflicts=found)


def outlook_of(parts: Parts, caller: Caller, proposal: Proposal) -> Outlook:
    """What a proposal would do, to all jobs that are the caller's business."""
    # What a site admin may change concerns his site, where every VO's jobs are his business.
    everybody = caller.is_operator or caller.role is Role.SITE_ADMIN
    with database.reading(parts.engine) as conn:
        return outlook.of(conn, proposal, vos=None if everybody else caller.vos, now=parts.clock())


def author(caller: Caller) -> str:
    """Under which name the history has somebody's versions."""
    return caller.user or caller.subject


def _stored(
    parts: Parts,
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
    parts: Parts, caller: Caller, proposal: Proposal, *, message: str, guards: Sequence[Guard] = ()
) -> int:
    """Make a proposal the version in force, and write down who did.

    Raises:
        GuardFailed: It would do what it must not.
        VersionConflict: What it was made from is not the newest any more.
    """
    if guards:
        guarding.check(guards, outlook_of(parts, caller, proposal))
    with database.writing(parts.engine) as conn:
        number = versions.store_checked(
            conn,
            proposal.after,
            author=author(caller),
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
