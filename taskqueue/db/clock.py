"""The clock of the database: one time for all processes, on whatever hosts.

Times that two hosts compare (leases, heartbeats, ends of bans, lifetimes of advertisements and tokens) are
the database's. A transaction reads its time once, or takes it from a `DatabaseClock`, which needs no round
trip. On SQLite it is the time of this host: there is only one.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine, func, select

from taskqueue.db import database

log = logging.getLogger(__name__)

TIME_POSTGRESQL = select(func.clock_timestamp())
#: Largest offset of a host's clock with which it does its work.
MOST_OFFSET: Final = timedelta(seconds=30)
#: Seconds between two measurements.
EVERY: Final = 5.0


def utc_now() -> datetime:
    """Time of this host."""
    return datetime.now(UTC)


def read_time(conn: Connection, now: datetime) -> datetime:
    """Time of the database; on SQLite `now`."""
    return now if conn.dialect.name == "sqlite" else conn.execute(TIME_POSTGRESQL).scalar_one()


def describe_offset(offset: timedelta) -> str | None:
    """The problem of a clock with this offset from the database's; None: the offset is small enough."""
    if abs(offset) <= MOST_OFFSET:
        return None
    which = "ahead of" if offset > timedelta() else "behind"
    return (
        f"the clock of this host is {abs(offset).total_seconds():.0f} s {which} the database's, "
        f"at most {MOST_OFFSET.total_seconds():.0f} s are allowed: set the clocks"
    )


class DatabaseClock:
    """The time of the database, measured at intervals, and in between counted by a clock that nobody sets.

    Thread-safe; the error is at most the duration of a reading.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        host: Callable[[], datetime] = utc_now,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Measure for the first time. `host` is the clock of this host, `steady` counts seconds."""
        self._engine = engine
        self._host = host
        self._steady = steady
        self._is_host = engine.dialect.name == "sqlite"
        self._measuring = threading.Lock()
        self._known: tuple[datetime, float] | None = None  #: a time, and `steady` at that moment
        self.offset = timedelta()  #: by how much the clock of this host was ahead at the last measurement
        self.problem: str | None = None  #: of an offset that is too large
        self.read()

    def __call__(self) -> datetime:
        """Time of the database, without asking it."""
        if self._is_host or self._known is None:
            return self._host()
        at, seconds = self._known
        return at + timedelta(seconds=self._steady() - seconds)

    def read(self) -> datetime:
        """Read the time of the database, and measure the offset of this host."""
        if self._is_host:
            return self._host()
        with self._measuring:
            began = self._host()
            with database.reading(self._engine) as conn:
                at = read_time(conn, began)
            self._known = at, self._steady()
            # The host's time of that moment lies between two: one that stood still meanwhile is not ahead.
            self.offset = max(began - at, min(self._host() - at, timedelta()))
            before, self.problem = self.problem, describe_offset(self.offset)
        if self.problem and not before:
            log.error("%s", self.problem)
        return at
