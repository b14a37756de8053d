"""Assignment: delete waiting rows and mark their jobs Matched, so that no one else gets them.

The transaction that deletes a job's waiting row owns the job. All conditions are stated again here, on the
tables: the job still waits, and a queue of the requesting location is eligible for its pool. So a stale
cache of a matcher can waste an attempt to claim, but never assign a wrong job. Rows locked by another
transaction are skipped (SKIP LOCKED), so claims cannot deadlock. Skipped rows may become free again;
`find_nonempty` distinguishes them from rows that are gone.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    column,
    delete,
    false,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.dml import ReturningDelete, ReturningUpdate

from requirements.resource import Location
from requirements.states import JobStatus
from taskqueue.db import sql
from taskqueue.schema.tables import installation, jobs, queue_classes, task_queues, waiting_jobs
from taskqueue.schema.tables import pool_mappings as mapped
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.schema.tables import queue_class_versions as versions
from taskqueue.schema.types import has_slot

ASSIGNED: Final = "Assigned"

_JOB_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)


def is_eligible(*outer: FromClause, site: Any, ce: Any, queue: Any, checked: Any) -> ColumnElement[bool]:
    """Condition on a job: the stored mapping has a queue of the location that is eligible for its pool.

    Checked on the tables, since a matcher's cache may be stale. An empty `ce` or `queue` matches any; without
    a site no queue matches. Where the node decides (`undecided`), its facts must have been checked with the
    mapping's configuration version; if the queue is not known, at every queue where the pilot may be.
    """
    here = (
        select(mapped.c.pool_id)
        .join(members, members.c.vo == mapped.c.vo)
        .join(queue_classes, queue_classes.c.queue_class_id == members.c.queue_class_id)
        .where(
            mapped.c.pool_id == jobs.c.submit_pool,
            has_slot(mapped.c.eligible, queue_classes.c.slot),
            members.c.vo == jobs.c.vo,
            members.c.site == site,
            or_(ce == "", members.c.ce == ce),
            or_(queue == "", members.c.queue == queue),
        )
        .correlate(jobs, *outer)
    )
    current = (
        select(versions.c.config_version).where(versions.c.vo == jobs.c.vo).correlate(jobs).scalar_subquery()
    )
    # coalesce: negated below, so it must never be null.
    fits = or_(
        ~has_slot(mapped.c.undecided, queue_classes.c.slot), func.coalesce(current == checked, false())
    )
    everywhere = or_(queue != "", ~here.where(~fits).exists())
    return or_(jobs.c.submit_pool.is_(None), and_(here.where(fits).exists(), everywhere))


#: Binds of the location that has to be eligible; `bind_location` gives the values.
LOCATION_BINDS: Mapping[str, BindParameter[Any]] = {
    **{name: bindparam(f"here_{name}", type_=Text) for name in ("site", "ce", "queue")},
    "checked": bindparam("here_checked", type_=Integer),
}


def select_claimable(
    task_queue_id: Any, *outer: FromClause, site: Any, ce: Any, queue: Any, checked: Any
) -> Select[int]:
    """Jobs of a task queue that may be assigned to a location, in claim order."""
    return select_in_claim_order(task_queue_id).where(
        is_eligible(*outer, site=site, ce=ce, queue=queue, checked=checked)
    )


def select_in_claim_order(task_queue_id: Any) -> Select[int]:
    """Waiting jobs of a task queue in claim order: user's priority, then first in, first out."""
    return (
        select(waiting_jobs.c.job_id)
        .join(jobs, jobs.c.job_id == waiting_jobs.c.job_id)
        .where(waiting_jobs.c.task_queue_id == task_queue_id, jobs.c.status == JobStatus.WAITING.value)
        .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    )


CLAIMED_COLUMNS = (jobs.c.job_id, jobs.c.epoch, jobs.c.vo, jobs.c.description_id, jobs.c.parameters)
_TAKEN_COLUMNS = (waiting_jobs.c.job_id, waiting_jobs.c.task_queue_id, waiting_jobs.c.priority)
#: Lowest epoch after a loss of commits: the lost ones may have used lower numbers.
_EPOCH_FLOOR = select(installation.c.epoch_floor).scalar_subquery()


def next_epoch(epoch: ColumnElement[int]) -> ColumnElement[int]:
    """The epoch of the next attempt of a job."""
    return case((epoch < _EPOCH_FLOOR, _EPOCH_FLOOR), else_=epoch) + 1


#: New values of an assigned job, except its site.
MATCHED_VALUES: Mapping[str, Any] = {
    "status": JobStatus.MATCHED.value,
    "minor_status": ASSIGNED,
    "application_status": "",
    "epoch": next_epoch(jobs.c.epoch),
    "updated_at": bindparam("now"),
}


