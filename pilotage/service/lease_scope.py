"""Whose lease it is: a pilot reports on its own attempts only."""

from datetime import timedelta

from sqlalchemy import Connection

from cs_config.operations import operations
from pilotage.service.callers import Caller, Role
from pilotage.service.parts import Parts
from taskqueue import attempts
from taskqueue.attempts import Attempt
from taskqueue.errors import LeaseNotFound

#: Seconds between heartbeats at most: so soon a pilot learns that its job was killed.
_HEARTBEAT = 20.0


def require(conn: Connection, caller: Caller, lease: str) -> Attempt:
    """The attempt with this lease, if it is the caller's.

    Raises:
        LeaseNotFound: It is not, or there never was one.
    """
    attempt = attempts.get(conn, lease)
    if not caller.is_operator and attempt.holder != caller.subject and not _is_of_gateway(caller, attempt):
        raise LeaseNotFound(lease)
    return attempt


def _is_of_gateway(caller: Caller, attempt: Attempt) -> bool:
    """Whether it came to the caller's site and VO by a gateway (this one, with another token)."""
    return (
        caller.role is Role.GATEWAY
        and attempt.holder.startswith(f"{Role.GATEWAY}:")
        and attempt.site in caller.sites
        and attempt.vo in caller.vos
    )


def length(parts: Parts, vo: str) -> timedelta:
    """For how long a sign of life from a running job is good."""
    leases = operations(parts.live.current, vo).leases
    return timedelta(seconds=max(leases.time, leases.stalled_time))


def heartbeat_every(parts: Parts, vo: str) -> float:
    """Seconds between heartbeats: some may get lost before the job counts as stalled."""
    stalled_time = operations(parts.live.current, vo).leases.stalled_time
    return min(_HEARTBEAT, stalled_time / 4)
