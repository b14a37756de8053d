"""Jobs that were claimed for a pilot which did not wait for them."""

from datetime import datetime

from sqlalchemy import Connection

from matcher import claiming
from matcher.requests import MatchAnswer, MatchRequest
from taskqueue import handover, match_requests

REASON = "The answer could not be delivered"


def release(conn: Connection, request: MatchRequest, answer: MatchAnswer, *, now: datetime) -> None:
    """Put the jobs back that nobody was told of; what was begun all the same stays where it is."""
    for match in answer.matches:
        handover.recall(conn, match.lease, reason=REASON, now=now)
    key = claiming.key_of(request)
    if key is not None:
        match_requests.forget(conn, [key])
