"""Lease reports: start, heartbeat, finish, release."""

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
from taskqueue.db import database
from taskqueue.errors import StaleLease
from taskqueue.leases import lifecycle
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.lifecycle import Progress
from taskqueue.leases.lifecycle_batch import FinishReport, HeartbeatReport, ReportedJob, StartReport

router = APIRouter(prefix="/leases", tags=["leases"], route_class=ApiRoute)

LeasePath = Annotated[str, Path(min_length=1, max_length=64)]

#: Stores a report on an attempt and returns the answer.
_Report = Callable[[Connection, Attempt], dict[str, Any]]


@router.post("/{lease}/start")
@allow(Role.PILOT, Role.GATEWAY)
@takes_at_most(SMALL)
async def start(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: StartBody | None = None
) -> LeaseAnswer:
    """Report that the payload is about to run: the job becomes Running."""
    del body  # further fields of newer pilots are ignored
    moved = await parts.reports.start(StartReport(lease=lease, holder=_holder(caller)))
    if moved is not None:
        return _answer(moved, heartbeat_seconds=_every(parts, moved.vo))

    def report(conn: Connection, attempt: Attempt) -> dict[str, Any]:
        lease_time = lease_reports.length(parts.live.current, attempt.vo)
        answer = lifecycle.start(conn, lease, lease_time=lease_time, now=parts.clock())
        return answer | {"heartbeat_seconds": _every(parts, attempt.vo)}

    return await run_sync(_store_report, parts, caller, lease, "start", report)


@router.post("/{lease}/heartbeat")
@allow(Role.PILOT, Role.GATEWAY)
@takes_at_most(SMALL)
async def heartbeat(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: HeartbeatBody | None = None
) -> LeaseAnswer:
    """Report that the payload runs; the answer may command the pilot to end it."""
    progress = (body or HeartbeatBody()).to_progress()
    vo = await parts.reports.heartbeat(HeartbeatReport(lease=lease, holder=_holder(caller), said=progress))
    if vo is None:  # not a plain heartbeat
        return await run_sync(_heartbeat_alone, parts, caller, lease, progress)
    return LeaseAnswer(heartbeat_seconds=_every(parts, vo))


@router.post("/{lease}/finish")
@allow(Role.PILOT, Role.GATEWAY)
@takes_at_most(SMALL)
async def finish(parts: PartsOf, caller: CallerOf, lease: LeasePath, body: FinishBody) -> LeaseAnswer:
    """Report that the payload has ended; its output was uploaded before."""
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

    return await run_sync(_store_report, parts, caller, lease, "finish", report)


@router.post("/{lease}/release")
@allow(Role.PILOT, Role.GATEWAY)
@takes_at_most(SMALL)
def release(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: ReleaseBody | None = None
) -> LeaseAnswer:
    """Give the job back: if it was not started it waits again, otherwise it is rescheduled."""
    reason = body.reason if body else ""
    job_ids: list[int] = []

    def report(conn: Connection, attempt: Attempt) -> dict[str, Any]:
        job_ids.append(attempt.job_id)
        maximum = options_for(parts.live.current, attempt.vo).job_scheduling.max_rescheduling
        return lifecycle.release(conn, lease, reason=reason, max_rescheduling=maximum, now=parts.clock())

    answer = _store_report(parts, caller, lease, "release", report)
    parts.ring(job_ids)  # a rescheduled job needs the optimizers
    return answer


def _holder(caller: Caller) -> str | None:
    """Required holder of a lease that this caller reports on; None: any."""
    return None if caller.is_operator else caller.subject


def _every(parts: Services, vo: str) -> float:
    return lease_reports.heartbeat_every(parts.live.current, vo)


def _answer(moved: ReportedJob, **others: object) -> LeaseAnswer:
    return LeaseAnswer.model_validate({"job_id": moved.job_id, "epoch": moved.epoch, **others})


def _heartbeat_alone(parts: Services, caller: Caller, lease: str, progress: Progress) -> LeaseAnswer:
    """Handle a heartbeat of a job that has not started, is stalled or killed, or without an open attempt."""

    def report(conn: Connection, attempt: Attempt) -> dict[str, Any]:
        lease_time = lease_reports.length(parts.live.current, attempt.vo)
        answer = lifecycle.heartbeat(conn, lease, said=progress, lease_time=lease_time, now=parts.clock())
        return answer | {"heartbeat_seconds": _every(parts, attempt.vo)}

    return _store_report(parts, caller, lease, "heartbeat", report)


@database.retry_on_conflict
def _store_report(parts: Services, caller: Caller, lease: str, what: str, report: _Report) -> LeaseAnswer:
    """Store a report in one transaction; a report on a closed attempt is logged for the job and rejected."""
    try:
        with database.writing(parts.engine) as conn:
            answer = report(conn, visibility.require_lease(conn, caller, lease))
    except StaleLease:
        with database.writing(parts.engine) as conn:
            lifecycle.record_stale(conn, lease, what, now=parts.clock())
        raise
    return LeaseAnswer.model_validate(answer)
