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

from taskqueue.db import sql
from taskqueue.schema.bitset_type import has_slot
from taskqueue.schema.tables import installation, jobs, queue_classes, task_queues, waiting_jobs
from taskqueue.schema.tables import pool_mappings as mapped
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.schema.tables import queue_class_versions as versions
from taskqueue.states import JobStatus

ASSIGNED: Final = "Assigned"

_JOB_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)


def is_eligible(*outer: FromClause, site: Any, ce: Any, queue: Any, checked: Any) -> ColumnElement[bool]:
    """Of a job: the current mapping decides, not what the matcher remembers of it.

    Some queue of the place has to be eligible. What is not stated is empty; without a site no queue is there.
    Where nodes decide, their facts must have been checked with the configuration that the mapping is of; if
    the queue is not known, so wherever the pilot may be.
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
    # Never null: of what was not checked, the opposite has to hold as well.
    fits = or_(
        ~has_slot(mapped.c.undecided, queue_classes.c.slot), func.coalesce(current == checked, false())
    )
    everywhere = or_(queue != "", ~here.where(~fits).exists())
    return or_(jobs.c.submit_pool.is_(None), and_(here.where(fits).exists(), everywhere))


#: The place that has to be eligible; `at_place` gives the values.
LOCATION_BINDS: Mapping[str, BindParameter[Any]] = {
    **{name: bindparam(f"here_{name}", type_=Text) for name in ("site", "ce", "queue")},
    "checked": bindparam("here_checked", type_=Integer),
}


def select_claimable(
    task_queue_id: Any, *outer: FromClause, site: Any, ce: Any, queue: Any, checked: Any
) -> Select[int]:
    """The jobs of a task queue that may be taken for a place, in the order of a claim."""
    return select_ordered(task_queue_id).where(
        is_eligible(*outer, site=site, ce=ce, queue=queue, checked=checked)
    )


def select_ordered(task_queue_id: Any) -> Select[int]:
    """The jobs that wait in a task queue, the user's priority first, then first in, first out."""
    return (
        select(waiting_jobs.c.job_id)
        .join(jobs, jobs.c.job_id == waiting_jobs.c.job_id)
        .where(
            waiting_jobs.c.task_queue_id == task_queue_id,
            jobs.c.status == JobStatus.WAITING.value,
        )
        .order_by(waiting_jobs.c.priority.desc(), waiting_jobs.c.job_id)
    )


CLAIMED_COLUMNS = (jobs.c.job_id, jobs.c.epoch, jobs.c.vo, jobs.c.description_id, jobs.c.parameters)
_TAKEN_COLUMNS = (waiting_jobs.c.job_id, waiting_jobs.c.task_queue_id, waiting_jobs.c.priority)
#: What was given out by commits that are lost is not given out again.
_EPOCH_FLOOR = select(installation.c.epoch_floor).scalar_subquery()
#: What a job becomes that is taken, but for its site.
MATCHED_VALUES: Mapping[str, Any] = {
    "status": JobStatus.MATCHED.value,
    "minor_status": ASSIGNED,
    "application_status": "",
    "epoch": case((jobs.c.epoch < _EPOCH_FLOOR, _EPOCH_FLOOR), else_=jobs.c.epoch) + 1,
    "updated_at": bindparam("now"),
}


def _take_postgresql() -> ReturningDelete[Any]:
    """From many task queues at once: so many jobs of each, for a place each."""
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
    # NO KEY UPDATE: a log row on its way, which only refers to the job, does not make us pass it over.
    first = (
        select_claimable(wanted.c.task_queue_id, wanted, **here)
        .limit(wanted.c.count)
        .with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True)
        .lateral("first")
    )
    picked = select(first.c.job_id).select_from(wanted.join(first, true())).cte("picked")
    # As an array: the planner cannot know how few they are, and might read the whole table for a join.
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
# SQLite has no LATERAL, and one writer at a time: what was picked is still there. A statement costs no way
# to a server there.
PICK_SQLITE = select_claimable(bindparam("the_task_queue"), **LOCATION_BINDS).limit(bindparam("most"))
LEAVE_SQLITE = delete(waiting_jobs).where(waiting_jobs.c.job_id.in_(_JOB_IDS)).returning(*_TAKEN_COLUMNS)
MATCH_SQLITE = (
    update(jobs)
    .where(jobs.c.job_id.in_(_JOB_IDS), jobs.c.status == JobStatus.WAITING.value)
    .values(site=bindparam("at_site"), **MATCHED_VALUES)
    .returning(*CLAIMED_COLUMNS)
)


