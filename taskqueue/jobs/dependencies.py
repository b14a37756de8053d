"""Jobs that wait for others: their parents, and their release when these have ended.

A dependent is kept from pilots (`taskqueue.jobs.withheld`). Its parents are looked at twice: when its own
submission, and when a parent's end passes in the job log, whose reader notes these jobs, by VO, in the
transaction that stores its position. So each end counts, also one that a process of an earlier release
stored, and jobs that wait cost nothing. What was noted is counted in turns of VOs, so many pairs at a time:
a pair that has counted is not open any more, and the note goes with the last one.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, delete, exists, func, or_, select, update

from cs_config.options import bounds
from requirements.errors import InvalidRequest, Problem, format_count
from requirements.states import FINAL, AfterPolicy, JobStatus
from taskqueue.db import sql
from taskqueue.jobs import log, transitions, withheld
from taskqueue.jobs.withheld import DEPENDENCIES
from taskqueue.schema.tables import dependency_changes as changes
from taskqueue.schema.tables import job_dependencies as table
from taskqueue.schema.tables import job_log, jobs

#: Name of the reader of the log.
READER_NAME: Final = "dependencies"
SOURCE: Final = "Dependencies"
#: Minor status of jobs that fail for their parents.
FAILED: Final = "A job before it failed"
#: Statuses in which a parent has ended. Completed becomes Done or Failed.
_ENDS: Final = sorted(FINAL - {JobStatus.COMPLETED})
_GONE: Final = "gone"
#: Parents named in a text.
_NAMED: Final = 5
#: Edges that a VO's turn counts, of ended parents and of new jobs each, and jobs that fail after others.
EDGES_AT_ONCE: Final = 5_000
#: Jobs described at a time, with all of their parents.
_DESCRIBED: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """A job that another one waits for, or waited for."""

    job_id: int
    policy: AfterPolicy  #: of the job that waits
    status: str  #: its end as it counted; before that, its status now
    has_ended: bool


STORE = sql.bulk_insert(table, "job_id", "parent_id", "policy")

_open = table.c.ended_as.is_(None)
IS_ANY_OPEN = select(exists().where(_open))
#: Jobs that were submitted or ended in a span of the log.
_changed = select(job_log.c.job_id).where(
    log.is_within, or_(job_log.c.from_status.is_(None), job_log.c.to_status.in_(_ENDS))
)
_parents = jobs.alias("parents")
#: Pairs that count now: of a job that waits and a parent that has ended, or is gone.
_EDGES = (
    select(table.c.job_id, table.c.parent_id, table.c.policy, _parents.c.status)
    .outerjoin(_parents, _parents.c.job_id == table.c.parent_id)
    .where(_open, or_(_parents.c.status.is_(None), _parents.c.status.in_(_ENDS)))
)
_is_parent = exists().where(_open, table.c.parent_id == jobs.c.job_id)
_waits_for_ended = _EDGES.where(table.c.job_id == jobs.c.job_id).correlate(jobs).exists()
NOTE_CHANGES = (
    sql.insert(changes)
    .from_select(
        ["vo", "job_id"],
        select(jobs.c.vo, jobs.c.job_id).where(
            jobs.c.job_id.in_(_changed), or_(_is_parent, _waits_for_ended)
        ),
    )
    .on_conflict_do_nothing()
)
VOS = select(changes.c.vo).distinct()
CHANGES = (
    select(changes.c.job_id)
    .where(changes.c.vo == bindparam("the_vo"))
    .order_by(changes.c.job_id)
    .limit(sql.BATCH_SIZE)
)
REMOVE_CHANGES = delete(changes).where(changes.c.vo == bindparam("the_vo"), sql.is_listed(changes.c.job_id))
#: In no order: a sort would read all of them.
ENDED_PARENTS = _EDGES.where(sql.is_listed(table.c.parent_id)).limit(bindparam("most"))
OWN_PARENTS = _EDGES.where(sql.is_listed(table.c.job_id)).limit(bindparam("most"))
#: What was deleted, with the status that it had.
DELETED_FROM = select(job_log.c.job_id, job_log.c.from_status).where(
    sql.is_listed(job_log.c.job_id), job_log.c.to_status == JobStatus.DELETED.value
)
SETTLE = sql.BulkStatement(
    [table.c.job_id, table.c.parent_id, table.c.ended_as],
    lambda given: (
        update(table)
        .where(table.c.job_id == given["job_id"], table.c.parent_id == given["parent_id"])
        .values(ended_as=given["ended_as"])
    ),
)
_others = table.alias()
_failed_before = exists().where(
    _others.c.job_id == table.c.job_id,
    _others.c.policy == AfterPolicy.DONE.value,
    _others.c.ended_as != JobStatus.DONE.value,
)
#: Jobs that failed for a parent before. Those that were reset since wait for none.
FAILED_BEFORE = (
    select(table.c.job_id)
    .where(
        sql.is_listed(table.c.job_id),
        table.c.policy == AfterPolicy.DONE.value,
        table.c.ended_as != JobStatus.DONE.value,
    )
    .distinct()
)
_needs_success = and_(_open, table.c.policy == AfterPolicy.DONE.value, ~_failed_before)
_direct = select(table.c.job_id).where(sql.is_listed(table.c.parent_id), _needs_success)
_doomed = _direct.cte("doomed", recursive=True)
_doomed = _doomed.union(select(table.c.job_id).where(table.c.parent_id == _doomed.c.job_id, _needs_success))
#: All that need the success of some jobs, of those that need theirs, and so on: one statement for a chain.
#: What is beyond the limit follows when the ends of those before it count.
DOOMED = select(_doomed.c.job_id).limit(bindparam("most"))
_of_job = table.c.job_id == jobs.c.job_id
#: A parent that lets its job go whatever the others do: of a job that failed with it, that was reset since.
_frees = or_(
    and_(table.c.policy == AfterPolicy.ANY.value, table.c.ended_as.is_not(None)),
    and_(table.c.policy == AfterPolicy.DONE.value, table.c.ended_as != JobStatus.DONE.value),
)
STILL_WAITING = select(jobs.c.job_id).where(
    sql.is_listed(jobs.c.job_id), exists().where(_of_job, _open), ~exists().where(_of_job, _frees)
)
PARENTS = (
    select(table.c.job_id, table.c.parent_id, table.c.policy, table.c.ended_as, jobs.c.status)
    .outerjoin(jobs, jobs.c.job_id == table.c.parent_id)
    .where(sql.is_listed(table.c.job_id))
    .order_by(table.c.job_id, table.c.parent_id)
)
COUNT_PARENTS = select(func.count()).select_from(table).where(sql.is_listed(table.c.job_id))


def store_parents(
    conn: Connection, parents: Mapping[int, Collection[int]], policies: Mapping[int, AfterPolicy]
) -> None:
    """Store the parents of new jobs, in the transaction that stores these."""
    edges = [(job_id, parent) for job_id, each in parents.items() for parent in sorted(set(each))]
    columns: dict[str, list[object]] = {
        "job_id": [job_id for job_id, _ in edges],
        "parent_id": [parent for _, parent in edges],
        "policy": [policies[job_id].value for job_id, _ in edges],
    }
    STORE.execute(conn, columns)


def list_parents(conn: Connection, job_ids: Collection[int]) -> Mapping[int, Sequence[Parent]]:
    """The parents of each of some jobs that have any."""
    found: defaultdict[int, list[Parent]] = defaultdict(list)
    for row in sql.read_batches(conn, PARENTS, job_ids):
        status = row.ended_as or row.status or _GONE
        found[row.job_id].append(
            Parent(
                job_id=row.parent_id,
                policy=AfterPolicy(row.policy),
                status=status,
                has_ended=row.ended_as is not None,
            )
        )
    return found


def require_few_parents(conn: Connection, job_ids: Collection[int]) -> None:
    """InvalidRequest if jobs wait, or waited, for more others than those of one submission may."""
    number = sum(row[0] for row in sql.read_batches(conn, COUNT_PARENTS, job_ids))
    if number > bounds.DEPENDENCIES:
        message = (
            f"these jobs have {number:,} pairs of a job and one before it, allowed are "
            f"{bounds.DEPENDENCIES:,} at a time: name fewer jobs"
        )
        raise InvalidRequest([Problem(path="ids", message=message)])


def describe_waiting(parents: Sequence[Parent]) -> str:
    """What a job waits for now, for people."""
    left = [each for each in parents if not each.has_ended]
    named = ", ".join(f"{each.job_id} ({each.status})" for each in left[:_NAMED])
    more = f" and {format_count(len(left) - _NAMED, 'other job')}" if len(left) > _NAMED else ""
    ended = f"; {len(parents) - len(left)} of {len(parents)} have ended" if len(parents) > 1 else ""
    return f"waits for {named}{more}{ended}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What was counted for a VO."""

    decided: int  #: jobs that were let go, or failed
    is_last: bool  #: nothing more is to be counted for the VO


