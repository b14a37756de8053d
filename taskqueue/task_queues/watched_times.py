"""Watched times: intervals in which an agent looked at all task queues of a VO, pass after pass.

It looks whether a queue that fits is open (`agents.waiting.held_time`). In other times nobody knows whether
the jobs could be matched.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, select

from taskqueue.db import sql
from taskqueue.leases.uptime import Interval, Uptime
from taskqueue.schema.tables import task_queues
from taskqueue.schema.tables import watched_times as table

EXTEND = sql.insert_or_update(table, "until")
VOS = select(task_queues.c.task_queue_id, task_queues.c.vo).where(sql.is_listed(task_queues.c.task_queue_id))
READ = select(table).where(table.c.vo.in_(bindparam("vos", expanding=True)))
REMOVE = delete(table).where(table.c.until < bindparam("before"))


def extend(conn: Connection, vo: str, *, since: datetime, until: datetime) -> None:
    """Extend the interval of a VO that began then, or begin it."""
    conn.execute(EXTEND, {"vo": vo, "since": since, "until": until})


def read_watched(conn: Connection, task_queue_ids: Collection[int], up: Uptime) -> Mapping[int, Uptime]:
    """The uptime in which the VO of each task queue was watched."""
    vos = {row.task_queue_id: row.vo for row in sql.read_batches(conn, VOS, task_queue_ids)}
    watched: defaultdict[str, list[Interval]] = defaultdict(list)
    for row in conn.execute(READ, {"vos": sorted(set(vos.values()))}):
        watched[row.vo].append(Interval(since=row.since, until=row.until))
    of_vo = {vo: up.restrict(watched[vo]) for vo in set(vos.values())}
    nothing = Uptime(())
    return {each: of_vo[vos[each]] if each in vos else nothing for each in task_queue_ids}


def remove(conn: Connection, *, before: datetime) -> int:
    """Delete intervals that ended before this time; how many."""
    return conn.execute(REMOVE, {"before": before}).rowcount
