"""Taking jobs out of their task queues, so that no one else can.

Whoever deletes a job's waiting row has the job. What must hold is stated again here, on the tables: that
the job still waits, and that a queue of the place which asks is eligible for its pool. So whatever a
matcher remembers wrongly can waste a try, but never hand out a wrong job. Rows that another transaction
holds are passed over, not waited for: claims cannot deadlock. What they passed over may come free again,
which `left` tells from "gone".
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

from taskqueue import batches
from taskqueue.class_sets import has
from taskqueue.states import JobStatus
from taskqueue.tables import installation, jobs, queue_classes, task_queues, waiting_jobs
from taskqueue.tables import pool_mappings as mapped
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import queue_class_versions as versions

ASSIGNED: Final = "Assigned"

_JOB_IDS: BindParameter[int] = bindparam("job_ids", expanding=True)


def eligible_here(*outer: FromClause, site: Any, ce: Any, queue: Any, checked: Any) -> ColumnElement[bool]:
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
            has(mapped.c.eligible, queue_classes.c.slot),
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
    fits = or_(~has(mapped.c.undecided, queue_classes.c.slot), func.coalesce(current == checked, false()))
    everywhere = or_(queue != "", ~here.where(~fits).exists())
    return or_(jobs.c.submit_pool.is_(None), and_(here.where(fits).exists(), everywhere))


#: The place that has to be eligible; `at_place` gives the values.
HERE: Mapping[str, BindParameter[Any]] = {
    **{name: bindparam(f"here_{name}", type_=Text) for name in ("site", "ce", "queue")},
    "checked": bindparam("here_checked", type_=Integer),
}


def claimable(
    task_queue_id: Any, *outer: FromClause, site: Any, ce: Any, queue: Any, checked: Any
) -> Select[int]:
    """The jobs of a task queue that may be taken for a place, in the order of a claim."""
    return in_order(task_queue_id).where(
        eligible_here(*outer, site=site, ce=ce, queue=queue, checked=checked)
    )


def in_order(task_queue_id: Any) -> Select[int]:
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


CLAIMED = (jobs.c.job_id, jobs.c.epoch, jobs.c.vo, jobs.c.description_id, jobs.c.parameters)
_TAKEN = (waiting_jobs.c.job_id, waiting_jobs.c.task_queue_id, waiting_jobs.c.priority)
#: What was given out by commits that are lost is not given out again.
_FLOOR = select(installation.c.epoch_floor).scalar_subquery()
#: What a job becomes that is taken, but for its site.
GIVEN: Mapping[str, Any] = {
    "status": JobStatus.MATCHED.value,
    "minor_status": ASSIGNED,
    "application_status": "",
    "epoch": case((jobs.c.epoch < _FLOOR, _FLOOR), else_=jobs.c.epoch) + 1,
    "updated_at": bindparam("now"),
}


def _take_postgresql() -> ReturningDelete[Any]:
    """From many task queues at once: so many jobs of each, for a place each."""
    values = {name: bindparam(f"each_{name}", type_=ARRAY(bind.type)) for name, bind in HERE.items()}
    wanted = (
        func.unnest(
            bindparam("task_queue_ids", type_=ARRAY(BigInteger)),
            bindparam("counts", type_=ARRAY(Integer)),
            *values.values(),
        )
        .table_valued(
            column("task_queue_id", BigInteger),
            column("count", Integer),
            *(column(name, bind.type) for name, bind in HERE.items()),
            name="wanted",
        )
        .render_derived()
    )
    here = {name: wanted.c[name] for name in HERE}
    # NO KEY UPDATE: a log row on its way, which only refers to the job, does not make us pass it over.
    first = (
        claimable(wanted.c.task_queue_id, wanted, **here)
        .limit(wanted.c.count)
        .with_for_update(of=[waiting_jobs, jobs], skip_locked=True, key_share=True)
        .lateral("first")
    )
    picked = select(first.c.job_id).select_from(wanted.join(first, true())).cte("picked")
    # As an array: the planner cannot know how few they are, and might read the whole table for a join.
    ids = func.array(select(picked.c.job_id).scalar_subquery())
    return delete(waiting_jobs).where(waiting_jobs.c.job_id == func.any(ids)).returning(*_TAKEN)


def _give_postgresql() -> ReturningUpdate[Any]:
    given = (
        func.unnest(bindparam("job_ids", type_=ARRAY(BigInteger)), bindparam("at_sites", type_=ARRAY(Text)))
        .table_valued(column("job_id", BigInteger), column("site", Text), name="given")
        .render_derived()
    )
    return (
        update(jobs)
        .where(jobs.c.job_id == given.c.job_id, jobs.c.status == JobStatus.WAITING.value)
        .values(site=given.c.site, **GIVEN)
        .returning(*CLAIMED)
    )


TAKE_POSTGRESQL = _take_postgresql()
GIVE_POSTGRESQL = _give_postgresql()
# SQLite has no LATERAL, and one writer at a time: what was picked is still there. A statement costs no way
# to a server there.
PICK_SQLITE = claimable(bindparam("the_task_queue"), **HERE).limit(bindparam("most"))
LEAVE_SQLITE = delete(waiting_jobs).where(waiting_jobs.c.job_id.in_(_JOB_IDS)).returning(*_TAKEN)
GIVE_SQLITE = (
    update(jobs)
    .where(jobs.c.job_id.in_(_JOB_IDS), jobs.c.status == JobStatus.WAITING.value)
    .values(site=bindparam("at_site"), **GIVEN)
    .returning(*CLAIMED)
)


def left_if(*conditions: ColumnElement[bool]) -> Select[int]:
    """The task queues with a job that may be taken and fulfils conditions.

    EXISTS ends at the first job of each; a task queue may hold hundreds of thousands.
    """
    jobs_left = claimable(task_queues.c.task_queue_id, **HERE).where(*conditions)
    return select(task_queues.c.task_queue_id).where(
        task_queues.c.task_queue_id.in_(bindparam("task_queue_ids", expanding=True)),
        jobs_left.order_by(None).correlate(task_queues).exists(),
    )


LEFT = left_if()


#: A job that nobody else gets any more: its id, new epoch, VO, description and parameters.
Taken = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job would run; empty: not stated."""

    site: str
    ce: str = ""
    queue: str = ""
    #: The configuration version with which the facts of its node were checked; None: they were not.
    checked: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """So many jobs of one task queue, for one place."""

    task_queue_id: int
    count: int
    place: Place  #: where they will run
    has_pool: bool = True  #: whether its jobs have a SubmitPool; without one every place is eligible

    @property
    def eligible(self) -> Place:
        """The place that has to be eligible; the same for all who want jobs without a pool."""
        return self.place if self.has_pool else Place(site="")