def note_span(conn: Connection, span: Mapping[str, int]) -> None:
    """Note the jobs that ended, or were submitted, in a span of the log, if jobs may wait for their ends.

    `span` is `LogSpan.bounds`; the caller stores in the same transaction that it is counted.
    """
    if conn.execute(IS_ANY_OPEN).scalar():
        conn.execute(NOTE_CHANGES, span)


def list_changed_vos(conn: Connection) -> list[str]:
    """VOs with noted jobs."""
    return sorted(conn.execute(VOS).scalars())


def count_turn(conn: Connection, vo: str, *, now: datetime) -> Turn:
    """Let jobs of a VO go, or fail, whose parents ended, or had ended before they were submitted.

    At most `EDGES_AT_ONCE` of either count. A process that is killed has counted all of them or none.
    """
    sql.join_row_by_row(conn)
    noted = list(conn.execute(CHANGES, {"the_vo": vo}).scalars())
    edges: dict[tuple[int, int], Row[*tuple[Any, ...]]] = {}
    is_whole = True
    for statement in (ENDED_PARENTS, OWN_PARENTS):
        found = conn.execute(statement, {"ids": noted, "most": EDGES_AT_ONCE}).all()
        edges |= {(row.job_id, row.parent_id): row for row in found}
        is_whole &= len(found) < EDGES_AT_ONCE
    if is_whole:
        conn.execute(REMOVE_CHANGES, {"the_vo": vo, "ids": noted})
    decided = _decide(conn, list(edges.values()), now=now) if edges else 0
    return Turn(decided=decided, is_last=is_whole and len(noted) < sql.BATCH_SIZE)


