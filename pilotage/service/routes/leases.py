"""What pilots report of the jobs that they hold."""

from collections.abc import Callable
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path
from sqlalchemy import Connection

from cs_config.options.operations import options_for
from pilotage.service import lease_reports
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.leases import FinishBody, HeartbeatBody, LeaseAnswer, ReleaseBody, StartBody
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf, takes_at_most
from pilotage.service.services import Services
from taskqueue.db import database, retry
from taskqueue.errors import StaleLease
from taskqueue.leases import lifecycle
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.lifecycle import Progress
from taskqueue.leases.lifecycle_batch import FinishReport, HeartbeatReport, ReportedJob, StartReport

router = APIRouter(prefix="/leases", tags=["leases"], route_class=ApiRoute)

LeasePath = Annotated[str, Path(min_length=1, max_length=64)]

#: Stores a report on an attempt; the answer.
_Report = Callable[[Connection, Attempt], dict[str, Any]]


@router.post("/{lease}/start")
@allow(Role.PILOT, Role.GATEWAY)
@takes_at_most(SMALL)
async def start(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: StartBody | None = None
) -> LeaseAnswer:
    """The payload is about to run: the job becomes Running."""
    del body  # what newer pilots say beside is not refused
    moved = await parts.reports.start(StartReport(lease=lease, holder=_holder(caller)))
    if moved is not None:
        return _answer(moved, heartbeat_seconds=_every(parts, moved.vo))

    def report(conn: Connection, attempt: Attempt) -> dict[str, Any]:
        lease_time = lease_reports.length(parts.live.current, attempt.vo)
        answer = lifecycle.start(conn, lease, lease_time=lease_time, now=parts.clock())
        return answer | {"heartbeat_seconds": _every(parts, attempt.vo)}

    return await run_sync(_reported, parts, caller, lease, "start", report)


@router.post("/{lease}/heartbeat")
@allow(Role.PILOT, Role.GATEWAY)
@takes_at_most(SMALL)
async def heartbeat(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: HeartbeatBody | None = None
) -> LeaseAnswer:
    """The payload runs; the answer may tell the pilot to end it."""
    said = (body or HeartbeatBody()).told()
    vo = await parts.reports.heartbeat(HeartbeatReport(lease=lease, holder=_holder(caller), said=said))
    if vo is None:  # not as plain as most
        return await run_sync(_heartbeat_alone, parts, caller, lease, said)
    return LeaseAnswer(heartbeat_seconds=_every(parts, vo))


@router.post("/{lease}/finish")
@allow(Role.PILOT, Role.GATEWAY)
@takes_at_most(SMALL)
async def finish(parts: PartsOf, caller: CallerOf, lease: LeasePath, body: FinishBody) -> LeaseAnswer:
    """The payload has ended; its output was put before."""
    ended = lifecycle.PayloadResult(
        status=body.status,
        exit_code=body.exit_code,
        minor_status=body.minor_status,
        application_status=body.application_status,
        cpu_seconds=body.cpu_seconds,
        cpu_power=body.cpu_power,
    )
    moved = await parts.reports.finish(FinishReport(lease=lease, holder=_holder(caller), report=ended))
    if moved is not None:
        return _answer(moved, status=ended.status)

    def report(conn: Connection, _attempt: Attempt) -> dict[str, Any]:
        return lifecycle.finish(conn, lease, ended, now=parts.clock())

    return await run_sync(_reported, parts, caller, lease, "finish", report)


@router.post("/{lease}/release")
@allow(Role.PILOT, Role.GATEWAY)
@takes_at_most(SMALL)
def release(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: ReleaseBody | None = None
) -> LeaseAnswer:
    """The pilot gives the job back: not begun, it waits again; begun, it is rescheduled."""
    reason = body.reason if body else ""
    job_ids: list[int] = []

    def report(conn: Connection, attempt: Attempt) -> dict[str, Any]:
        job_ids.append(attempt.job_id)
        maximum = options_for(parts.live.current, attempt.vo).job_scheduling.max_rescheduling
        return lifecycle.release(conn, lease, reason=reason, max_rescheduling=maximum, now=parts.clock())

    answer = _reported(parts, caller, lease, "release", report)
    parts.ring(job_ids)  # one that was rescheduled goes to the optimizers
    return answer


def _holder(caller: Caller) -> str | None:
    """Who has to hold a lease of which this caller speaks; None: anybody."""
    return None if caller.is_operator else caller.subject


def _every(parts: Services, vo: str) -> float:
    return lease_reports.heartbeat_every(parts.live.current, vo)


def _answer(moved: ReportedJob, **others: object) -> LeaseAnswer:
    return LeaseAnswer.model_validate({"job_id": moved.job_id, "epoch": moved.epoch, **others})


def _heartbeat_alone(parts: Services, caller: Caller, lease: str, said: Progress) -> LeaseAnswer:
    """Of a job that has not begun, has stalled or was killed; or of no open attempt at all."""

    def report(conn: Connection, attempt: Attempt) -> dict[str, Any]:
        lease_time = lease_reports.length(parts.live.current, attempt.vo)
        answer = lifecycle.heartbeat(conn, lease, said=said, lease_time=lease_time, now=parts.clock())
        return answer | {"heartbeat_seconds": _every(parts, attempt.vo)}

    return _reported(parts, caller, lease, "heartbeat", report)


@retry.retry_on_conflict
def _reported(parts: Services, caller: Caller, lease: str, what: str, report: _Report) -> LeaseAnswer:
    """Store a report in one transaction; one on a closed attempt is noted in the job's log and refused."""
    try:
        with database.writing(parts.engine) as conn:
            answer = report(conn, visibility.require_lease(conn, caller, lease))
    except StaleLease:
        with database.writing(parts.engine) as conn:
            lifecycle.record_stale(conn, lease, what, now=parts.clock())
        raise
    return LeaseAnswer.model_validate(answer)