def select_nonempty(*conditions: ColumnElement[bool]) -> Select[int]:
    """The task queues with a job that may be taken and fulfils conditions.

    EXISTS ends at the first job of each; a task queue may hold hundreds of thousands.
    """
    jobs_left = select_claimable(task_queues.c.task_queue_id, **LOCATION_BINDS).where(*conditions)
    return select(task_queues.c.task_queue_id).where(
        task_queues.c.task_queue_id.in_(bindparam("task_queue_ids", expanding=True)),
        jobs_left.order_by(None).correlate(task_queues).exists(),
    )


NONEMPTY = select_nonempty()


#: A job that nobody else gets any more: its id, new epoch, VO, description and parameters.
TakenRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a job would run; empty: not stated."""

    site: str
    ce: str = ""
    queue: str = ""
    #: The configuration version with which the facts of its node were checked; None: they were not.
    checked: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRequest:
    """So many jobs of one task queue, for one place."""

    task_queue_id: int
    count: int
    place: Location  #: where they will run
    has_pool: bool = True  #: whether its jobs have a SubmitPool; without one every place is eligible

    @property
    def eligible_location(self) -> Location:
        """The place that has to be eligible; the same for all who want jobs without a pool."""
        return self.place if self.has_pool else Location(site="")


def take_jobs(
    conn: Connection, task_queue_ids: Iterable[int], count: int, *, place: Location, now: datetime
) -> list[TakenRow]:
    """Take up to `count` jobs, from the first task queue that has any, then from the next.

    `hand_over` has to follow in the same transaction: a job that is Matched has an open attempt.
    """
    taken: list[TakenRow] = []
    for task_queue_id in task_queue_ids:
        if len(taken) >= count:
            break
        want = TakeRequest(task_queue_id=task_queue_id, count=count - len(taken), place=place)
        taken += take_batch(conn, [want], now=now)[0]
    return taken


def take_batch(conn: Connection, wants: Sequence[TakeRequest], *, now: datetime) -> list[list[TakenRow]]:
    """Take for many at once, from one task queue for each; what each of them got, in order.

    `hand_over` has to follow in the same transaction.
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
    """Those of the task queues that have a job for this place, though perhaps in another's hands just now."""
    return find_task_queues(conn, NONEMPTY, task_queue_ids, bind_location(place))


def find_task_queues(
    conn: Connection, statement: Select[int], task_queue_ids: Collection[int], values: Mapping[str, object]
) -> frozenset[int]:
    """Those of the task queues that a statement made by `left_if` finds."""
    found: set[int] = set()
    for ids in sql.split_batches(task_queue_ids):
        found.update(conn.execute(statement, {"task_queue_ids": ids, **values}).scalars())
    return frozenset(found)


def _group_waves(wants: Sequence[TakeRequest]) -> list[list[list[int]]]:
    """The numbers of the wants in groups that can be taken together, and those in waves.

    In one statement a task queue may come once only: it would give the same jobs twice. Wants of one task
    queue go together if they have one place, or if it does not matter.
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
    """Take jobs out of their task queues; their ids by task queue, in the order of a claim."""
    if conn.dialect.name == "sqlite":
        rows: Sequence[TakenRow] = _pick_sqlite(conn, wanted)
    else:
        values = {
            "task_queue_ids": [want.task_queue_id for want, _ in wanted],
            "counts": [count for _, count in wanted],
            "each_site": [want.eligible_location.site for want, _ in wanted],
            "each_ce": [want.eligible_location.ce for want, _ in wanted],
            "each_queue": [want.eligible_location.queue for want, _ in wanted],
            "each_checked": [want.eligible_location.checked for want, _ in wanted],
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
    """Make jobs Matched, each at its site."""
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
    """The values of HERE."""
    return {
        "here_site": place.site,
        "here_ce": place.ce,
        "here_queue": place.queue,
        "here_checked": place.checked,
    }
