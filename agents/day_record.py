"""Record agent: stores each minute what sites advertise, what is closed, and the configuration in force."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine

from agents import leader
from cs_config.versions import store
from taskqueue import day_record
from taskqueue.day_record import Seen, Series
from taskqueue.db import database
from taskqueue.sites import closures, scopes

NAME: Final = "day-record"
#: Longest time without a cycle after which advertisements are still recorded.
_LONGEST: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRecordResult:
    """Number of values that were recorded."""

    recorded: int = 0

    def __bool__(self) -> bool:
        return False  # routine: not worth a line in the log


def cycle(engine: Engine, *, now: datetime, holder: str) -> DayRecordResult | None:
    """Record this minute; None while another process is the leader."""
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        since = max(leadership.last or now - _LONGEST, now - _LONGEST)
        with database.reading(engine) as conn:
            seen = list(_list_seen(conn, since, now))
        with leadership.writing() as conn:
            day_record.store_values(conn, seen)
        return DayRecordResult(recorded=len(seen))


def _list_seen(conn: Connection, since: datetime, now: datetime) -> Iterator[Seen]:
    for scope in scopes.list_advertised_since(conn, since):
        at = scope.advertised_at or now
        yield Seen(series=Series.ADVERTISED, subject=(scope.scope,), at=at, value=scope.advertised)
    for closed in sorted(closures.list_closed(conn, now=now)):
        yield Seen(series=Series.CLOSED, subject=(closed,), at=now, value=1)
    yield Seen(series=Series.CONFIGURATION, subject=(), at=now, value=store.current_version(conn))
