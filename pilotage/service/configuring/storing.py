"""Changing the configuration for somebody.

What takes long is done outside of transactions; who was overtaken meanwhile looks again.
"""

from collections.abc import Callable, Sequence

from cs_config import proposals, versions
from cs_config.edits import Edit
from cs_config.errors import ConfigError, VersionConflict
from cs_config.proposals import Proposal
from matcher.preview import guards as guarding
from matcher.preview.guards import Guard
from pilotage.service import audit
from pilotage.service.callers import Caller
from pilotage.service.configuring import in_force, proposing, rights
from pilotage.service.parts import Parts
from taskqueue import database

#: Tries while others store versions too.
_TRIES = 10
#: Characters of paths that a line of the audit log names.
_TOLD = 4000


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
        lambda: proposing.of_edits(parts, caller, edits, expected=expected),
        message=message,
        guards=guards,
    )


def rollback(
    parts: Parts,
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
        lambda: proposing.back_to(parts, caller, number, expected=expected),
        message=": ".join(filter(None, (f"back to version {number}", message))),
        guards=guards,
    )


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
        current = in_force.newest(parts)
    except ConfigError:  # what cannot be read any more can be replaced all the same
        return _replaced_unseen(parts, caller, text, message=message, source=source, expected=expected)
    proposal = proposals.of_text(current, text, source)
    if expected != current.version:
        raise proposing.conflict(parts, caller, expected, current)
    return store(parts, caller, proposal, message=message, guards=guards)


def _replaced_unseen(
    parts: Parts, caller: Caller, text: str, *, message: str, source: str, expected: int
) -> int:
    with database.writing(parts.engine) as conn:
        number = versions.store(
            conn,
            text,
            author=rights.author(caller),
            message=message,
            source=source,
            expected=expected,
            now=parts.clock(),
        )
    audit.done(caller, "configuration", version=number, message=message)
    return number


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
        guarding.check(guards, proposing.outlook_of(parts, caller, proposal))
    with database.writing(parts.engine) as conn:
        number = versions.store_checked(
            conn,
            proposal.after,
            author=rights.author(caller),
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
