"""What somebody wants the configuration to be, and what that would do; nothing is changed."""

from collections.abc import Sequence

from cs_config import differences, proposals, versions, visible
from cs_config.configuration import Configuration
from cs_config.edits import Edit
from cs_config.errors import ConfigError, EditConflict, VersionConflict
from cs_config.proposals import Proposal
from cs_config.rights import Rights
from matcher.preview import outlook
from matcher.preview.outlook import Outlook
from pilotage.service.callers import Caller
from pilotage.service.configuring import in_force, rights
from pilotage.service.parts import Parts
from requirements.errors import NotAllowed
from requirements.problem import Problem
from taskqueue import database


def of_edits(parts: Parts, caller: Caller, edits: Sequence[Edit], *, expected: int | None) -> Proposal:
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
    allowed = rights.of(caller)
    try:
        return proposals.of_edits(base, current, edits, allowed)
    except ConfigError as error:
        raise _as_seen(error, current, allowed) from None


def of_text(parts: Parts, caller: Caller, text: str, *, source: str, expected: int | None = None) -> Proposal:
    """What a whole text would make of the configuration.

    Raises:
        NotAllowed: It is for operators.
        VersionConflict: `expected` is not the newest any more; None is whichever is.
        ConfigError: It is wrong.
    """
    require_everything(caller)
    current = in_force.newest(parts)
    _refuse_overtaken(parts, caller, expected, current)
    return proposals.of_text(current, text, source)


def require_everything(caller: Caller) -> None:
    """Let only those look at, or write, a whole text who may change all of it.

    Raises:
        NotAllowed: It is for operators.
    """
    if not caller.is_operator:
        raise NotAllowed(f"a whole configuration is for operators; {rights.of(caller).allowed}")


def back_to(parts: Parts, caller: Caller, number: int, *, expected: int | None) -> Proposal:
    """What the caller may change as it was in an earlier version; for an operator that is all.

    Raises:
        VersionNotFound: There is no such version.
        VersionConflict: `expected` is not the newest any more.
        ConfigError: What comes out is wrong.
    """
    current = in_force.newest(parts)
    _refuse_overtaken(parts, caller, expected, current)
    with database.reading(parts.engine) as conn:
        older = versions.load(conn, number)
    return proposals.of_older(current, older, rights.of(caller))


def conflict(parts: Parts, caller: Caller, expected: int, current: Configuration) -> VersionConflict:
    """Why a change comes too late: what is another now than in `expected`, as far as the caller sees it."""
    try:
        base = in_force.version(parts, expected, current)
    except (VersionConflict, ConfigError):
        return VersionConflict(expected=expected, current=current.version)
    seen = rights.of(caller)
    found = differences.between(visible.tree(base, seen), visible.tree(current, seen))
    return EditConflict(expected=expected, current=current.version, conflicts=found)


def outlook_of(parts: Parts, caller: Caller, proposal: Proposal) -> Outlook:
    """What a proposal would do, to all jobs that are the caller's business."""
    # What a site admin may change concerns his site, where every VO's jobs are his business.
    vos = None if caller.own_sites else caller.visible_vos
    with database.reading(parts.engine) as conn:
        return outlook.of(conn, proposal, vos=vos, now=parts.clock())


def _as_seen(error: ConfigError, config: Configuration, allowed: Rights) -> ConfigError:
    """The same without what it tells of others: their values may become wrong by this one's edits."""
    shown = tuple(each for each in error.problems if allowed.sees_path(config, tuple(each.path.split("/"))))
    return ConfigError(shown or (Problem(path="/", message="others rely on what this takes away"),))


def _refuse_overtaken(parts: Parts, caller: Caller, expected: int | None, current: Configuration) -> None:
    if expected is not None and expected != current.version:
        raise conflict(parts, caller, expected, current)
