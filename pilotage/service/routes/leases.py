"""Lease reports: start, heartbeat, finish, release."""

from collections import Counter
from functools import partial
from typing import Annotated, Literal

import anyio.to_thread
from fastapi import APIRouter, Path
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from cs_config.options import bounds
from pilotage.service import lease_reports
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models import MOST
from pilotage.service.models.jobs import Exact, LocalJobBody, PhaseBody
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf
from pilotage.service.services import Services
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import grid_jobs
from taskqueue.jobs.grid_jobs import ReportedLocalJob
from taskqueue.leases import attempts
from taskqueue.leases.reports import (
    FinishReport,
    GridJobPhase,
    HeartbeatReport,
    LeaseReport,
    Note,
    NoteReport,
    PayloadResult,
    PeakUse,
    Progress,
    ReleaseReport,
    ReportAnswer,
    Sender,
    StartReport,
)

router = APIRouter(prefix="/leases", tags=["leases"], route_class=ApiRoute)

LeasePath = Annotated[str, Path(min_length=1, max_length=64)]

#: Characters of the payload's output that are stored: the last ones.
_TAIL = 16_384
#: Most phases, and states of local jobs, in one heartbeat.
_MOST_PHASES, _MOST_STATES = 50, 20
#: CPU seconds: ten thousand cores for four months; normalised seconds per CPU second.
_MOST_CPU, _MOST_POWER = 1e11, 1e6
_STATE = r"^[a-z][a-z_]{0,31}$"


class LeaseMessage(BaseModel):
    """A message about an attempt; other releases may add fields."""

    model_config = ConfigDict(extra="allow")


