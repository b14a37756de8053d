"""The record of days: what was seen minute by minute, an hour of one subject in a row.

A row for each minute would be more rows than all others where little runs. Rows are locked in the order of
their key, so that several processes may add to one of them.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, Row, bindparam, func, select, update

from taskqueue.db import sql
from taskqueue.schema.tables import day_records as table
from taskqueue.schema.tables import pilots, seen_hardware


class Series(StrEnum):
    """What is recorded, of which subject."""

    ANSWERS = "answers"  #: requests for jobs: site, CE, queue, VOs, answer
    STARTS = "starts"  #: jobs that were handed to pilots: id of their requirement class
    ADVERTISED = "advertised"  #: attributes in the last advertisement: scope
    CLOSED = "closed"  #: 1 while a ban or a downtime closes it: scope
    CONFIGURATION = "configuration"  #: version in force, and with it limits and delays: none


#: The answer that has jobs; others are the words for why there are none.
MATCHED: Final = "matched"
#: Names of a subject: those that its series states.
Subject: TypeAlias = tuple[str, ...]
#: Bytes of a row: sixty advertisements of a kilobyte. A minute for which it has no room is not recorded.
MOST_BYTES: Final = 64 << 10
#: A number or a JSON value by minute.
Minutes: TypeAlias = Mapping[datetime, Any]

CREATE = sql.insert_or_skip(table)
_IS_OF_SERIES = table.c.series == bindparam("the_series")
_IS_HOUR = table.c.hour == bindparam("the_hour")
LOCK = (
    select(table.c.subject, table.c.minutes)
    .where(_IS_OF_SERIES, _IS_HOUR, sql.is_listed(table.c.subject))
    .order_by(table.c.subject)
    .with_for_update()
)
WRITE = (
    update(table)
    .where(_IS_OF_SERIES, _IS_HOUR, table.c.subject == bindparam("the_subject"))
    .values(minutes=bindparam("the_minutes"))
)
SINCE = select(table.c.subject, table.c.hour, table.c.minutes).where(
    _IS_OF_SERIES, table.c.hour >= bindparam("since", type_=table.c.hour.type)
)
OF_SUBJECTS = SINCE.where(sql.is_listed(table.c.subject))
UNTIL = SINCE.where(table.c.hour <= bindparam("until", type_=table.c.hour.type))
_AT = pilots.c.asked_at
SLOTS = (
    select(
        *(pilots.c[each] for each in ("stamp", "vo", "site", "ce", "queue", "processors")),
        _AT.label("begin"),
        pilots.c.last_seen_at.label("end"),
        seen_hardware.c.shape,
    )
    .outerjoin(
        seen_hardware,
        (seen_hardware.c.site == pilots.c.site) & (seen_hardware.c.digest == pilots.c.shape),
    )
    .where(
        bindparam("until", type_=_AT.type) > _AT, pilots.c.last_seen_at >= bindparam("since", type_=_AT.type)
    )
    .order_by(_AT, pilots.c.stamp)
)
FIRST = select(func.min(table.c.hour, type_=table.c.hour.type)).where(_IS_OF_SERIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of a subject in one minute."""

    series: Series
    subject: Subject
    at: datetime  #: in the minute
    value: Any


def add_counts(conn: Connection, seen: Iterable[Seen]) -> None:
    """Add numbers to those of their minutes."""
    _merge(conn, seen, lambda old, new: dict(Counter(old) + Counter(new)))


def store_values(conn: Connection, seen: Iterable[Seen]) -> None:
    """Store values; of several in one minute the last."""
    _merge(conn, seen, lambda old, new: {**old, **new})


_ByMinute: TypeAlias = dict[str, Any]


def _merge(conn: Connection, seen: Iterable[Seen], join: Callable[[_ByMinute, _ByMinute], _ByMinute]) -> None:
    new: defaultdict[tuple[str, datetime, str], _ByMinute] = defaultdict(dict)
    for each in seen:
        row = new[each.series.value, _find_hour(each.at), json.dumps(each.subject)]
        row.update(join(row, {str(each.at.minute): each.value}))
    keys = sorted(new)
    if not keys:
        return
    empty = [
        {"series": series, "subject": text, "hour": hour, "minutes": "{}"} for series, hour, text in keys
    ]
    conn.execute(CREATE, empty)
    for (series, hour), alike in groupby(keys, key=lambda key: key[:2]):
        place = {"the_series": series, "the_hour": hour}
        rows = sql.read_batches(conn, LOCK, [text for *_, text in alike], **place)
        joined = {
            row.subject: json.dumps(join(json.loads(row.minutes), new[series, hour, row.subject]))
            for row in rows
        }
        values = [
            {**place, "the_subject": subject, "the_minutes": minutes}
            for subject, minutes in joined.items()
            if len(minutes) <= MOST_BYTES
        ]
        if values:
            conn.execute(WRITE, values)


def read_since(
    conn: Connection, series: Series, since: datetime, subjects: Iterable[Subject] | None = None
) -> Mapping[Subject, Minutes]:
    """What was seen since the minute of that time, by subject (None: of all)."""
    values = {"the_series": series.value, "since": _find_hour(since)}
    if subjects is None:
        rows = [*conn.execute(SINCE, values)]
    else:
        rows = sql.read_batches(conn, OF_SUBJECTS, [json.dumps(each) for each in subjects], **values)
    return _collect(rows, since)


def _collect(
    rows: Iterable[Row[*tuple[Any, ...]]], since: datetime, until: datetime | None = None
) -> Mapping[Subject, Minutes]:
    begin = since.replace(second=0, microsecond=0)
    found: defaultdict[Subject, dict[datetime, Any]] = defaultdict(dict)
    for row in rows:
        times = {
            row.hour + timedelta(minutes=int(each)): seen for each, seen in json.loads(row.minutes).items()
        }
        seen = {
            at: value for at, value in sorted(times.items()) if at >= begin and (until is None or at < until)
        }
        if seen:
            found[tuple(json.loads(row.subject))] |= seen
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot while its pilot was there."""

    stamp: str
    vo: str
    site: str
    ce: str
    queue: str
    processors: int | None
    begin: datetime  #: first request for jobs
    end: datetime  #: last request of the pilot
    shape: str | None  #: JSON of `hardware.HardwareShape`; None: not recorded, or none of the site's latest


def list_slots(conn: Connection, *, since: datetime, until: datetime) -> list[Slot]:
    """The slots that were there between two times, in the order of their begin."""
    return [Slot(**row._asdict()) for row in conn.execute(SLOTS, {"since": since, "until": until})]


def read_between(
    conn: Connection, series: Series, *, since: datetime, until: datetime
) -> Mapping[Subject, Minutes]:
    """What was seen from the minute of one time on and before another, by subject."""
    values = {"the_series": series.value, "since": _find_hour(since), "until": _find_hour(until)}
    return _collect(conn.execute(UNTIL, values), since, until)


def read_first(conn: Connection, series: Series) -> datetime | None:
    """The first hour of a series that is recorded; None: nothing is."""
    first: datetime | None = conn.execute(FIRST, {"the_series": series.value}).scalar_one()
    return first


def _find_hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
