"""Tokens that are not accepted any more, kept in memory and read again from the database."""

import logging
from collections.abc import Callable
from datetime import datetime
from itertools import accumulate
from secrets import token_hex

from sqlalchemy import Engine

from taskqueue import database, revoked_tokens

#: Between the id of a token and what makes that of a session of it.
_SESSION = "~"

_log = logging.getLogger(__name__)


class RevokedTokens:
    """Knows the revoked tokens of all processes, at most one refresh late."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._clock = clock
        self._token_ids: frozenset[str] = frozenset()

    def __contains__(self, token_id: str) -> bool:
        if not self._token_ids:
            return False
        begun_by = accumulate(token_id.split(_SESSION), lambda whole, part: f"{whole}{_SESSION}{part}")
        return any(each in self._token_ids for each in begun_by)

    def refresh(self) -> None:
        """Read them again; while the database is away the last known ones stay."""
        try:
            with database.reading(self._engine) as conn:
                self._token_ids = revoked_tokens.all_of(conn, now=self._clock())
        except database.UNAVAILABLE as error:
            _log.warning("the revoked tokens could not be read: %s", error)


def session_of(token_id: str) -> str:
    """An id for a session that ends when the token is revoked, but not the other way round."""
    return f"{token_id}{_SESSION}{token_hex(8)}"
