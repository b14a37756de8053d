"""Wait causes: intervals in which a cause kept the jobs of a task queue from pilots.

A job that is moved to another task queue keeps the causes of its former one until that time.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, func, select

from taskqueue.db import sql
from taskqueue.schema.tables import former_task_queues
from taskqueue.schema.tables import wait_causes as table

#: A pilot that could run the job got other jobs first.
TURN_CAUSE: Final = "its turn"
#: The sites where pilots asked were banned; or all queues that fit were closed, or switched off
#: (`agents.waiting.held_time`).
BAN_CAUSE: Final = "banned"
#: All causes; of several at once the first counts. Where pilots that fit get jobs, the job only waits its
#: turn, whatever is closed elsewhere. The others are the words in the answers to pilots.
CAUSE_ORDER: Final = (TURN_CAUSE, "limits", "throttled", BAN_CAUSE, "node")

#: Cause of a waiting job while no other is known.
PILOT_CAUSE: Final = "a pilot"

CAUSES_SINCE = select(table).where(
    sql.is_listed(table.c.task_queue_id), table.c.until >= bindparam("the_time", type_=table.c.until.type)
)


#: Two moves in one moment: the job was in no task queue between them.
LEAVE = sql.insert_or_skip(former_task_queues)
LEFT = (
    select(former_task_queues)
    .where(sql.is_listed(former_task_queues.c.job_id))
    .order_by(former_task_queues.c.job_id, former_task_queues.c.until)
)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


def _join_stored(given: sql.GivenRow) -> Select[Any]:
    """The seen intervals; one that continues stored ones begins when they do."""
    seen = select(*(value.label(name) for name, value in given.items())).subquery("seen")
    stored = table.alias()
    continues = (
        select(func.min(stored.c.since))
        .where(
            stored.c.task_queue_id == seen.c.task_queue_id,
            stored.c.cause == seen.c.cause,
            stored.c.since <= seen.c.since,
            stored.c.until >= seen.c.since,
        )
        .correlate(seen)
        .scalar_subquery()
    )
    since = func.coalesce(continues, seen.c.since).label("since")
    joined = select(seen.c.task_queue_id, seen.c.cause, since, seen.c.until).subquery()
    key = (joined.c.task_queue_id, joined.c.cause, joined.c.since)
    # Ordered, so that two matchers lock the rows in the same order.
    return select(*key, func.max(joined.c.until)).group_by(*key).order_by(*key)


_NEW = sql.insert(table)
RECORD_CAUSES = sql.BulkStatement(
    list(table.c),
    lambda given: _NEW.from_select(table.c.keys(), _join_stored(given)).on_conflict_do_update(
        index_elements=table.primary_key,
        set_={"until": _NEW.excluded.until},
        where=_NEW.excluded.until > table.c.until,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitCause:
    """An interval in which a cause kept the jobs of a task queue from pilots."""

    task_queue_id: int
    cause: str  #: one of `CAUSE_ORDER`
    since: datetime
    until: datetime


def record_causes(conn: Connection, seen: Collection[WaitCause]) -> None:
    """Store causes; one that continues a stored interval extends it.

    Idempotent; several matchers may write about one task queue at once.
    """
    columns = {name: [getattr(each, name) for each in seen] for name in table.c.keys()}  # noqa: SIM118  (no dict)
    RECORD_CAUSES.execute(conn, columns)


def leave_task_queues(conn: Connection, left: Mapping[int, int], *, now: datetime) -> None:
    """Store the task queues that jobs, by id, were in until now, in the transaction that moves them."""
    rows = [{"job_id": job_id, "task_queue_id": each, "until": now} for job_id, each in sorted(left.items())]
    if rows:
        conn.execute(LEAVE, rows)


def read_causes_of_jobs(
    conn: Connection, task_queue_ids: Mapping[int, int | None], *, since: datetime
) -> Mapping[int, Sequence[WaitCause]]:
    """What kept each of some jobs from pilots at that time or later, unordered.

    `task_queue_ids` has the task queue of each job now, or the last one; None: it was in none.
    """
    stays: defaultdict[int, list[tuple[int, datetime]]] = defaultdict(list)
    for row in sql.read_batches(conn, LEFT, task_queue_ids):
        stays[row.job_id].append((row.task_queue_id, row.until))
    for job_id, task_queue_id in task_queue_ids.items():
        if task_queue_id is not None:
            stays[job_id].append((task_queue_id, _LAST))
    causes = read_causes(conn, {each for stay in stays.values() for each, _ in stay}, since=since)
    return {job_id: _join_stays(stays.get(job_id, ()), causes) for job_id in task_queue_ids}


def _join_stays(
    stays: Sequence[tuple[int, datetime]], causes: Mapping[int, Sequence[WaitCause]]
) -> Sequence[WaitCause]:
    """The causes of task queues, of each in the time in which a job was in it, until the time given."""
    if len(stays) == 1:
        return causes.get(stays[0][0], ())
    begins = [_FIRST, *(until for _, until in stays)]
    return [
        replace(each, since=max(each.since, begin), until=min(each.until, end))
        for (task_queue_id, end), begin in zip(stays, begins, strict=False)
        for each in causes.get(task_queue_id, ())
        if each.since < end and each.until > begin
    ]


def read_causes(
    conn: Connection, task_queue_ids: Collection[int], *, since: datetime
) -> Mapping[int, list[WaitCause]]:
    """Causes of each task queue that lasted at that time or later, unordered."""
    found: defaultdict[int, list[WaitCause]] = defaultdict(list)
    for row in sql.read_batches(conn, CAUSES_SINCE, task_queue_ids, the_time=since):
        found[row.task_queue_id].append(WaitCause(**row._asdict()))
    return found


def split_wait(since: datetime, until: datetime, causes: Iterable[WaitCause]) -> dict[str, float]:
    """Split a wait into seconds by cause; the rest is waiting for a pilot.

    Of several causes at once the first in `CAUSE_ORDER` counts, so the parts sum to the whole.
    """
    changes: list[tuple[datetime, str, int]] = []
    for each in causes:
        begins, ends = max(each.since, since), min(each.until, until)
        if begins < ends:
            changes += [(begins, each.cause, 1), (ends, each.cause, -1)]
    spent: defaultdict[str, float] = defaultdict(float)
    holding: Counter[str] = Counter()
    last = since
    for at, cause, step in [*sorted(changes), (max(since, until), PILOT_CAUSE, 0)]:
        if at > last or not changes:
            spent[_find_first(holding)] += (at - last).total_seconds()
        holding[cause] += step
        last = at
    return dict(spent)


def _find_first(holding: Mapping[str, int]) -> str:
    return next((cause for cause in CAUSE_ORDER if holding[cause] > 0), PILOT_CAUSE)
