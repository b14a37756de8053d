"""Whose lease it is: a pilot reports on its own attempts only."""

from sqlalchemy import Connection

from pilotage.service.callers import Caller, Role
from taskqueue import attempts
from taskqueue.attempts import Attempt
from taskqueue.errors import LeaseNotFound


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
