"""Resource usage of closed attempts and number of ended jobs, by hour, VO, owner, place and final status.

Wall time is booked in the hours in which it was spent, so wall time divided by the length of an hour is the
number of busy cores. Jobs and attempts are booked in the hour of their end. A job that failed and was
rescheduled ends again and counts again.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Self

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, or_, select
from sqlalchemy.sql.dml import Insert

from taskqueue.accounting.log_reader import LogSpan, is_within
from taskqueue.db.sql import DialectInsert, Upsert
from taskqueue.schema.tables import accounted_use as table
from taskqueue.schema.tables import attempts, job_log, jobs
from taskqueue.states import FINAL, HELD, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AccountingKey:
    """What sums are kept by."""

    hour: datetime
    vo: str
    site: str  #: of the attempt, as its CE and queue; empty: the job had none
    ce: str
    queue: str
    owner: str
    owner_group: str
    status: str  #: that the job came into: its end, or Rescheduled

    @classmethod
    def from_row(cls, row: Row[*tuple[Any, ...]], hour: datetime) -> Self:
        """By what something is kept that `told` tells, of that hour."""
        return cls(
            hour=hour,
            vo=row.vo,
            site=row.site or "",
            ce=row.ce or "",
            queue=row.queue or "",
            owner=row.owner,
            owner_group=row.owner_group,
            status=row.to_status,
        )


KEY_NAMES: Final = tuple(each.name for each in fields(AccountingKey))

_LOG_COLUMNS = (job_log.c.at, job_log.c.to_status)
_JOB_COLUMNS = (jobs.c.vo, jobs.c.owner, jobs.c.owner_group)
_ATTEMPT_COLUMNS = (attempts.c.site, attempts.c.ce, attempts.c.queue)


def select_log_rows(*more: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """The rows of a span of the log: what keys are made of, and more of the row, its job and its attempt."""
    return (
        select(*_LOG_COLUMNS, *_JOB_COLUMNS, *_ATTEMPT_COLUMNS, *more)
        .join(jobs, jobs.c.job_id == job_log.c.job_id)
        .outerjoin(attempts, and_(attempts.c.job_id == job_log.c.job_id, attempts.c.epoch == job_log.c.epoch))
        .where(is_within)
    )


def truncate_to_hour(at: datetime) -> datetime:
    """The beginning of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


READER_NAME: Final = "use"

_HOUR: Final = timedelta(hours=1)
#: Longer than any batch slot: a clock was wrong, and the time is nobody's.
_LONGEST: Final = timedelta(days=60)

_FINAL, _HELD = sorted(FINAL), sorted(HELD)
_FROM, _TO = job_log.c.from_status, job_log.c.to_status
is_end = and_(_TO.in_(_FINAL), _FROM.not_in(_FINAL))
_leaves_pilot = and_(_FROM.in_(_HELD), _TO.not_in(_HELD))
#: Of a job that was killed; its attempt goes on until its pilot has ended it.
_is_late_end = and_(_FROM == _TO, _TO.in_([JobStatus.KILLED.value, JobStatus.DELETED.value]))

ENDED_ATTEMPTS = select_log_rows(
    *(_FROM, attempts.c.started_at, attempts.c.lost_at, attempts.c.closed_at),
    *(attempts.c.processors, attempts.c.request),
).where(or_(is_end, _leaves_pilot, _is_late_end))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Sums."""

    jobs: int = 0  #: that ended
    attempts: int = 0  #: that had begun and are over
    wall_seconds: float = 0.0  #: of attempts
    core_seconds: float = 0.0  #: wall time, times the cores that the job might use
    cpu_seconds: float = 0.0  #: as far as pilots told
    told_core_seconds: float = 0.0  #: those of the attempts whose CPU time was told
    normalised_seconds: float = 0.0  #: CPU time in units of a reference processor, where the power was told

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in SUM_NAMES})

    def __mul__(self, share: float) -> "Usage":
        """A part of the times; jobs and attempts are not divided."""
        return Usage(**{name: getattr(self, name) * share for name in SUM_NAMES if name.endswith("seconds")})


SUM_NAMES: Final = tuple(each.name for each in fields(Usage))


def _add(insert: DialectInsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=KEY_NAMES,
        set_={name: table.c[name] + insert.excluded[name] for name in SUM_NAMES},
    )


ADD = Upsert(table, _add)


def count_usage(conn: Connection, span: LogSpan) -> None:
    """Add up what was used by what is over in a span of the log."""
    found: defaultdict[AccountingKey, Usage] = defaultdict(Usage)
    for row in conn.execute(ENDED_ATTEMPTS, span.bounds):
        for key, used in _list_usage(row):
            found[key] += used
    if found:
        conn.execute(ADD.to_statement(conn), [asdict(key) | asdict(found[key]) for key in sorted(found)])


def spread_over_hours(since: datetime, until: datetime) -> Iterator[tuple[datetime, float]]:
    """The hours that a time touches, each with its part of it; the parts sum to 1."""
    length = (until - since).total_seconds()
    if not 0 < length <= _LONGEST.total_seconds():
        yield truncate_to_hour(until), 1.0
        return
    hour = truncate_to_hour(since)
    while hour < until:
        inside = min(hour + _HOUR, until) - max(hour, since)
        yield hour, inside.total_seconds() / length
        hour += _HOUR


def _list_usage(row: Row[*tuple[Any, ...]]) -> Iterator[tuple[AccountingKey, Usage]]:
    its_end = AccountingKey.from_row(row, truncate_to_hour(row.at))
    if row.to_status in FINAL and row.from_status not in FINAL:
        yield its_end, Usage(jobs=1)
    if row.started_at is None or not _is_closed(row):
        return
    yield its_end, Usage(attempts=1)
    was_lost = row.lost_at is not None and row.lost_at < row.at
    since = row.lost_at if was_lost else row.started_at
    used = _measure_attempt(row, since)
    for hour, share in spread_over_hours(since, row.at):
        yield AccountingKey.from_row(row, hour), used * share


def _is_closed(row: Row[*tuple[Any, ...]]) -> bool:
    """Whether the attempt was closed in this moment: each has one such row of the log."""
    if row.from_status == row.to_status:
        return bool(row.closed_at == row.at)
    return row.from_status in HELD and row.to_status != JobStatus.KILLED


def _measure_attempt(row: Row[*tuple[Any, ...]], since: datetime) -> Usage:
    wall = _wall_seconds(since, row.at)
    processors = row.processors or 1
    # What the pilot of an attempt that came back said at its end is not of the loss before.
    told = {} if row.to_status == JobStatus.RESCHEDULED else _parse_request(row.request)
    cpu, power = told.get("cpu_seconds"), told.get("cpu_power")
    return Usage(
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


def _parse_request(request: str | None) -> Mapping[str, float | None]:
    """What the pilot said when it finished."""
    said = {} if request is None else json.loads(request)
    told: Mapping[str, float | None] = said.get("finish", {})
    return told
