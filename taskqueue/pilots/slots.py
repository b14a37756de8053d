"""Slots of pilots: how many jobs one pilot may hold at once, and claim in an hour.

A pilot's token lies on a worker node, where others may read it. So it is worth one slot: at most as many open
attempts as the slot has processors, a limited rate of claims, and nothing after the pilot's end. Each process
serves the requests of one pilot one after the other; requests to several processes at the same moment may
exceed the slot by what each of them gives.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
)

from taskqueue.db import sql
from taskqueue.schema.tables import attempts, pilots
from taskqueue.states import PILOT_ENDS, PilotStatus

_HOUR = timedelta(hours=1)
#: Processors of a pilot that has not stated any.
_FEWEST = 1


class SlotRefusal(StrEnum):
    """Why a pilot gets no further job now."""

    ENDED = "pilot_ended"  #: it was reported to have ended
    FULL = "slot_full"  #: it holds as many jobs as its slot has processors
    TOO_FAST = "too_many_claims"  #: of the last hour


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    """The limits of a pilot at its queue."""

    processors: int  #: of the queue's slots; a pilot that stated fewer in its first request has those
    claims: int  #: in an hour, for each processor


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRoom:
    """How many jobs a pilot may claim now."""

    jobs: int
    refusal: SlotRefusal | None = None  #: if none


NO_ROOM = SlotRoom(jobs=0, refusal=SlotRefusal.FULL)

_is_open = attempts.c.closed_at.is_(None)
_ended = attempts.alias("ended")
#: A pilot that no director submitted may be started again with its token after it has ended by itself.
_OVER = frozenset({PilotStatus.ABORTED, PilotStatus.DELETED})
PILOTS = select(pilots.c.stamp, pilots.c.status, pilots.c.submitted_by, pilots.c.processors).where(
    pilots.c.stamp.in_(sql.IDS)
)
_SINCE = bindparam("since", type_=attempts.c.opened_at.type)
_is_recent = attempts.c.opened_at > _SINCE


def _count_attempts(
    which: ColumnElement[bool], *, open_: ColumnElement[int], recent: ColumnElement[int]
) -> Select[Any]:
    return (
        select(attempts.c.stamp, open_.label("open"), recent.label("recent"))
        .where(attempts.c.stamp.in_(sql.IDS), which)
        .group_by(attempts.c.stamp)
    )


#: Open attempts, and those that ended in the last hour, each from an index: a pilot may have had many others.
HELD = union_all(
    _count_attempts(_is_open, open_=func.count(), recent=func.count().filter(_is_recent)),
    _count_attempts(attempts.c.closed_at > _SINCE, open_=literal(0), recent=func.count().filter(_is_recent)),
)


def read_rooms(conn: Connection, limits: Mapping[str, SlotLimits], *, now: datetime) -> dict[str, SlotRoom]:
    """How many jobs pilots may claim now, by stamp."""
    if not limits:
        return {}
    known = {row.stamp: row for row in sql.read_batches(conn, PILOTS, limits)}
    held, recent = Counter[str](), Counter[str]()
    for row in sql.read_batches(conn, HELD, limits, since=now - _HOUR):
        held[row.stamp] += row.open
        recent[row.stamp] += row.recent
    rooms = {}
    for stamp, limit in limits.items():
        pilot = known.get(stamp)
        processors = min(limit.processors, (pilot and pilot.processors) or _FEWEST)
        free = processors - held[stamp]
        allowed = processors * limit.claims - recent[stamp]
        if pilot is not None and pilot.status in (PILOT_ENDS if pilot.submitted_by else _OVER):
            rooms[stamp] = SlotRoom(jobs=0, refusal=SlotRefusal.ENDED)
        elif free <= 0:
            rooms[stamp] = NO_ROOM
        elif allowed <= 0:
            rooms[stamp] = SlotRoom(jobs=0, refusal=SlotRefusal.TOO_FAST)
        else:
            rooms[stamp] = SlotRoom(jobs=min(free, allowed))
    return rooms


def has_no_room(
    stamp: ColumnElement[Any],
    processors: ColumnElement[Any],
    claims: ColumnElement[Any],
    now: ColumnElement[Any],
) -> ColumnElement[bool]:
    """Condition for PostgreSQL: `read_rooms` would give the pilot no room; false without `processors`."""
    own = select(pilots.c.processors).where(pilots.c.stamp == stamp).scalar_subquery()
    slot = func.least(func.coalesce(own, _FEWEST), processors)
    since = now - literal_column("INTERVAL '1 hour'")
    own_ended = (_ended.c.stamp == stamp, _ended.c.closed_at > since, _ended.c.opened_at > since)
    ended = select(func.count()).select_from(_ended).where(*own_ended).scalar_subquery()
    recent = func.count().filter(attempts.c.opened_at > since) + ended
    is_full = (
        select(or_(func.count() >= slot, recent >= slot * claims))
        .where(attempts.c.stamp == stamp, _is_open)
        .scalar_subquery()
    )
    # No IN: compiled statements have no lists.
    is_over = or_(*(pilots.c.status == each.value for each in sorted(_OVER)))
    has_ended = or_(*(pilots.c.status == each.value for each in sorted(PILOT_ENDS)))
    has_ended = or_(is_over, and_(pilots.c.submitted_by != "", has_ended))
    return and_(processors.is_not(None), or_(exists().where(pilots.c.stamp == stamp, has_ended), is_full))
