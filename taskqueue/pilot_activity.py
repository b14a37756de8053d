"""Which queues pilots have asked from lately, and which are still to come."""

import json
from collections import Counter
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
#: Those whose queue a broker picks, by where they may land.
ON_THEIR_WAY = (
    select(pilots.c.landings, func.count().label("coming"))
    .where(pilots.c.vo == bindparam("vo"), _is_coming, pilots.c.site == "", pilots.c.landings.is_not(None))
    .group_by(pilots.c.landings)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The pilots of a VO at one queue."""

    asked: int  #: how many asked for work in the time looked at
    coming: int  #: how many wait in the batch system, as far as it told, or may land there


def by_queue(conn: Connection, vo: str, *, since: datetime) -> Mapping[QueueAddress, Activity]:
    """The queues where pilots of a VO asked since then, or are to come."""
    asked: Counter[QueueAddress] = Counter()
    coming: Counter[QueueAddress] = Counter()
    for row in conn.execute(BY_QUEUE, {"vo": vo, "since": since}):
        queue = QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
        asked[queue], coming[queue] = row.asked, row.coming
    for row in conn.execute(ON_THEIR_WAY, {"vo": vo}):
        coming.update(dict.fromkeys(map(QueueAddress.parse, json.loads(row.landings)), row.coming))
    return {queue: Activity(asked=asked[queue], coming=coming[queue]) for queue in asked.keys() | coming}