def _take_postgresql() -> ReturningDelete[Any]:
    """Take jobs from many task queues at once, with a count and a location for each."""
    values = {
        name: bindparam(f"each_{name}", type_=ARRAY(bind.type)) for name, bind in LOCATION_BINDS.items()
    }
    wanted = (
        func.unnest(
            bindparam("task_queue_ids", type_=ARRAY(BigInteger)),
            bindparam("counts", type_=ARRAY(Integer)),
            *values.values(),
        )
        .table_valued(
            column("task_queue_id", BigInteger),
            column("count", Integer),
            *(column(name, bind.type) for name, bind in LOCATION_BINDS.items()),
            name="wanted",
        )
        .render_derived()
    )
    here = {name: wanted.c[name] for name in LOCATION_BINDS}
    # NO KEY UPDATE: an insert of a log row, which only references the job, must not make us skip it.
    first = (
        select_claimable(wanted.c.task_queue_id, wanted, **here)
        .limit(wanted.c.count)
        .with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True)
        .lateral("first")
    )
    picked = select(first.c.job_id).select_from(wanted.join(first, true())).cte("picked")
    # As an array: the planner cannot estimate how few rows there are, and might scan the table for a join.
    ids = func.array(select(picked.c.job_id).scalar_subquery())
    return delete(waiting_jobs).where(waiting_jobs.c.job_id == func.any(ids)).returning(*_TAKEN_COLUMNS)


def _match_postgresql() -> ReturningUpdate[Any]:
    given = (
        func.unnest(bindparam("job_ids", type_=ARRAY(BigInteger)), bindparam("at_sites", type_=ARRAY(Text)))
        .table_valued(column("job_id", BigInteger), column("site", Text), name="given")
        .render_derived()
    )
    return (
        update(jobs)
        .where(jobs.c.job_id == given.c.job_id, jobs.c.status == JobStatus.WAITING.value)
        .values(site=given.c.site, **MATCHED_VALUES)
        .returning(*CLAIMED_COLUMNS)
    )


TAKE_POSTGRESQL = _take_postgresql()
MATCH_POSTGRESQL = _match_postgresql()
# SQLite has no LATERAL, but only one writer: picked jobs cannot disappear. Statements need no round trip, so
# there are several.
PICK_SQLITE = select_claimable(bindparam("the_task_queue"), **LOCATION_BINDS).limit(bindparam("most"))
LEAVE_SQLITE = delete(waiting_jobs).where(waiting_jobs.c.job_id.in_(_JOB_IDS)).returning(*_TAKEN_COLUMNS)
MATCH_SQLITE = (
    update(jobs)
    .where(jobs.c.job_id.in_(_JOB_IDS), jobs.c.status == JobStatus.WAITING.value)
    .values(site=bindparam("at_site"), **MATCHED_VALUES)
    .returning(*CLAIMED_COLUMNS)
)


def select_nonempty(*conditions: ColumnElement[bool]) -> Select[int]:
    """Task queues with an assignable job that fulfils the conditions.

    EXISTS stops at the first job of each; a task queue may hold hundreds of thousands.
    """
    jobs_left = select_claimable(task_queues.c.task_queue_id, **LOCATION_BINDS).where(*conditions)
    return select(task_queues.c.task_queue_id).where(
        task_queues.c.task_queue_id.in_(bindparam("ids", expanding=True)),
        jobs_left.order_by(None).correlate(task_queues).exists(),
    )


NONEMPTY = select_nonempty()


#: An assigned job: id, new epoch, VO, description id and parameters.
TakenRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRequest:
    """A number of jobs of one task queue, for one location."""

    task_queue_id: int
    count: int
    place: Location  #: where they will run
    has_pool: bool = True  #: its jobs have a SubmitPool; without one every location is eligible

    @property
    def eligible_location(self) -> Location:
        """The location that has to be eligible; the same for all requests for jobs without a pool."""
        return self.place if self.has_pool else Location(site="")


def take_jobs(
    conn: Connection, task_queue_ids: Iterable[int], count: int, *, place: Location, now: datetime
) -> list[TakenRow]:
    """Take up to `count` jobs from the task queues, in their order.

    `claim.open_attempts` has to follow in the same transaction: a Matched job has an open attempt.
    """
    taken: list[TakenRow] = []
    for task_queue_id in task_queue_ids:
        if len(taken) >= count:
            break
        want = TakeRequest(task_queue_id=task_queue_id, count=count - len(taken), place=place)
        taken += take_batch(conn, [want], now=now)[0]
    return taken


