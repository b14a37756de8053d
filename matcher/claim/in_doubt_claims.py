"""Release of claimed jobs that could not be delivered, and claims with unknown outcome.

If the connection breaks before the commit is confirmed, a claim is in doubt. Its leases were generated here,
so they can be searched later and the jobs put back. The server may still be executing the claim at the first
search; it gives up within its statement time-out.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from matcher.request.match_request import MatchRequest
from taskqueue.db import database
from taskqueue.errors import LeaseNotFound
from taskqueue.leases import attempts, lifecycle

REASON = "The answer could not be delivered"


def release(conn: Connection, request: MatchRequest, leases: Iterable[str], *, now: datetime) -> None:
    """Put undelivered jobs back; one that was started all the same stays where it is.

    Raises:
        LeaseNotFound: One of them was never claimed.
    """
    recalled = [lifecycle.recall(conn, lease, reason=REASON, now=now) for lease in leases]
    # A started job stays the answer: a repetition of the request elsewhere gets no second job.
    if request.key is not None and all(recalled):
        attempts.release_keys(conn, [request.key])


def release_if_claimed(
    conn: Connection, request: MatchRequest, leases: Iterable[str], *, now: datetime
) -> bool:
    """Like `release` for a claim in doubt; False: not claimed, or not yet."""
    try:
        release(conn, request, leases, now=now)
    except LeaseNotFound:
        return False
    return True


#: Seconds for which a claim is searched; longer than a statement may take.
_SOUGHT = 60.0
#: Seconds between two searches.
_AGAIN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubtClaim:
    """A request with the leases that it may have got."""

    request: MatchRequest
    leases: tuple[str, ...]
    search_at: float  #: monotonic clock, as `until`
    until: float


class InDoubtClaims:
    """Claims in doubt of one process, thread-safe."""

    def __init__(self) -> None:
        self._open: list[InDoubtClaim] = []
        self._lock = Lock()

    @contextmanager
    def about(self, claims: Sequence[tuple[MatchRequest, tuple[str, ...]]]) -> Iterator[None]:
        """Record these claims, a list that may grow meanwhile, if their outcome stays unknown."""
        try:
            yield
        except Exception as error:  # including our own, which may follow the commit
            if _may_be_made(error):
                self.add(claims)
            raise

    def add(self, claims: Sequence[tuple[MatchRequest, tuple[str, ...]]]) -> None:
        """Record claims that may be committed, and will not be delivered."""
        now = time.monotonic()
        with self._lock:
            self._open += [
                InDoubtClaim(request=request, leases=leases, search_at=now, until=now + _SOUGHT)
                for request, leases in claims
                if leases
            ]

    def due(self) -> list[InDoubtClaim]:
        """Claims to search now; each returns until `settle` or the end of its time."""
        now = time.monotonic()
        with self._lock:
            due = [each for each in self._open if each.search_at <= now]
            self._open = [each for each in self._open if each.search_at > now]
            self._open += [replace(each, search_at=now + _AGAIN) for each in due if each.until > now]
        return due

    def settle(self, leases: Collection[str]) -> None:
        """Remove claims that were found, or delivered by a repeated request."""
        if self._open and leases:
            known = frozenset(leases)
            with self._lock:
                self._open = [each for each in self._open if known.isdisjoint(each.leases)]


def _may_be_made(error: Exception) -> bool:
    """Whether a claim may have been committed before this error."""
    refused = isinstance(error, DBAPIError) and not database.is_unavailable(error)
    return not (refused or database.is_conflict(error))
