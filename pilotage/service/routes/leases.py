"""Lease reports: start, heartbeat, finish, release."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from cs_config.options.operations import options_for
from pilotage.service import lease_reports
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.jobs import Exact, PhaseBody
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf
from pilotage.service.services import Services
from taskqueue.db import database
from taskqueue.errors import StaleLease
from taskqueue.leases import lifecycle
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.lifecycle import GridJobPhase, Progress
from taskqueue.leases.lifecycle_batch import FinishReport, HeartbeatReport, ReportedJob, StartReport

router = APIRouter(prefix="/leases", tags=["leases"], route_class=ApiRoute)

LeasePath = Annotated[str, Path(min_length=1, max_length=64)]

#: Characters of the payload's output that are stored: the last ones.
_TAIL = 16_384
#: Most phases, and states of local jobs, in one heartbeat.
_MOST_PHASES, _MOST_STATES = 50, 20
#: CPU seconds: ten thousand cores for four months; normalised seconds per CPU second.
_MOST_CPU, _MOST_POWER = 1e11, 1e6
_STATE = r"^[a-z][a-z_]{0,31}$"

_Answer = TypeVar("_Answer")


class LeaseMessage(BaseModel):
    """A message about an attempt; other releases may add fields."""

    model_config = ConfigDict(extra="allow")


class StartBody(LeaseMessage):
    """Report that the payload is about to run."""


class HeartbeatBody(LeaseMessage):
    """Report that the payload runs."""

    progress: str | None = Field(default=None, max_length=2000, description="For people; null: unchanged.")
    output_tail: str | None = Field(default=None, description="End of the payload's output; null: unchanged.")
    phases: list[PhaseBody] | None = Field(
        default=None, max_length=_MOST_PHASES, description="Of a grid job, in order; null: unchanged."
    )
    local_jobs: dict[Annotated[str, Field(pattern=_STATE)], Exact] | None = Field(
        default=None,
        max_length=_MOST_STATES,
        description="Numbers of a grid job's local jobs by state; null: unchanged.",
    )

    def to_progress(self) -> Progress:
        """The part that is stored."""
        phases = [GridJobPhase(**each.model_dump()) for each in self.phases or ()]
        return Progress(
            text=self.progress,
            output_tail=None if self.output_tail is None else self.output_tail[-_TAIL:],
            phases=None if self.phases is None else phases,
            local_jobs=self.local_jobs,
        )


class FinishBody(LeaseMessage):
    """Report that the payload has ended."""

    status: Literal["Done", "Failed"]
    exit_code: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    minor_status: str = Field(default="", max_length=2000)
    application_status: str = Field(default="", max_length=2000)
    cpu_seconds: float | None = Field(
        default=None, ge=0, le=_MOST_CPU, description="CPU time of the payload with all its processes."
    )
    cpu_power: float | None = Field(
        default=None, gt=0, le=_MOST_POWER, description="Normalised seconds per CPU second, if measured."
    )


class ReleaseBody(LeaseMessage):
    """Return of a job by its pilot."""

    reason: str = Field(default="", max_length=2000)


class LeaseAnswer(LeaseMessage):
    """Commands for the pilot; a repeated request gets the same answer."""

    commands: list[str] = Field(default=[], description="`kill`: end the payload and deliver its output.")
    heartbeat_seconds: float | None = Field(default=None, description="Seconds until the next heartbeat.")


@database.retry_on_conflict
def store_report(
    parts: Services, caller: Caller, lease: str, what: str, report: Callable[[Connection, Attempt], _Answer]
) -> _Answer:
    """Store a report in one transaction; a report on a closed attempt is logged for the job and rejected."""
    try:
        with database.writing(parts.engine) as conn:
            return report(conn, visibility.require_lease(conn, caller, lease))
    except StaleLease:
        with database.writing(parts.engine) as conn:
            lifecycle.record_stale(conn, lease, what, now=parts.clock())
        raise


@router.post("/{lease}/start")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
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

    return LeaseAnswer.model_validate(await run_sync(store_report, parts, caller, lease, "start", report))


@router.post("/{lease}/heartbeat")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
async def heartbeat(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: HeartbeatBody | None = None
) -> LeaseAnswer:
    """Report that the payload runs; the answer may command the pilot to end it."""
    progress = (body or HeartbeatBody()).to_progress()
    vo = await parts.reports.heartbeat(HeartbeatReport(lease=lease, holder=_holder(caller), said=progress))
    if vo is not None:
        return LeaseAnswer(heartbeat_seconds=_every(parts, vo))

    def report(conn: Connection, attempt: Attempt) -> dict[str, Any]:
        """Not plain: of a job that has not started, is stalled or killed, or without an open attempt."""
        lease_time = lease_reports.length(parts.live.current, attempt.vo)
        answer = lifecycle.heartbeat(conn, lease, said=progress, lease_time=lease_time, now=parts.clock())
        return answer | {"heartbeat_seconds": _every(parts, attempt.vo)}

    return LeaseAnswer.model_validate(await run_sync(store_report, parts, caller, lease, "heartbeat", report))


@router.post("/{lease}/finish")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
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

    return LeaseAnswer.model_validate(await run_sync(store_report, parts, caller, lease, "finish", report))


@router.post("/{lease}/release")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
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

    answer = store_report(parts, caller, lease, "release", report)
    parts.ring(job_ids)  # a rescheduled job needs the optimizers
    return LeaseAnswer.model_validate(answer)


def _holder(caller: Caller) -> str | None:
    """Required holder of a lease that this caller reports on; None: any."""
    return None if caller.is_operator else caller.subject


def _every(parts: Services, vo: str) -> float:
    return lease_reports.heartbeat_every(parts.live.current, vo)


def _answer(moved: ReportedJob, **others: object) -> LeaseAnswer:
    return LeaseAnswer.model_validate({"job_id": moved.job_id, "epoch": moved.epoch, **others})