def take_batch(conn: Connection, wants: Sequence[TakeRequest], *, now: datetime) -> list[list[TakenRow]]:
    """Take the jobs of many requests at once; the jobs of each request, in order.

    `claim.open_attempts` has to follow in the same transaction.
    """
    got: dict[int, list[int]] = {number: [] for number in range(len(wants))}
    for wave in _group_waves(wants):
        found = _pick(
            conn, [(wants[numbers[0]], sum(wants[each].count for each in numbers)) for numbers in wave]
        )
        for numbers in wave:
            queue = iter(found.get(wants[numbers[0]].task_queue_id, ()))
            for number in numbers:
                got[number] = list(islice(queue, wants[number].count))
    site_of = {job_id: wants[number].place.site or "ANY" for number, ids in got.items() for job_id in ids}
    rows = mark_matched(conn, site_of, now)
    return [[rows[job_id] for job_id in got[number] if job_id in rows] for number in range(len(wants))]


def find_nonempty(conn: Connection, task_queue_ids: Collection[int], *, place: Location) -> frozenset[int]:
    """Task queues with a job for this location; another transaction may have locked it."""
    return find_task_queues(conn, NONEMPTY, task_queue_ids, bind_location(place))


def find_task_queues(
    conn: Connection, statement: Select[int], task_queue_ids: Collection[int], values: Mapping[str, object]
) -> frozenset[int]:
    """Task queues found by a statement of `select_nonempty`."""
    return frozenset(row[0] for row in sql.read_batches(conn, statement, task_queue_ids, **values))


def _group_waves(wants: Sequence[TakeRequest]) -> list[list[list[int]]]:
    """Group the numbers of the requests, and the groups into waves of one statement each.

    A task queue may occur only once in a statement, which would otherwise return the same jobs twice.
    Requests for one task queue form a group if they have the same location, or if it does not matter.
    """
    groups: dict[tuple[int, Location], list[int]] = {}
    for number, want in enumerate(wants):
        groups.setdefault((want.task_queue_id, want.eligible_location), []).append(number)
    waves: list[list[list[int]]] = []
    turn: Counter[int] = Counter()
    for (task_queue_id, _), numbers in groups.items():
        if turn[task_queue_id] == len(waves):
            waves.append([])
        waves[turn[task_queue_id]].append(numbers)
        turn[task_queue_id] += 1
    return waves


def _pick(conn: Connection, wanted: Sequence[tuple[TakeRequest, int]]) -> Mapping[int, list[int]]:
    """Delete waiting rows; the job ids by task queue, in claim order."""
    if conn.dialect.name == "sqlite":
        rows: Sequence[TakenRow] = _pick_sqlite(conn, wanted)
    else:
        values = {
            "task_queue_ids": [want.task_queue_id for want, _ in wanted],
            "counts": [count for _, count in wanted],
            **{
                f"each_{name}": [getattr(want.eligible_location, name) for want, _ in wanted]
                for name in LOCATION_BINDS
            },
        }
        rows = conn.execute(TAKE_POSTGRESQL, values).all()
    found: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: (-row.priority, row.job_id)):
        found.setdefault(row.task_queue_id, []).append(row.job_id)
    return found


def _pick_sqlite(conn: Connection, wanted: Sequence[tuple[TakeRequest, int]]) -> Sequence[TakenRow]:
    job_ids: list[int] = []
    for want, count in wanted:
        values = {
            "the_task_queue": want.task_queue_id,
            "most": count,
            **bind_location(want.eligible_location),
        }
        job_ids += conn.execute(PICK_SQLITE, values).scalars()
    return conn.execute(LEAVE_SQLITE, {"job_ids": job_ids}).all() if job_ids else []


def mark_matched(conn: Connection, site_of: Mapping[int, str], now: datetime) -> Mapping[int, TakenRow]:
    """Mark jobs Matched, each at its site."""
    if not site_of:
        return {}
    if conn.dialect.name != "sqlite":
        values = {"job_ids": list(site_of), "at_sites": list(site_of.values()), "now": now}
        return {row.job_id: row for row in conn.execute(MATCH_POSTGRESQL, values)}
    rows: dict[int, TakenRow] = {}
    for site in sorted(set(site_of.values())):
        ids = [job_id for job_id, at_site in site_of.items() if at_site == site]
        values = {"job_ids": ids, "at_site": site, "now": now}
        rows |= {row.job_id: row for row in conn.execute(MATCH_SQLITE, values)}
    return rows


def bind_location(place: Location) -> dict[str, object]:
    """Values of `LOCATION_BINDS`."""
    return {f"here_{name}": getattr(place, name) for name in LOCATION_BINDS}