def take(
    conn: Connection, task_queue_ids: Iterable[int], count: int, *, place: Place, now: datetime
) -> list[Taken]:
    """Take up to `count` jobs, from the first task queue that has any, then from the next.

    `hand_over` has to follow in the same transaction: a job that is Matched has an open attempt.
    """
    taken: list[Taken] = []
    for task_queue_id in task_queue_ids:
        if len(taken) >= count:
            break
        want = Want(task_queue_id=task_queue_id, count=count - len(taken), place=place)
        taken += take_all(conn, [want], now=now)[0]
    return taken


def take_all(conn: Connection, wants: Sequence[Want], *, now: datetime) -> list[list[Taken]]:
    """Take for many at once, from one task queue for each; what each of them got, in order.

    `hand_over` has to follow in the same transaction.
    """
    got: dict[int, list[int]] = {number: [] for number in range(len(wants))}
    for wave in _waves(wants):
        found = _pick(
            conn, [(wants[numbers[0]], sum(wants[each].count for each in numbers)) for numbers in wave]
        )
        for numbers in wave:
            queue = iter(found.get(wants[numbers[0]].task_queue_id, ()))
            for number in numbers:
                got[number] = list(islice(queue, wants[number].count))
    site_of = {job_id: wants[number].place.site or "ANY" for number, ids in got.items() for job_id in ids}
    rows = give(conn, site_of, now)
    return [[rows[job_id] for job_id in got[number] if job_id in rows] for number in range(len(wants))]


