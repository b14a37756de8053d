"""Many pilots in one request: registration and statuses, for directors of many queues."""

from datetime import timedelta

from fastapi import APIRouter
from pydantic import BaseModel, Field, model_validator

from cs_config.tree.address import QueueAddress
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models import MOST, StrictInput
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf
from pilotage.service.services import Services
from taskqueue.db import database
from taskqueue.leases import expiry
from taskqueue.pilots import pilot_secrets, pilots
from taskqueue.pilots.pilots import IntendedPilot, StatusReport
from taskqueue.states import PILOT_ENDS, PilotStatus

router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)

_LONGEST_SECRET = pilot_secrets.MAX_LIFETIME.total_seconds()


class PilotIntent(StrictInput):
    """A pilot that is to be submitted."""

    stamp: str = Field(min_length=1, max_length=255)
    queue: str | None = Field(default=None, description="`Site/CE/Queue` that it is sent to.")
    possible_queues: list[str] = Field(default=[], max_length=1000, description="Instead, if a broker picks.")

    @model_validator(mode="after")
    def _has_one_target(self) -> "PilotIntent":
        if (self.queue is None) != bool(self.possible_queues):
            raise ValueError("needs queue, or possible_queues, and not both")
        return self


class PilotIntents(StrictInput):
    """Pilots of one VO that are to be submitted; all or none is stored."""

    vo: str | None = Field(default=None, description="Default: the token's VO.")
    pilots: list[PilotIntent] = Field(min_length=1, max_length=MOST)
    secret_lifetime: float = Field(
        default=_LONGEST_SECRET, ge=1, le=_LONGEST_SECRET, description="Seconds to exchange a secret."
    )


class PilotSecrets(BaseModel):
    """One-time secrets, shown once."""

    secrets: dict[str, str] = Field(description="By stamp.")


class ReportedStatus(StrictInput):
    """Status of a pilot in its batch system."""

    stamp: str = Field(min_length=1, max_length=255)
    status: PilotStatus
    reference: str | None = Field(default=None, max_length=1000, description="The CE's id, once known.")
    reason: str = Field(default="", max_length=2000)


class ReportedStatuses(StrictInput):
    """Statuses of many pilots."""

    reports: list[ReportedStatus] = Field(min_length=1, max_length=MOST)


class UnchangedPilots(BaseModel):
    """Pilots whose status is another one: they have ended meanwhile, or run already, or do not exist."""

    unchanged: list[str]


@router.post("/registrations", status_code=201)
@allow(Role.DIRECTOR)
def register_many(parts: PartsOf, caller: CallerOf, body: PilotIntents) -> PilotSecrets:
    """Register pilots before they are submitted, under stamps that no pilot ever had."""
    vo = visibility.vo_of(caller, body.vo)
    intended = [
        IntendedPilot(
            stamp=each.stamp,
            queue=None if each.queue is None else QueueAddress.parse(each.queue),
            possible_queues=tuple(map(QueueAddress.parse, each.possible_queues)),
        )
        for each in body.pilots
    ]
    for address in {place for each in intended for place in (each.queue, *each.possible_queues) if place}:
        _require(parts, caller, vo, address)
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        pilots.register_all(conn, intended, vo=vo, submitted_by=caller.subject, now=now)
        life = timedelta(seconds=body.secret_lifetime)
        secrets = pilot_secrets.issue_secrets(conn, [each.stamp for each in intended], life=life, now=now)
    return PilotSecrets(secrets=dict(secrets))


def _require(parts: Services, caller: Caller, vo: str, address: QueueAddress) -> None:
    visibility.require_pilot_site(caller, vo, address)
    parts.live.current.require(address)


@router.post("/statuses")
@allow(Role.DIRECTOR)
def set_statuses(parts: PartsOf, caller: CallerOf, body: ReportedStatuses) -> UnchangedPilots:
    """Store the statuses of pilots as their batch systems report them; pilots of others do not exist.

    Jobs of pilots that ended stall.
    """
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        known = pilots.read_pilots(conn, [each.stamp for each in body.reports])
        own = {each.stamp for each in known if visibility.has_pilot(caller, each)}
        reports = [StatusReport(**each.model_dump()) for each in body.reports if each.stamp in own]
        unchanged = pilots.set_all(conn, reports, now=now)
        ended = {each.stamp for each in reports if each.status in PILOT_ENDS} - unchanged
        expiry.mark_pilots_ended(conn, ended, now=now)
    return UnchangedPilots(unchanged=sorted(unchanged | {each.stamp for each in body.reports} - own))