def _read_measured(value: object) -> float | None:
    """A measured amount; any other value of a pilot is ignored, as by releases without these fields."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= _MOST_CPU else None


Measured = Annotated[float | None, BeforeValidator(_read_measured)]


class UseMessage(LeaseMessage):
    """A message with what a payload uses; the largest value of all messages is kept."""

    memory_mb: Measured = Field(default=None, description="Memory of all processes of the payload.")
    scratch_mb: Measured = Field(default=None, description="Disk space of the payload's directories.")
    cpu_seconds: Measured = Field(default=None, description="CPU time of the payload with all its processes.")

    def to_use(self) -> PeakUse:
        """The part that is stored."""
        return PeakUse(
            peak_ram_mb=None if self.memory_mb is None else int(self.memory_mb),
            peak_scratch_mb=None if self.scratch_mb is None else int(self.scratch_mb),
            cpu_seconds=self.cpu_seconds,
        )


class StartBody(LeaseMessage):
    """Report that the payload is about to run."""


class HeartbeatBody(UseMessage):
    """Report that the payload runs."""

    progress: str | None = Field(
        default=None, max_length=2000, description="Progress in words; null: unchanged."
    )
    output_tail: str | None = Field(default=None, description="End of the payload's output; null: unchanged.")
    phases: list[PhaseBody] | None = Field(
        default=None, max_length=_MOST_PHASES, description="Phases of a grid job, in order; null: unchanged."
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


class NoteBody(LeaseMessage):
    """Report the state of the job in words and values; null: unchanged."""

    minor_status: str | None = Field(default=None, max_length=2000)
    application_status: str | None = Field(default=None, max_length=2000)
    parameters: dict[str, str] = Field(
        default={},
        max_length=bounds.PARAMETERS,
        description="Texts by name; later values replace earlier ones, other parameters stay.",
    )


class LocalJobsBody(LeaseMessage):
    """Some of the local jobs of a grid job."""

    local_jobs: list[LocalJobBody] = Field(max_length=MOST)

    @field_validator("local_jobs")
    @classmethod
    def _each_once(cls, listed: list[LocalJobBody]) -> list[LocalJobBody]:
        numbers = Counter(each.number for each in listed)
        if twice := [number for number, times in numbers.items() if times > 1]:
            raise ValueError(f"local job {twice[0]} is there twice")
        return listed


class FinishBody(UseMessage):
    """Report that the payload has ended."""

    status: Literal["Done", "Failed", "Completed"] = Field(
        description="Completed: requests of others are left; the job becomes Done or Failed later."
    )
    exit_code: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    minor_status: str = Field(default="", max_length=2000)
    application_status: str = Field(default="", max_length=2000)
    output: str | None = Field(
        default=None,
        pattern=r"^sha256:[0-9a-f]{64}$",
        description="The answer to the upload; 409 `output_missing`: send the output again.",
    )
    cpu_seconds: float | None = Field(
        default=None, ge=0, le=_MOST_CPU, description="CPU time of the payload with all its processes."
    )
    cpu_power: float | None = Field(
        default=None, gt=0, le=_MOST_POWER, description="Normalised seconds per CPU second, if measured."
    )


class ReleaseBody(LeaseMessage):
    """Return of a job by its pilot."""

    reason: str = Field(default="", max_length=2000)
    undelivered: bool = Field(
        default=False,
        description="A gateway cannot submit the job, for a reason of its site. Such a release counts "
        "as no rescheduling, however often it happens. Pilots have no such reason.",
    )


class LeaseAnswer(LeaseMessage):
    """Commands for the pilot; a repeated request gets the same answer."""

    commands: list[str] = Field(default=[], description="`kill`: end the payload and deliver its output.")
    heartbeat_seconds: float | None = Field(default=None, description="Seconds until the next heartbeat.")
    run_on_seconds: float | None = Field(
        default=None,
        description="End the payload after so many seconds without an answer: then its job goes to others.",
    )


@router.post("/{lease}/start")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
async def start(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: StartBody | None = None
) -> LeaseAnswer:
    """Report that the payload is about to run: the job becomes Running."""
    del body  # further fields of newer pilots are ignored
    answer = await parts.reports.record(StartReport(lease=lease, sender=identify_sender(caller)))
    return _build_answer(answer, **_intervals(parts, answer))


@router.post("/{lease}/heartbeat")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
async def heartbeat(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: HeartbeatBody | None = None
) -> LeaseAnswer:
    """Report that the payload runs; the answer may command the pilot to end it."""
    body = body or HeartbeatBody()
    answer = await parts.reports.record(
        HeartbeatReport(
            lease=lease, progress=body.to_progress(), used=body.to_use(), sender=identify_sender(caller)
        )
    )
    return LeaseAnswer(commands=_list_commands(answer), **_intervals(parts, answer))


@router.post("/{lease}/note")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
async def note(parts: PartsOf, caller: CallerOf, lease: LeasePath, body: NoteBody) -> LeaseAnswer:
    """Report the state of the job in words and values, which also extends the lease.

    After the end of the payload only the parameters are stored.
    """
    report = NoteReport(
        lease=lease,
        sender=identify_sender(caller),
        note=Note(
            minor_status=body.minor_status,
            application_status=body.application_status,
            parameters=body.parameters,
        ),
    )
    answer = await parts.reports.record(report)
    return _build_answer(answer, **_intervals(parts, answer))


@router.put("/{lease}/local-jobs", status_code=204)
@allow(Role.GATEWAY)
def report_local_jobs(parts: PartsOf, caller: CallerOf, lease: LeasePath, body: LocalJobsBody) -> None:
    """Report some of the local jobs of a grid job; they replace what was reported of them before."""
    found = [ReportedLocalJob(**each.model_dump()) for each in body.local_jobs]
    with database.writing(parts.engine) as conn:
        attempt = visibility.require_lease(conn, caller, lease)
        attempts.check_open(attempt)
        grid_jobs.store_local_jobs(conn, attempt, found)


@router.post("/{lease}/finish")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
async def finish(parts: PartsOf, caller: CallerOf, lease: LeasePath, body: FinishBody) -> LeaseAnswer:
    """Report that the payload has ended; its output was uploaded before."""
    result = PayloadResult(
        status=body.status,
        exit_code=body.exit_code,
        minor_status=body.minor_status,
        application_status=body.application_status,
        cpu_seconds=body.cpu_seconds,
        cpu_power=body.cpu_power,
    )
    output = body.output.removeprefix("sha256:") if body.output else None
    sender = identify_sender(caller)
    return await _end(
        parts, FinishReport(lease=lease, result=result, output=output, used=body.to_use(), sender=sender)
    )


@router.post("/{lease}/release")
@allow(Role.PILOT, Role.GATEWAY, most_bytes=SMALL)
async def release(
    parts: PartsOf, caller: CallerOf, lease: LeasePath, body: ReleaseBody | None = None
) -> LeaseAnswer:
    """Give the job back: if it was not started it waits again, otherwise it is rescheduled."""
    body = body or ReleaseBody()
    is_gateway = caller.within({Role.GATEWAY}) is not None
    report = ReleaseReport(
        lease=lease,
        reason=body.reason,
        sender=identify_sender(caller),
        is_undelivered=body.undelivered and is_gateway,
    )
    return await _end(parts, report)


async def _end(parts: Services, report: LeaseReport) -> LeaseAnswer:
    """Record the end of an attempt, after which its job may run again."""
    answer = await parts.reports.record(report)
    if answer.status == JobStatus.RESCHEDULED:
        await anyio.to_thread.run_sync(parts.notify, [answer.job_id])  # it needs the optimizers
    return _build_answer(answer, status=answer.status)


def identify_sender(caller: Caller) -> Sender:
    """The caller as the sender of reports."""
    return Sender(
        subject=None if caller.is_operator else caller.subject,
        stands_in=partial(visibility.may_report, caller),
    )


def _intervals(parts: Services, answer: ReportAnswer) -> dict[str, float]:
    config = parts.live.current
    return {
        "heartbeat_seconds": lease_reports.heartbeat_every(config, answer.vo, parts.running_jobs()),
        "run_on_seconds": lease_reports.run_on_time(config, answer.vo),
    }


def _list_commands(answer: ReportAnswer) -> list[str]:
    return ["kill"] if answer.ending else []


def _build_answer(answer: ReportAnswer, **others: object) -> LeaseAnswer:
    return LeaseAnswer.model_validate(
        {
            "job_id": answer.job_id,
            "epoch": answer.epoch,
            "commands": _list_commands(answer),
            **others,
        }
    )
