"""Tokens that are not accepted any more, kept in memory and read again from the database."""

import logging
from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Engine

from taskqueue import database, revoked_tokens

_log = logging.getLogger(__name__)


class RevokedTokens:
    """Knows the revoked tokens of all processes, at most one refresh late."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._clock = clock
        self._token_ids: frozenset[str] = frozenset()

    def __contains__(self, token_id: str) -> bool:
        return token_id in self._token_ids

    def refresh(self) -> None:
        """Read them again; while the database is away the last known ones stay."""
        try:
            with database.reading(self._engine) as conn:
                self._token_ids = revoked_tokens.all_of(conn, now=self._clock())
        except database.UNAVAILABLE as error:
            _log.warning("the revoked tokens could not be read: %s", error)
