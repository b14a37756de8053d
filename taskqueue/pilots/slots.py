"""Slots of pilots: how many jobs one pilot may hold at once, and claim in an hour.

A pilot's token lies on a worker node, where others may read it. So it is worth one slot: its open attempts
have at most the slot's processors, its claims have a limited rate, and nothing comes after the pilot's end.
An empty slot takes any one job that fits what the pilot states.

This holds across processes: the claims of a pilot are numbered, and its next number is read together with
what it holds. If another process has given it a job meanwhile, that number is taken, and nothing is claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    func,
    select,
)

from cs_config.options import bounds
from requirements.states import PILOT_ENDS, PilotStatus
from taskqueue.db import sql
from taskqueue.schema.tables import attempts, pilots

_HOUR = timedelta(hours=1)
#: Processors of a pilot that has not stated any.
_FEWEST = 1


class SlotRefusal(StrEnum):
    """Why a pilot gets no further job now."""

    ENDED = "pilot_ended"  #: it was reported to have ended
    FULL = "slot_full"  #: its jobs have all processors of its slot
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
    processors: int = 0  #: that its jobs leave
    is_empty: bool = False  #: whether it has no job
    next_claim: int = 1  #: number of its next claim


NO_ROOM = SlotRoom(jobs=0, refusal=SlotRefusal.FULL)

#: A pilot that no director submitted may be started again with its token after it has ended by itself.
_OVER = frozenset({PilotStatus.ABORTED, PilotStatus.DELETED})
_own = attempts.alias("own")


def _select_own(stamp: ColumnElement[Any], value: ColumnElement[Any], *which: ColumnElement[bool]) -> Any:
    return select(value).where(_own.c.stamp == stamp, *which).correlate_except(_own).scalar_subquery()


def next_claim(stamp: ColumnElement[Any]) -> ColumnElement[int]:
    """The number of a pilot's next claim."""
    return func.coalesce(_select_own(stamp, func.max(_own.c.claim_number)), 0) + 1


def _select_used(stamp: ColumnElement[Any]) -> ScalarSelect[int]:
    """The processors of a pilot's open attempts; one without a record of them has one."""
    processors = func.coalesce(_own.c.processors, 1).label("processors")
    opened = select(processors).where(_own.c.stamp == stamp, _own.c.closed_at.is_(None))
    found = opened.limit(bounds.PROCESSORS).correlate_except(_own).subquery("opened")
    return select(func.coalesce(func.sum(found.c.processors), 0)).scalar_subquery()


def _select_rooms() -> Select[Any]:
    """Select the jobs that pilots have, and their claims since a time, by stamp."""
    given = sql.times_by_key("since")
    earlier = _select_own(given.c.key, func.max(_own.c.claim_number), _own.c.opened_at <= given.c.time)
    next_ = next_claim(given.c.key)
    return select(
        given.c.key.label("stamp"),
        *(pilots.c.status, pilots.c.submitted_by, pilots.c.processors),
        _select_used(given.c.key).label("used"),
        next_.label("next_claim"),
        (next_ - 1 - func.coalesce(earlier, 0)).label("recent"),
    ).select_from(given.outerjoin(pilots, pilots.c.stamp == given.c.key))


ROOMS = _select_rooms()


def read_rooms(conn: Connection, limits: Mapping[str, SlotLimits], *, now: datetime) -> dict[str, SlotRoom]:
    """How many jobs pilots may claim now, by stamp."""
    rooms: dict[str, SlotRoom] = {}
    for stamps in sql.split_batches(limits):
        for row in conn.execute(ROOMS, {"since": dict.fromkeys(stamps, now - _HOUR)}):
            limit = limits[row.stamp]
            processors = min(limit.processors, row.processors or _FEWEST)
            free = processors - row.used
            allowed = processors * limit.claims - row.recent
            if row.status in (PILOT_ENDS if row.submitted_by else _OVER):
                room = SlotRoom(jobs=0, refusal=SlotRefusal.ENDED)
            elif free <= 0:
                room = NO_ROOM
            elif allowed <= 0:
                room = SlotRoom(jobs=0, refusal=SlotRefusal.TOO_FAST)
            else:
                room = SlotRoom(
                    jobs=min(free, allowed),
                    processors=free,
                    is_empty=not row.used,
                    next_claim=row.next_claim,
                )
            rooms[row.stamp] = room
    return rooms
