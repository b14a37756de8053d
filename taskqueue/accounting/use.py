"""What jobs used: the attempts that are over, and how many jobs ended, by the hour.

Wall time lies in the hours in which it was spent, so that it divided by the length of an hour is how many
cores were busy; jobs and attempts lie in the hour of their end. A job that failed and was started again
ends again, and counts again. So does an attempt that was lost and came back: its time until it was lost
counts with the loss, the rest with its end.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, or_
from sqlalchemy.sql.dml import Insert

from taskqueue.accounting import keys
from taskqueue.accounting.keys import Key, hour_of
from taskqueue.accounting.log_reader import Span
from taskqueue.states import FINAL, HELD, JobStatus
from taskqueue.tables import accounted_use as table
from taskqueue.tables import attempts, job_log
from taskqueue.upserts import Twins, Upsert

NAME: Final = "use"

_HOUR: Final = timedelta(hours=1)
#: Longer than any batch slot: a clock was wrong, and the time is nobody's.
_LONGEST: Final = timedelta(days=60)

_FINAL, _HELD = sorted(FINAL), sorted(HELD)
_FROM, _TO = job_log.c.from_status, job_log.c.to_status
is_end = and_(_TO.in_(_FINAL), _FROM.not_in(_FINAL))
_leaves_pilot = and_(_FROM.in_(_HELD), _TO.not_in(_HELD))
#: Of a job that was killed; its attempt goes on until its pilot has ended it.
_is_over_late = and_(_FROM == _TO, _TO.in_([JobStatus.KILLED.value, JobStatus.DELETED.value]))

HAPPENED = keys.told(
    *(_FROM, attempts.c.started_at, attempts.c.lost_at, attempts.c.closed_at),
    *(attempts.c.processors, attempts.c.request),
).where(or_(is_end, _leaves_pilot, _is_over_late))


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Sums."""

    jobs: int = 0  #: that ended
    attempts: int = 0  #: that had begun and are over
    wall_seconds: float = 0.0  #: of attempts
    core_seconds: float = 0.0  #: wall time, times the cores that the job might use
    cpu_seconds: float = 0.0  #: as far as pilots told
    told_core_seconds: float = 0.0  #: those of the attempts whose CPU time was told
    normalised_seconds: float = 0.0  #: CPU time in units of a reference processor, where the power was told

    def __add__(self, other: "Use") -> "Use":
        return Use(**{name: getattr(self, name) + getattr(other, name) for name in NAMES})

    def __mul__(self, share: float) -> "Use":
        """A part of the times; jobs and attempts are not divided."""
        return Use(**{name: getattr(self, name) * share for name in NAMES if name.endswith("seconds")})


NAMES: Final = tuple(each.name for each in fields(Use))


def _add(insert: Upsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=keys.NAMES,
        set_={name: table.c[name] + insert.excluded[name] for name in NAMES},
    )


ADD = Twins(table, _add)


def count(conn: Connection, span: Span) -> None:
    """Add up what was used by what is over in a span of the log."""
    found: defaultdict[Key, Use] = defaultdict(Use)
    for row in conn.execute(HAPPENED, span.bounds):
        for key, used in _used(row):
            found[key] += used
    if found:
        conn.execute(ADD.of(conn), [asdict(key) | asdict(found[key]) for key in sorted(found)])


def spread(since: datetime, until: datetime) -> Iterator[tuple[datetime, float]]:
    """The hours that a time touches, each with its part of it; the parts sum to 1."""
    length = (until - since).total_seconds()
    if not 0 < length <= _LONGEST.total_seconds():
        yield hour_of(until), 1.0
        return
    hour = hour_of(since)
    while hour < until:
        inside = min(hour + _HOUR, until) - max(hour, since)
        yield hour, inside.total_seconds() / length
        hour += _HOUR


def _used(row: Row[*tuple[Any, ...]]) -> Iterator[tuple[Key, Use]]:
    its_end = Key.of(row, hour_of(row.at))
    if row.to_status in FINAL and row.from_status not in FINAL:
        yield its_end, Use(jobs=1)
    if row.started_at is None or not _is_over(row):
        return
    yield its_end, Use(attempts=1)
    was_lost = row.lost_at is not None and row.lost_at < row.at
    since = row.lost_at if was_lost else row.started_at
    used = _of_attempt(row, since)
    for hour, share in spread(since, row.at):
        yield Key.of(row, hour), used * share


def _is_over(row: Row[*tuple[Any, ...]]) -> bool:
    """Whether the attempt was closed in this moment: each has one such row of the log."""
    if row.from_status == row.to_status:
        return bool(row.closed_at == row.at)
    return row.from_status in HELD and row.to_status != JobStatus.KILLED


def _of_attempt(row: Row[*tuple[Any, ...]], since: datetime) -> Use:
    wall = _wall_seconds(since, row.at)
    processors = row.processors or 1
    # What the pilot of an attempt that came back said at its end is not of the loss before.
    told = {} if row.to_status == JobStatus.RESCHEDULED else _told(row.request)
    cpu, power = told.get("cpu_seconds"), told.get("cpu_power")
    return Use(
        wall_seconds=wall,
        core_seconds=wall * processors,
        cpu_seconds=cpu or 0.0,
        # CPU time is of the whole attempt.
        told_core_seconds=0.0 if cpu is None else _wall_seconds(row.started_at, row.at) * processors,
        normalised_seconds=(cpu or 0.0) * (power or 0.0),
    )


def _wall_seconds(since: datetime, until: datetime) -> float:
    seconds = (until - since).total_seconds()
    return seconds if 0 < seconds <= _LONGEST.total_seconds() else 0.0


def _told(request: str | None) -> Mapping[str, float | None]:
    """What the pilot said when it finished."""
    said = {} if request is None else json.loads(request)
    told: Mapping[str, float | None] = said.get("finish", {})
    return told
