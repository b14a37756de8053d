"""Deletion of old data and of unused task queues and requirement classes, a bounded number of rows at a time.

Each function is one step in a transaction of its caller, who repeats it while it finds something. Steps are
idempotent and safe in several processes at once.

The row of a task queue or class is locked first, and checked for use in a later statement.
`task_queues.hold_task_queues` takes the same lock, or finds the row gone and inserts it again. So neither
waits long for the other, and no job is left without its task queue.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Delete,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    tuple_,
    union,
    update,
)

from cs_config.versions.tables import config_imports, config_versions
from requirements.states import FINAL, PILOT_ENDS, JobStatus
from taskqueue.accounting import wait_times
from taskqueue.db import log_partitions, sql
from taskqueue.jobs import descriptions as job_descriptions
from taskqueue.schema.tables import (
    ENDED,
    attempts,
    blobs,
    day_records,
    dependency_changes,
    descriptions,
    downtimes,
    hook_deliveries,
    idempotency_keys,
    installation,
    job_log,
    job_parameters,
    jobs,
    local_jobs,
    log_readers,
    match_requests,
    matching_delays,
    pilots,
    queue_class_versions,
    queue_depths,
    requirement_classes,
    revoked_tokens,
    scope_rules,
    seen_hardware,
    submit_pools,
    task_queues,
    wait_causes,
    waiting_jobs,
)

_BEFORE = bindparam("before", type_=jobs.c.updated_at.type)
_LIMIT: BindParameter[int] = bindparam("limit")
_EVERY = 2**63 - 1  #: larger than any log id
_NOT_FINAL = sorted(set(JobStatus) - FINAL)
#: Of an archive: the VO that has it, and its digest.
Archive: TypeAlias = tuple[str, str]
#: Before all jobs.
LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: The last log row that every reader has counted; one that nobody runs any more holds nothing back.
counted = (
    select(func.coalesce(func.min(log_readers.c.counted), _EVERY))
    .where(log_readers.c.name.in_(bindparam("readers", expanding=True)))
    .scalar_subquery()
)
_last_logged = select(func.max(job_log.c.log_id)).where(job_log.c.job_id == jobs.c.job_id).scalar_subquery()
#: Conditions on jobs: every reader has counted the job's log, with what it noted; and a killed job's pilot
#: still delivers output.
is_counted = and_(
    func.coalesce(_last_logged, 0) <= counted,
    ~exists().where(dependency_changes.c.vo == jobs.c.vo, dependency_changes.c.job_id == jobs.c.job_id),
)
has_open_attempt = exists().where(attempts.c.job_id == jobs.c.job_id, attempts.c.closed_at.is_(None))

_is_over = and_(
    sql.is_listed(jobs.c.job_id),
    jobs.c.status.in_(sorted(FINAL)),
    jobs.c.updated_at < sql.time_of_key("before_by_vo", jobs.c.vo),
    ~has_open_attempt,
    is_counted,
)

OLD_JOBS = (
    select(jobs.c.job_id, jobs.c.description_id)
    .where(_is_over)
    .order_by(jobs.c.job_id)
    .with_for_update(skip_locked=True)
)
REMOVE_WAITING = delete(waiting_jobs).where(sql.is_listed(waiting_jobs.c.job_id))
#: Parameters and attempts go with the job, by foreign key, and so does the log unless it is in partitions.
REMOVE_JOBS = delete(jobs).where(sql.is_listed(jobs.c.job_id))


def _select_old(*details: Table) -> Select[int]:
    """Select those of the listed jobs that have a row in one of these tables."""
    return select(jobs.c.job_id).where(
        _is_over, or_(*(exists().where(each.c.job_id == jobs.c.job_id) for each in details))
    )


OLD_LOGS = _select_old(job_log, job_parameters)
#: Where the log goes with its partition, a while later: jobs with something else to delete.
OLD_DETAILS = _select_old(job_parameters, local_jobs)
REMOVE_LOGS = delete(job_log).where(sql.is_listed(job_log.c.job_id))
REMOVE_LOCAL_JOBS = delete(local_jobs).where(sql.is_listed(local_jobs.c.job_id))

OVER = select(jobs.c.job_id).where(_is_over)
DETACH_OUTPUTS = (
    update(attempts)
    .where(sql.is_listed(attempts.c.job_id), attempts.c.output.is_not(None))
    .values(output=None)
)

_next_digests = (
    select(blobs.c.digest)
    .where(blobs.c.digest > bindparam("after"))
    .order_by(blobs.c.digest)
    .limit(_LIMIT)
    .subquery()
)
#: From the primary key alone; a digest that two VOs have is there twice.
END_OF_PAGE = select(func.max(_next_digests.c.digest).label("upto"), func.count().label("rows"))
_is_unused_blob = and_(
    blobs.c.last_used_at < sql.time_of_key("before_by_vo", blobs.c.vo),
    ~exists().where(attempts.c.output == blobs.c.digest, attempts.c.vo == blobs.c.vo),
)
#: By the range, not by a list of so many: PostgreSQL would scan the table for that.
UNUSED_BLOBS = select(blobs.c.vo, blobs.c.digest).where(
    blobs.c.digest > bindparam("after"), blobs.c.digest <= bindparam("upto"), _is_unused_blob
)
#: The jobs of one description. As a join, SQLite would begin with all jobs of the VO; and without `OFFSET`
#: PostgreSQL would begin with all that have not ended, if these fit into its memory.
_needs_sandbox = (
    select(jobs.c.job_id)
    .where(
        jobs.c.description_id == descriptions.c.description_id,
        jobs.c.vo == blobs.c.vo,
        jobs.c.status.in_(_NOT_FINAL),
    )
    .correlate(descriptions, blobs)
    .offset(0)
    .exists()
)
_is_sandbox = exists().where(descriptions.c.sandbox == blobs.c.digest, _needs_sandbox)
#: By both: the row of the same digest of another VO may be locked by a submission, which waits for others.
_is_listed_blob = and_(tuple_(blobs.c.vo, blobs.c.digest).in_(sql.KEYS), _is_unused_blob)
LOCK_BLOBS = select(blobs.c.vo, blobs.c.digest).where(_is_listed_blob).with_for_update(skip_locked=True)
REMOVE_BLOBS = delete(blobs).where(_is_listed_blob, ~_is_sandbox).returning(blobs.c.digest)


_is_output = and_(blobs.c.vo == bindparam("the_vo"), blobs.c.is_output)
OUTPUT_BYTES = select(func.coalesce(func.sum(blobs.c.size), 0)).where(_is_output)
OLDEST_OUTPUTS = (
    select(blobs.c.digest, blobs.c.size)
    .where(_is_output)
    .order_by(blobs.c.last_used_at, blobs.c.digest.desc())
    .limit(_LIMIT)
)
#: One that was stored again meanwhile stays.
REMOVE_OUTPUTS = (
    delete(blobs)
    .where(sql.is_listed(blobs.c.digest), _is_output, blobs.c.last_used_at < _BEFORE)
    .returning(blobs.c.digest)
)
DETACH_DIGESTS = (
    update(attempts)
    .where(sql.is_listed(attempts.c.output), attempts.c.vo == bindparam("the_vo"))
    .values(output=None)
)


#: Versions whose text is needed: of pools, mappings, scope rules and imported files, and the newest.
_named_versions = union(
    select(submit_pools.c.config_version),
    select(queue_class_versions.c.config_version),
    select(installation.c.rules_version),
    select(config_imports.c.version),
    select(func.max(config_versions.c.version)),
)
_newest_version = select(func.max(config_versions.c.version)).scalar_subquery()
_is_old_version = and_(
    config_versions.c.text.is_not(None),
    config_versions.c.version.not_in(_named_versions),
    or_(
        and_(
            config_versions.c.created_at < _BEFORE,
            config_versions.c.version <= _newest_version - bindparam("fewest"),
        ),
        config_versions.c.version <= _newest_version - bindparam("most"),
    ),
)
REMOVE_TEXTS = (
    update(config_versions)
    .where(
        config_versions.c.version.in_(
            select(config_versions.c.version)
            .where(_is_old_version)
            .order_by(config_versions.c.version)
            .limit(_LIMIT)
        )
    )
    .values(text=None)
)


def _delete_some(table: Table, is_old: ColumnElement[bool]) -> Delete:
    key = tuple_(*table.primary_key) if len(table.primary_key) > 1 else next(iter(table.primary_key))
    return delete(table).where(key.in_(select(*table.primary_key).where(is_old).limit(_LIMIT)))


#: Rows that are old by one of their times. Without its wait causes a job counts as having waited for a pilot.
REMOVE_OLD = {
    each.name: _delete_some(each, each.c[at] < _BEFORE)
    for each, at in (
        (match_requests, "at"),
        (idempotency_keys, "at"),
        (wait_causes, "until"),
        (revoked_tokens, "expires_at"),
        (hook_deliveries, "ended_at"),
        (queue_depths, "at"),
        (day_records, "hour"),
        (seen_hardware, "last_seen_at"),
        (downtimes, "ends"),
    )
}
#: Only those without a rule: that of a delay of many days has to outlive any age.
REMOVE_OLD[matching_delays.name] = _delete_some(
    matching_delays,
    and_(
        matching_delays.c.at < _BEFORE,
        ~exists().where(*(each == scope_rules.c[each.name] for each in matching_delays.primary_key)),
    ),
)
REMOVE_PILOTS = _delete_some(
    pilots,
    and_(
        pilots.c.vo == bindparam("the_vo"),
        pilots.c.status.in_(sorted(PILOT_ENDS)),
        pilots.c.updated_at < _BEFORE,
    ),
)


_SINCE = bindparam("since", type_=jobs.c.updated_at.type)
#: Of one status, in the order of the index: with several in one condition each page would sort all jobs.
ENDED_JOBS = (
    select(jobs.c.job_id, jobs.c.updated_at)
    .where(jobs.c.status == bindparam("status"), text(ENDED))
    .where(jobs.c.updated_at >= _SINCE, jobs.c.updated_at < _BEFORE)
    .where(or_(jobs.c.updated_at > _SINCE, jobs.c.job_id > bindparam("after")))
    .order_by(jobs.c.updated_at, jobs.c.job_id)
    .limit(_LIMIT)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWindow:
    """The jobs of all VOs that are in a final status since a span of time, the first to end first."""

    status: JobStatus
    since: datetime
    before: datetime
    after: int = 0  #: of those that ended at `since`, only the ones beyond this id

    def read(self, conn: Connection, *, most: int) -> tuple[list[int], "EndedWindow | None"]:
        """The first `most` of them, and the window of those that follow; None: there are no more."""
        values = {"status": self.status, "since": self.since, "before": self.before, "after": self.after}
        rows = conn.execute(ENDED_JOBS, {**values, "limit": most}).all()
        rest = None
        if len(rows) == most:
            rest = replace(self, since=rows[-1].updated_at, after=rows[-1].job_id)
        return [row.job_id for row in rows], rest


@dataclass(frozen=True, slots=True, kw_only=True)
class OldJobs:
    """Those of some jobs that ended before the time of their VO, and have no open attempt.

    Jobs of VOs without a time are not among them, nor those whose log one of the readers has not read.
    """

    job_ids: Collection[int]
    before: Mapping[str, datetime]  #: by VO
    readers: Collection[str]

    def select(self, conn: Connection, statement: Select[*tuple[Any, ...]]) -> Sequence[Row[Any]]:
        """Rows of a statement with the condition on old jobs, such as `OLD_JOBS`."""
        values = {"ids": sorted(self.job_ids), "before_by_vo": self.before, "readers": sorted(self.readers)}
        return conn.execute(statement, values).all()


def remove_jobs(conn: Connection, old: OldJobs) -> int:
    """Delete jobs; how many.

    Their attempts and unshared descriptions go with them, and their log; one in partitions has no foreign
    key to the job: its rows go with their partition.
    """
    rows = old.select(conn, OLD_JOBS)
    if rows:
        found = [row.job_id for row in rows]
        conn.execute(REMOVE_WAITING, {"ids": found})
        conn.execute(REMOVE_JOBS, {"ids": found})
        job_descriptions.remove_unused(conn, {row.description_id for row in rows})
    return len(rows)


def remove_logs(conn: Connection, old: OldJobs) -> int:
    """Delete log, parameters and local jobs of jobs; of how many.

    A log in partitions stays until those are dropped (`log_retention`).
    """
    is_partitioned = log_partitions.is_partitioned(conn)
    found = [row.job_id for row in old.select(conn, OLD_DETAILS if is_partitioned else OLD_LOGS)]
    if found:
        wait_times.store_waits(conn, found)
        if not is_partitioned:
            conn.execute(REMOVE_LOGS, {"ids": found})
        conn.execute(REMOVE_LOCAL_JOBS, {"ids": found})
        job_descriptions.remove_parameters(conn, found)
    return len(found)


def detach_outputs(conn: Connection, old: OldJobs) -> int:
    """Unset the outputs of jobs; of how many attempts. `remove_blobs` deletes the archives."""
    found = [row.job_id for row in old.select(conn, OVER)]
    return conn.execute(DETACH_OUTPUTS, {"ids": found}).rowcount if found else 0


def list_unused_blobs(
    conn: Connection, *, after: str, most: int, before: Mapping[str, datetime]
) -> tuple[list[Archive], str | None]:
    """Archives that a VO has not used since its time, and that are no output of an attempt of it.

    Of the next `most` behind the digest `after`, with the last of these digests; None: there are no more.
    """
    end = conn.execute(END_OF_PAGE, {"after": after, "limit": most}).one()
    if not end.rows:
        return [], None
    sql.join_row_by_row(conn)
    values = {"after": after, "upto": end.upto, "before_by_vo": before}
    unused = [(vo, digest) for vo, digest in conn.execute(UNUSED_BLOBS, values)]
    return unused, end.upto if end.rows == most else None


def remove_blobs(
    conn: Connection, unused: Collection[Archive], *, before: Mapping[str, datetime]
) -> list[str]:
    """Delete the rows of archives that are unused and no sandbox of a job that has not ended; their digests.

    A row that a submission or an upload has locked stays: these set the time of its use. The files are
    deleted after the commit, by `blobs.remove_file`.
    """
    sql.join_row_by_row(conn)
    values = {"ids": sorted(unused), "before_by_vo": before}
    locked = [(vo, digest) for vo, digest in conn.execute(LOCK_BLOBS, values)]
    return list(conn.execute(REMOVE_BLOBS, {**values, "ids": locked}).scalars()) if locked else []


def remove_outputs(conn: Connection, *, vo: str, quota: int, before: datetime, limit: int) -> list[str]:
    """Delete the rows of the oldest outputs beyond a quota in bytes, and unset them in attempts; the digests.

    Those stored since `before`, which is the time now, stay. The files are deleted as for `remove_blobs`.
    """
    excess = int(conn.execute(OUTPUT_BYTES, {"the_vo": vo}).scalar_one()) - quota
    over = []
    for digest, size in conn.execute(OLDEST_OUTPUTS, {"the_vo": vo, "limit": limit}) if excess > 0 else ():
        if excess <= 0:
            break
        over.append(digest)
        excess -= size
    if not over:
        return []
    values = {"the_vo": vo, "before": before, "ids": over}
    removed = list(conn.execute(REMOVE_OUTPUTS, values).scalars())
    if removed:
        conn.execute(DETACH_DIGESTS, {"the_vo": vo, "ids": removed})
    return removed


def remove_config_texts(conn: Connection, *, before: datetime, fewest: int, most: int, limit: int) -> int:
    """Unset texts of versions from before that time, but of the `fewest` newest; beyond `most` in any case.

    Who changed which paths remains. A version in force, or that a pool names, keeps its text.
    """
    values = {"before": before, "fewest": fewest, "most": most, "limit": limit}
    return conn.execute(REMOVE_TEXTS, values).rowcount


def remove_pilots(conn: Connection, *, vo: str, before: datetime, limit: int) -> int:
    """Delete pilots that ended before that time."""
    return conn.execute(REMOVE_PILOTS, {"the_vo": vo, "before": before, "limit": limit}).rowcount


def remove_old(conn: Connection, table: str, *, before: datetime, limit: int) -> int:
    """Delete rows of a table in `REMOVE_OLD` from before that time."""
    return conn.execute(REMOVE_OLD[table], {"before": before, "limit": limit}).rowcount


_has_jobs = exists().where(waiting_jobs.c.task_queue_id == task_queues.c.task_queue_id)
_is_unused = (~task_queues.c.occupied, task_queues.c.changed_at < _BEFORE)
#: Emptied without a claim, e.g. because the last job was killed.
STILL_OCCUPIED = select(task_queues.c.task_queue_id).where(
    task_queues.c.occupied, task_queues.c.changed_at < _BEFORE, ~_has_jobs
)
UNUSED = select(task_queues.c.task_queue_id).where(*_is_unused)
_page = (
    select(jobs.c.job_id, jobs.c.task_queue_id)
    .where(jobs.c.job_id > bindparam("after"))
    .order_by(jobs.c.job_id)
    .limit(bindparam("most"))
    .subquery()
)
#: Jobs by id, page by page: an index by task queue would cost at every change of a job, and one statement for
#: all jobs takes longer than statements may where there are very many.
IN_USE = select(
    _page.c.task_queue_id, func.max(_page.c.job_id).label("last"), func.count().label("jobs")
).group_by(_page.c.task_queue_id)
LOCK = (
    select(task_queues.c.task_queue_id)
    .where(sql.is_listed(task_queues.c.task_queue_id), *_is_unused)
    .order_by(task_queues.c.task_queue_id)
    .with_for_update(skip_locked=True)
)
REMOVE = delete(task_queues).where(sql.is_listed(task_queues.c.task_queue_id), ~_has_jobs)

_is_referenced = exists().where(task_queues.c.class_id == requirement_classes.c.class_id)
LOCK_CLASSES = (
    select(requirement_classes.c.class_id)
    .where(~_is_referenced)
    .order_by(requirement_classes.c.class_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
REMOVE_CLASSES = delete(requirement_classes).where(
    sql.is_listed(requirement_classes.c.class_id), ~_is_referenced
)


def list_emptied(conn: Connection, *, before: datetime) -> list[int]:
    """Task queues without jobs that have been marked occupied since before that time: for `mark_empty`."""
    return list(conn.execute(STILL_OCCUPIED, {"before": before}).scalars())


@dataclass(slots=True, kw_only=True)
class UnusedSearch:
    """A search for task queues that no job refers to, not even a final one; it may take hours.

    The candidates are read before the jobs: a job that comes in between changes `changed_at`.
    """

    before: datetime  #: they have been empty since
    left: set[int]  #: candidates of which no job was found yet
    _after: int = 0  #: jobs up to this id were read

    def read_on(self, conn: Connection, *, most: int) -> bool:
        """Read so many further jobs; whether there may be more that matter."""
        if not self.left:
            return False
        rows = conn.execute(IN_USE, {"after": self._after, "most": most}).all()
        self.left -= {row.task_queue_id for row in rows}
        self._after = max((row.last for row in rows), default=self._after)
        return bool(sum(row.jobs for row in rows) == most)


def search_unused(conn: Connection, *, before: datetime) -> UnusedSearch:
    """Begin a search among the task queues that have been empty since that time."""
    return UnusedSearch(before=before, left=set(conn.execute(UNUSED, {"before": before}).scalars()))


def remove_unused(conn: Connection, task_queue_ids: Collection[int], *, before: datetime) -> int:
    """Remove the task queues found by an `UnusedSearch`, with its `before`, if still unused; how many.

    At most `sql.BATCH_SIZE` ids.
    """
    locked = list(conn.execute(LOCK, {"ids": sorted(task_queue_ids), "before": before}).scalars())
    return conn.execute(REMOVE, {"ids": locked}).rowcount if locked else 0


def remove_unused_classes(conn: Connection, *, limit: int = sql.BATCH_SIZE) -> int:
    """Remove requirement classes without a task queue; how many."""
    locked = list(conn.execute(LOCK_CLASSES, {"limit": limit}).scalars())
    return conn.execute(REMOVE_CLASSES, {"ids": locked}).rowcount if locked else 0
