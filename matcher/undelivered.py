"""Jobs that were claimed for a pilot which did not wait for them."""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import Connection

from matcher import claiming
from matcher.requests import MatchRequest
from taskqueue import handover, match_requests
from taskqueue.errors import LeaseNotFound

REASON = "The answer could not be delivered"


def release(conn: Connection, request: MatchRequest, leases: Iterable[str], *, now: datetime) -> None:
    """Put the jobs back that nobody was told of; what was begun all the same stays where it is.

    Raises:
        LeaseNotFound: One of them was never claimed.
    """
    recalled = [handover.recall(conn, lease, reason=REASON, now=now) for lease in leases]
    key = claiming.key_of(request)
    # What was begun stays the answer: the same request, said once more elsewhere, gets no second job.
    if key is not None and all(recalled):
        match_requests.forget(conn, [key])


def release_if_claimed(
    conn: Connection, request: MatchRequest, leases: Iterable[str], *, now: datetime
) -> bool:
    """The same where nobody knows whether they were claimed; False: they were not, or not yet."""
    try:
        release(conn, request, leases, now=now)
    except LeaseNotFound:
        return False
    return True
