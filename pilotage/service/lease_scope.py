"""Whose lease it is: a pilot reports on its own attempts only."""

from datetime import timedelta

from sqlalchemy import Connection

from cs_config.operations import operations
from pilotage.service.callers import Caller
from pilotage.service.parts import Parts
from taskqueue import attempts
from taskqueue.attempts import Attempt
from taskqueue.errors import LeaseNotFound


def require(conn: Connection, caller: Caller, lease: str) -> Attempt:
    """The attempt with this lease, if it is the caller's.

    Raises:
        LeaseNotFound: It is not, or there never was one.
    """
    attempt = attempts.get(conn, lease)
    if not caller.is_operator and attempt.holder != caller.subject:
        raise LeaseNotFound(lease)
    return attempt


def length(parts: Parts, vo: str) -> timedelta:
    """For how long a sign of life from a running job is good."""
    leases = operations(parts.live.current, vo).leases
    return timedelta(seconds=max(leases.time, leases.stalled_time))
