"""Directors and gateways: their reports, which are leases too, and the list of them."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from pilotage.service.auth import audit, visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.models import AnswerModel, StrictInput
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf
from requirements.errors import NotAllowed
from taskqueue.db import database
from taskqueue.sites import processes
from taskqueue.sites.processes import SiteProcess, TooSmallSlot

router = APIRouter(prefix="/site-processes", tags=["sites"], route_class=ApiRoute)

_Address = Annotated[str, Field(max_length=800)]


class TooSmallSlotBody(StrictInput):
    """Waiting jobs that a queue allows, and for which the slots of its pilots are too small."""

    queue: _Address = Field(description="`Site/CE/Queue`")
    slot: str = Field(max_length=500, description="What the file of the director states.")
    jobs: int = Field(ge=0)
    task_queues: list[int] = Field(default=[], max_length=1000, description="Of these jobs.")


class ProcessReport(StrictInput):
    """A report of a director or gateway, sent in every cycle."""

    kind: Literal["director", "gateway"]
    name: str = Field(min_length=1, max_length=255)
    vo: str | None = Field(default=None, description="Default: the token's VO.")
    holder: str = Field(min_length=1, max_length=255, description="The process; no other one reports so.")
    replaces: str = Field(default="", max_length=255, description="A holder that is known to have ended.")
    every: float = Field(gt=0, le=30 * 86_400, description="Seconds between two reports.")
    lease: float = Field(
        default=0, ge=0, le=86_400, description="Seconds for which no other process may report; 0: it ends."
    )
    sites: list[Annotated[str, Field(max_length=255)]] = Field(default=[], max_length=1000)
    problems: list[Annotated[str, Field(max_length=500)]] = Field(
        default=[], max_length=50, description="Of the last cycle."
    )
    too_small: list[TooSmallSlotBody] = Field(default=[], max_length=1000)


class SiteProcessAnswer(AnswerModel):
    """A director or gateway, as it reported last."""

    kind: str
    name: str
    vo: str
    holder: str
    every: float = Field(description="Seconds between two reports.")
    seen_at: datetime
    is_overdue: bool = Field(description="It has missed several reports.")
    sites: list[str]
    problems: list[str]
    too_small: list[TooSmallSlotBody]


class SiteProcesses(BaseModel):
    """Directors and gateways."""

    processes: list[SiteProcessAnswer]


@router.post("", status_code=204, response_class=Response)
@allow(Role.DIRECTOR, Role.GATEWAY)
def report_process(parts: PartsOf, caller: CallerOf, body: ProcessReport) -> None:
    """Store the report of a process; 409 `other_process`: another one, or another token, has this name.

    Sites that the token is not for are left out, since their admins would see it.
    """
    if not caller.is_operator and all(one.role != body.kind for one in caller.each):
        raise NotAllowed(f"a token that is not that of a {body.kind} may not report for one")
    vo, now = visibility.vo_of(caller, body.vo), parts.clock()
    process = SiteProcess(
        kind=body.kind,
        name=body.name,
        vo=vo,
        holder=body.holder,
        reported_by=caller.subject,
        every=body.every,
        sites=[site for site in body.sites if visibility.may_serve(caller, vo, site)],
        problems=body.problems,
        too_small=[TooSmallSlot(**each.model_dump()) for each in body.too_small],
        seen_at=now,
    )
    lease = timedelta(seconds=body.lease)
    with database.writing(parts.engine) as conn:
        processes.report(conn, process, lease=lease, replaces=body.replaces, now=now)


class ForgottenProcess(StrictInput):
    """Directors and gateways that were taken out of service."""

    name: str = Field(min_length=1, max_length=255)


@router.post("/forget")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def forget(parts: PartsOf, caller: CallerOf, body: ForgottenProcess) -> SiteProcesses:
    """Forget directors and gateways of the caller's VOs or sites, so that their silence alarms nobody.

    409 `other_process`: one still reports.
    """
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        known = visibility.visible_processes(caller, processes.list_processes(conn))
        found = [each for each in known if each.name == body.name]
        processes.forget(conn, found, now=now)
    audit.done(caller, "forget", name=body.name)
    return _answer(found, now)


@router.get("")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_processes(parts: PartsOf, caller: CallerOf) -> SiteProcesses:
    """List the directors and gateways of the caller's VOs, or that serve its sites."""
    now = parts.clock()
    with database.reading(parts.engine) as conn:
        found = visibility.visible_processes(caller, processes.list_processes(conn))
    return _answer(found, now)


def _answer(found: Sequence[SiteProcess], now: datetime) -> SiteProcesses:
    return SiteProcesses(
        processes=[
            SiteProcessAnswer.model_validate({**asdict(each), "is_overdue": each.is_overdue(now)})
            for each in found
        ]
    )
