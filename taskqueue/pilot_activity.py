"""Which queues pilots have asked from lately, and which are still to come."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, case, func, or_, select

from cs_config.address import QueueAddress
from taskqueue.states import PilotStatus
from taskqueue.tables import pilots

_COMING = sorted({PilotStatus.SUBMITTED.value, PilotStatus.WAITING.value})

_asked = pilots.c.last_seen_at >= bindparam("since")
_is_coming = pilots.c.status.in_(_COMING)
BY_QUEUE = (
    select(
        pilots.c.site,
        pilots.c.ce,
        pilots.c.queue,
        func.sum(case((_asked, 1), else_=0)).label("asked"),
        func.sum(case((_is_coming, 1), else_=0)).label("coming"),
    )
    .where(pilots.c.vo == bindparam("vo"), or_(_asked, _is_coming))
    .group_by(pilots.c.site, pilots.c.ce, pilots.c.queue)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The pilots of a VO at one queue."""

    asked: int  #: how many asked for work in the time looked at
    coming: int  #: how many wait in the batch system, as far as it told


def by_queue(conn: Connection, vo: str, *, since: datetime) -> Mapping[QueueAddress, Activity]:
    """The queues where pilots of a VO asked since then, or are to come."""
    rows = conn.execute(BY_QUEUE, {"vo": vo, "since": since})
    return {
        QueueAddress(site=row.site, ce=row.ce, queue=row.queue): Activity(asked=row.asked, coming=row.coming)
        for row in rows
    }