def _decide(conn: Connection, edges: Sequence[Row[*tuple[Any, ...]]], *, now: datetime) -> int:
    """Count some edges; the number of jobs that are let go or fail for it."""
    job_ids = {row.job_id for row in edges}
    failing = _settle(conn, edges, job_ids)
    failed = _fail(conn, failing, now=now)
    free = job_ids - failing.keys() - _find_still_waiting(conn, job_ids)
    return failed + len(withheld.let_go(conn, free, DEPENDENCIES, source=SOURCE, now=now))


def _settle(
    conn: Connection, rows: Sequence[Row[*tuple[Any, ...]]], job_ids: Collection[int]
) -> Mapping[int, str]:
    """Store how parents of some jobs ended; which of the jobs fail for one of them, and why."""
    was_reset = {row.job_id for row in sql.read_batches(conn, FAILED_BEFORE, job_ids)}
    ends = _read_ends(conn, {row.parent_id: row.status for row in rows})
    columns = {
        "job_id": [row.job_id for row in rows],
        "parent_id": [row.parent_id for row in rows],
        "ended_as": [ends[row.parent_id] for row in rows],
    }
    SETTLE.execute(conn, columns)
    return {
        row.job_id: f"{row.parent_id} is {ends[row.parent_id]}"
        for row in rows
        if row.policy == AfterPolicy.DONE
        and ends[row.parent_id] != JobStatus.DONE
        and row.job_id not in was_reset
    }


def _read_ends(conn: Connection, statuses: Mapping[int, str | None]) -> Mapping[int, str]:
    """How parents ended, by their statuses now; one that was Done and is already deleted was Done."""
    deleted = [parent for parent, status in statuses.items() if status == JobStatus.DELETED]
    before = {row.job_id: row.from_status for row in sql.read_batches(conn, DELETED_FROM, deleted)}
    return {
        parent: JobStatus.DONE.value if before.get(parent) == JobStatus.DONE else status or _GONE
        for parent, status in statuses.items()
    }


def find_waiting(conn: Connection, job_ids: Collection[int]) -> Mapping[int, str]:
    """Which of some jobs still have to wait for others, and for which."""
    still = sorted(_find_still_waiting(conn, job_ids))
    return {
        job_id: describe_waiting(parents)
        for start in range(0, len(still), _DESCRIBED)
        for job_id, parents in list_parents(conn, still[start : start + _DESCRIBED]).items()
    }


def _find_still_waiting(conn: Connection, job_ids: Collection[int]) -> set[int]:
    return {row.job_id for row in sql.read_batches(conn, STILL_WAITING, job_ids)}


#: A job that its user releases goes on waiting for others.
withheld.STILL_KEPT[DEPENDENCIES] = find_waiting


def _fail(conn: Connection, failing: Mapping[int, str], *, now: datetime) -> int:
    """Fail jobs that are kept from pilots, and those that need their success; how many."""
    if not failing:
        return 0
    after_them = set(conn.execute(DOOMED, {"ids": sorted(failing), "most": EDGES_AT_ONCE}).scalars())
    reasons = {**dict.fromkeys(after_them, "a job before those failed"), **failing}
    transitions.lock_jobs(conn, reasons)
    kept = withheld.find_reasons(conn, reasons)
    moved = transitions.move_jobs(
        conn,
        kept,
        JobStatus.FAILED,
        minor=FAILED,
        application={job_id: reasons[job_id] for job_id in kept},
        source=SOURCE,
        now=now,
        from_states=frozenset({JobStatus.CHECKING}),
    )
    return len(moved)