def left(conn: Connection, task_queue_ids: Collection[int], *, place: Place) -> frozenset[int]:
    """Those of the task queues that have a job for this place, though perhaps in another's hands just now."""
    return ask(conn, LEFT, task_queue_ids, at_place(place))


def ask(
    conn: Connection, statement: Select[int], task_queue_ids: Collection[int], values: Mapping[str, object]
) -> frozenset[int]:
    """Those of the task queues that a statement made by `left_if` finds."""
    found: set[int] = set()
    for ids in batches.of(task_queue_ids):
        found.update(conn.execute(statement, {"task_queue_ids": ids, **values}).scalars())
    return frozenset(found)


def _waves(wants: Sequence[Want]) -> list[list[list[int]]]:
    """The numbers of the wants in groups that can be taken together, and those in waves.

    In one statement a task queue may come once only: it would give the same jobs twice. Wants of one task
    queue go together if they have one place, or if it does not matter.
    """
    groups: dict[tuple[int, Place], list[int]] = {}
    for number, want in enumerate(wants):
        groups.setdefault((want.task_queue_id, want.eligible), []).append(number)
    waves: list[list[list[int]]] = []
    turn: Counter[int] = Counter()
    for (task_queue_id, _), numbers in groups.items():
        if turn[task_queue_id] == len(waves):
            waves.append([])
        waves[turn[task_queue_id]].append(numbers)
        turn[task_queue_id] += 1
    return waves


def _pick(conn: Connection, wanted: Sequence[tuple[Want, int]]) -> Mapping[int, list[int]]:
    """Take jobs out of their task queues; their ids by task queue, in the order of a claim."""
    if conn.dialect.name == "sqlite":
        rows: Sequence[Taken] = _pick_sqlite(conn, wanted)
    else:
        values = {
            "task_queue_ids": [want.task_queue_id for want, _ in wanted],
            "counts": [count for _, count in wanted],
            "each_site": [want.eligible.site for want, _ in wanted],
            "each_ce": [want.eligible.ce for want, _ in wanted],
            "each_queue": [want.eligible.queue for want, _ in wanted],
            "each_checked": [want.eligible.checked for want, _ in wanted],
        }
        rows = conn.execute(TAKE_POSTGRESQL, values).all()
    found: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: (-row.priority, row.job_id)):
        found.setdefault(row.task_queue_id, []).append(row.job_id)
    return found


def _pick_sqlite(conn: Connection, wanted: Sequence[tuple[Want, int]]) -> Sequence[Taken]:
    job_ids: list[int] = []
    for want, count in wanted:
        values = {"the_task_queue": want.task_queue_id, "most": count, **at_place(want.eligible)}
        job_ids += conn.execute(PICK_SQLITE, values).scalars()
    return conn.execute(LEAVE_SQLITE, {"job_ids": job_ids}).all() if job_ids else []


def give(conn: Connection, site_of: Mapping[int, str], now: datetime) -> Mapping[int, Taken]:
    """Make jobs Matched, each at its site."""
    if not site_of:
        return {}
    if conn.dialect.name != "sqlite":
        values = {"job_ids": list(site_of), "at_sites": list(site_of.values()), "now": now}
        return {row.job_id: row for row in conn.execute(GIVE_POSTGRESQL, values)}
    rows: dict[int, Taken] = {}
    for site in sorted(set(site_of.values())):
        ids = [job_id for job_id, at_site in site_of.items() if at_site == site]
        values = {"job_ids": ids, "at_site": site, "now": now}
        rows |= {row.job_id: row for row in conn.execute(GIVE_SQLITE, values)}
    return rows


def at_place(place: Place) -> dict[str, object]:
    """The values of HERE."""
    return {
        "here_site": place.site,
        "here_ce": place.ce,
        "here_queue": place.queue,
        "here_checked": place.checked,
    }
