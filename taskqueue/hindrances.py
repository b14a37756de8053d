"""What kept the jobs of a task queue from pilots, and when: as the matchers saw it, about a minute late."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import BindParameter, Connection, bindparam, select
from sqlalchemy.sql.dml import Insert

from taskqueue import batches
from taskqueue.tables import hindrances as table
from taskqueue.upserts import Twins, Upsert

#: A pilot that fits was served, with other jobs.
TURN: Final = "its turn"
#: All there are; of several at once the first counts. Where a place serves pilots that fit, the job's turn
#: has not come, whatever is closed elsewhere; the others are the words that a pilot is told.
ORDER: Final = (TURN, "limits", "throttled", "banned", "node")

_IDS: BindParameter[int] = bindparam("ids", expanding=True)
SINCE = select(table).where(
    table.c.task_queue_id.in_(_IDS), table.c.until >= bindparam("the_time", type_=table.c.until.type)
)


def _extend(insert: Upsert) -> Insert:
    until = insert.excluded.until
    return insert.on_conflict_do_update(
        index_elements=["task_queue_id", "cause", "since"],
        set_={"until": until},
        where=until > table.c.until,
    )


EXTEND = Twins(table, _extend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    """A time in which something kept the jobs of a task queue from pilots."""

    task_queue_id: int
    cause: str  #: one of `ORDER`
    since: datetime
    until: datetime


def write(conn: Connection, seen: Collection[Hindrance]) -> None:
    """Write down what was seen; what goes on from a time that is written already prolongs that.

    The same again says nothing new, and several matchers may write of one task queue at once.
    """
    if not seen:
        return
    written = of_task_queues(
        conn, {each.task_queue_id for each in seen}, since=min(each.since for each in seen)
    )
    ends: dict[tuple[int, str, datetime], datetime] = {}
    for each in seen:
        since = _beginning(each, written.get(each.task_queue_id, ()))
        key = (each.task_queue_id, each.cause, since)
        ends[key] = max(each.until, ends.get(key, each.until))
    # In one order, so that two matchers wait for each other only one way round.
    rows = [
        {"task_queue_id": key[0], "cause": key[1], "since": key[2], "until": ends[key]}
        for key in sorted(ends)
    ]
    conn.execute(EXTEND.of(conn), rows)


def of_task_queues(
    conn: Connection, task_queue_ids: Collection[int], *, since: datetime
) -> Mapping[int, list[Hindrance]]:
    """What kept the jobs of each of the task queues at that time or later, in no order."""
    found: defaultdict[int, list[Hindrance]] = defaultdict(list)
    for ids in batches.of(task_queue_ids):
        for row in conn.execute(SINCE, {"ids": ids, "the_time": since}).mappings():
            found[row["task_queue_id"]].append(Hindrance(**row))
    return found


def _beginning(seen: Hindrance, written: Iterable[Hindrance]) -> datetime:
    """Since when it holds, with what was written of it before."""
    joined = (
        each.since for each in written if each.cause == seen.cause and each.since <= seen.since <= each.until
    )
    return min(joined, default=seen.since)
