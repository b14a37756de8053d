"""The queue that a pilot belongs to: the first that it states, for good.

A pilot's token may come without a queue. What it states first is stored with the pilot, so that a
token that leaks serves no other place. One that was sent through a broker may state no other queue than
those that the broker was allowed to pick.
"""

import json
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, update

from cs_config.address import QueueAddress
from taskqueue import pilots
from taskqueue.tables import pilots as table

BIND = (
    update(table)
    .where(table.c.stamp == bindparam("the_stamp"), table.c.site == "")
    .values(site=bindparam("new_site"), ce=bindparam("new_ce"), queue=bindparam("new_queue"))
)
BOUND = select(table.c.site, table.c.ce, table.c.queue, table.c.landings).where(
    table.c.stamp == bindparam("the_stamp")
)


def bind(conn: Connection, *, stamp: str, vo: str, queue: QueueAddress, now: datetime) -> QueueAddress | None:
    """Note that a pilot spoke to us, and bind it to a queue unless it is bound.

    Returns:
        The queue that it has; None: it has none, and was not sent to this one.
    """
    pilots.seen(conn, stamp=stamp, vo=vo, queue=None, now=now)
    row = conn.execute(BOUND, {"the_stamp": stamp}).one_or_none()
    if row is not None and not row.site and row.landings and str(queue) not in json.loads(row.landings):
        return None
    # Of two first requests the row's lock lets one through; the other finds the pilot bound.
    values = {"new_site": queue.site, "new_ce": queue.ce, "new_queue": queue.queue}
    conn.execute(BIND, {"the_stamp": stamp, **values})
    return bound(conn, stamp) or queue


def bound(conn: Connection, stamp: str) -> QueueAddress | None:
    """The queue that a pilot is bound to; None if it has not stated one."""
    row = conn.execute(BOUND, {"the_stamp": stamp}).one_or_none()
    if row is None or not row.site:
        return None
    return QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
