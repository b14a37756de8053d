"""Grid jobs of job managers, with the progress of their local jobs. Source: SAM-Grid."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, FromClause, and_, bindparam, case, func, or_, select

from requirements.states import LocalJobsStatus
from taskqueue import ownership
from taskqueue.db import sql
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.reports import GridJobPhase
from taskqueue.ownership import Visible
from taskqueue.schema.tables import attempts, jobs
from taskqueue.schema.tables import local_jobs as local_jobs_table

_OPEN = attempts.c.closed_at.is_(None)
#: Only job managers report either.
_MANAGED = or_(attempts.c.local_jobs.is_not(None), attempts.c.phases.is_not(None))

ALL = (
    select(
        *(attempts.c.job_id, attempts.c.epoch, attempts.c.holder, attempts.c.vo),
        *(attempts.c.site, attempts.c.ce, attempts.c.queue, attempts.c.opened_at),
        *(attempts.c.started_at, attempts.c.heartbeat_at, attempts.c.ending, attempts.c.progress),
        *(attempts.c.phases, attempts.c.local_jobs),
        *(jobs.c.status, jobs.c.owner, jobs.c.job_name, jobs.c.job_type),
    )
    .join(jobs, jobs.c.job_id == attempts.c.job_id)
    .where(_OPEN, _MANAGED)
)
_PLACE = (attempts.c.site, attempts.c.holder)
MANAGERS = (
    select(
        *_PLACE,
        func.count().label("grid_jobs"),
        func.min(attempts.c.opened_at).label("oldest"),
        func.max(attempts.c.heartbeat_at).label("heartbeat_at"),
    )
    .join(jobs, jobs.c.job_id == attempts.c.job_id)
    .where(_OPEN, _MANAGED)
    .group_by(*_PLACE)
    .order_by(*_PLACE)
)


#: States of local jobs that a manager reports; only those that some local job has are stored.
_DONE = "done"
_ENDED_BADLY = ("failed", "killed")
_SUBMITTED = ("intended", "waiting", "running")
_UNSUBMITTED = "unsubmitted"


def aggregate_status(local_jobs: Mapping[str, int]) -> LocalJobsStatus:
    """The overall status for numbers of local jobs by state."""
    states = {state for state, number in local_jobs.items() if number}
    if states <= {_UNSUBMITTED}:
        return LocalJobsStatus.UNSUBMITTED
    if states == {_DONE}:
        return LocalJobsStatus.DONE
    return LocalJobsStatus.ERROR if states <= {_DONE, *_ENDED_BADLY} else LocalJobsStatus.ACTIVE


def _match_status(status: LocalJobsStatus) -> ColumnElement[bool]:
    """The condition on stored numbers for which `aggregate_status` has this result."""
    stored = func.coalesce(attempts.c.local_jobs, "{}")

    def has(*states: str) -> ColumnElement[bool]:
        return or_(*(stored.contains(f'"{state}"') for state in states))

    ended = has(_DONE, *_ENDED_BADLY)
    is_active = or_(has(*_SUBMITTED), and_(has(_UNSUBMITTED), ended))
    return {
        LocalJobsStatus.UNSUBMITTED: ~or_(has(*_SUBMITTED), ended),
        LocalJobsStatus.ACTIVE: is_active,
        LocalJobsStatus.DONE: and_(has(_DONE), ~has(*_ENDED_BADLY), ~is_active),
        LocalJobsStatus.ERROR: and_(has(*_ENDED_BADLY), ~is_active),
    }[status]


def latest_status(of: FromClause) -> ColumnElement[str]:
    """The overall status of the local jobs of a job's latest attempt; NULL: no job manager had it.

    As a scalar it is a look-up by primary key for each row that is scanned; an EXISTS might be planned as a
    scan of all attempts.
    """
    latest = and_(attempts.c.job_id == of.c.job_id, attempts.c.epoch == of.c.epoch, _MANAGED)
    status = case(*((_match_status(each), each.value) for each in LocalJobsStatus))
    return select(status).where(latest).correlate(of).scalar_subquery()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedGridJob:
    """A grid job that a job manager holds."""

    job_id: int
    epoch: int
    holder: str  #: token subject of its gateway
    vo: str
    owner: str
    job_name: str
    job_type: str
    status: str
    site: str
    ce: str
    queue: str
    opened_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    ending: bool  #: killed; its manager gets a kill command
    progress: str
    phases: Sequence[GridJobPhase]
    local_jobs: Mapping[str, int]  #: by state

    @property
    def local_status(self) -> LocalJobsStatus:
        """The overall status of its local jobs."""
        return aggregate_status(self.local_jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLocalJob:
    """A local job of a grid job, as its manager reported it."""

    number: int  #: from 1
    state: str
    tries: int
    reference: str | None  #: of its latest try, in the batch system
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    message: str  #: why its last try failed
    details: Mapping[str, str | int | float]  #: of the handler of its type, for users


_LOCAL: Final = tuple(each.name for each in fields(ReportedLocalJob))
STORE_LOCAL = sql.insert_or_update(local_jobs_table, *_LOCAL[1:])
LOCAL_JOBS = (
    select(*(local_jobs_table.c[name] for name in _LOCAL))
    .where(
        local_jobs_table.c.job_id == bindparam("job_id"),
        local_jobs_table.c.epoch == bindparam("epoch"),
        local_jobs_table.c.number > bindparam("after"),
        or_(bindparam("state") == "", local_jobs_table.c.state == bindparam("state")),
    )
    .order_by(local_jobs_table.c.number)
    .limit(bindparam("most"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManager:
    """A gateway that holds grid jobs."""

    site: str
    holder: str  #: its token subject
    grid_jobs: int
    oldest: datetime  #: when it got the oldest of them
    heartbeat_at: datetime | None  #: latest report about any of them


def list_grid_jobs(
    conn: Connection,
    visible: Visible,
    *,
    limit: int,
    after: int | None = None,
    status: LocalJobsStatus | None = None,
) -> list[ManagedGridJob]:
    """A page of grid jobs that are not done, newest first; `status` of their local jobs, None: any."""
    statement = ALL.where(*_match(visible))
    if status is not None:
        statement = statement.where(_match_status(status))
    if after is not None:
        statement = statement.where(attempts.c.job_id < after)
    rows = conn.execute(statement.order_by(attempts.c.job_id.desc()).limit(limit)).mappings()
    return [_grid_job_from_row(dict(row)) for row in rows]


def store_local_jobs(conn: Connection, attempt: Attempt, reported: Sequence[ReportedLocalJob]) -> None:
    """Store local jobs of an attempt; those stored before are replaced."""
    about = {"job_id": attempt.job_id, "epoch": attempt.epoch}
    if reported:
        rows = [{**about, **asdict(each), "details": json.dumps(dict(each.details))} for each in reported]
        conn.execute(STORE_LOCAL, rows)


def list_local_jobs(
    conn: Connection, job_id: int, epoch: int, *, limit: int, after: int = 0, state: str | None = None
) -> list[ReportedLocalJob]:
    """A page of the local jobs of an attempt, by number."""
    values = {"job_id": job_id, "epoch": epoch, "after": after, "most": limit, "state": state or ""}
    rows = conn.execute(LOCAL_JOBS, values).mappings()
    return [ReportedLocalJob(**{**row, "details": json.loads(row["details"])}) for row in rows]


def list_managers(conn: Connection, visible: Visible) -> list[JobManager]:
    """The gateways that hold grid jobs, by site."""
    return [JobManager(**row._asdict()) for row in conn.execute(MANAGERS.where(*_match(visible)))]


def _match(visible: Visible) -> list[ColumnElement[bool]]:
    return ownership.match_visible(visible, vo=attempts.c.vo, at=attempts.c.site.in_, owner=jobs.c.owner)


def _grid_job_from_row(row: dict[str, Any]) -> ManagedGridJob:
    phases, local_jobs = row.pop("phases"), row.pop("local_jobs")
    return ManagedGridJob(
        **row,
        phases=tuple(GridJobPhase(**each) for each in json.loads(phases or "[]")),
        local_jobs=json.loads(local_jobs or "{}"),
    )
