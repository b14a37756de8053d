"""Jobs that were claimed for a pilot which did not wait for them.

Claims of which nobody knows whether they were made: the connection broke before the database said so.

Their leases were made here, so they can be looked for afterwards, and what was claimed goes back. The
server may still be at it when we look first; it gives up within its statement time-out.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from matcher.claim import claim_loop
from matcher.request.match_request import MatchRequest
from taskqueue.db import database, retry
from taskqueue.errors import LeaseNotFound
from taskqueue.leases import lifecycle, match_requests

REASON = "The answer could not be delivered"


def release(conn: Connection, request: MatchRequest, leases: Iterable[str], *, now: datetime) -> None:
    """Put the jobs back that nobody was told of; what was begun all the same stays where it is.

    Raises:
        LeaseNotFound: One of them was never claimed.
    """
    recalled = [lifecycle.recall(conn, lease, reason=REASON, now=now) for lease in leases]
    key = claim_loop.request_key(request)
    # What was begun stays the answer: the same request, said once more elsewhere, gets no second job.
    if key is not None and all(recalled):
        match_requests.release_keys(conn, [key])


def release_if_claimed(
    conn: Connection, request: MatchRequest, leases: Iterable[str], *, now: datetime
) -> bool:
    """The same where nobody knows whether they were claimed; False: they were not, or not yet."""
    try:
        release(conn, request, leases, now=now)
    except LeaseNotFound:
        return False
    return True


#: Seconds for which a claim is looked for; longer than a statement may take.
_SOUGHT = 60.0
#: Seconds between two looks.
_AGAIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubtClaim:
    """A request, and what it may have been given."""

    request: MatchRequest
    leases: tuple[str, ...]
    look_at: float  #: on the monotonic clock, as is `until`
    until: float


class InDoubtClaims:
    """Those of one process; used by the thread that claims."""

    def __init__(self) -> None:
        self._open: list[InDoubtClaim] = []

    @contextmanager
    def about(self, claims: Sequence[tuple[MatchRequest, tuple[str, ...]]]) -> Iterator[None]:
        """Remember these, which may grow meanwhile, if nobody hears what became of them."""
        try:
            yield
        except Exception as error:  # also our own, which may come after the commit
            if _may_be_made(error):
                now = time.monotonic()
                self._open += [
                    InDoubtClaim(request=request, leases=leases, look_at=now, until=now + _SOUGHT)
                    for request, leases in claims
                    if leases
                ]
            raise

    def due(self) -> list[InDoubtClaim]:
        """What is to be looked for now; it comes again until `settle` is told or its time is over."""
        now = time.monotonic()
        due = [each for each in self._open if each.look_at <= now]
        self._open = [each for each in self._open if each.look_at > now]
        self._open += [replace(each, look_at=now + _AGAIN) for each in due if each.until > now]
        return due

    def settle(self, leases: Collection[str]) -> None:
        """These were found, or were given to who asked again: of them there is no doubt any more."""
        if self._open and leases:
            known = frozenset(leases)
            self._open = [each for each in self._open if known.isdisjoint(each.leases)]


def _may_be_made(error: Exception) -> bool:
    """Whether a claim may have been made before this was raised."""
    refused = isinstance(error, DBAPIError) and not database.is_unavailable(error)
    return not (refused or retry.is_conflict(error))
