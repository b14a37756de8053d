"""Pilots: registration, status, lists; and registration and status of many pilots in one request."""

from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import Connection

from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from pilotage.service.auth import access, visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models import MOST, AnswerModel, ListPage, StrictInput
from pilotage.service.models.jobs import Moment, parse_given_moment
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem
from requirements.states import PILOT_ENDS, PILOT_STEPS, PilotStatus
from taskqueue.db import database
from taskqueue.leases import expiry
from taskqueue.pilots import nodes, pilot_secrets, pilots, search
from taskqueue.pilots.pilots import IntendedPilot, StatusReport
from taskqueue.pilots.search import PilotFilter

router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)

StampPath = Annotated[str, Path(min_length=1, max_length=255)]

_LONGEST_SECRET = pilot_secrets.MAX_LIFETIME.total_seconds()
_REASON = (
    "Why it ended. The line after an empty one at the beginning is also shown to the owners of its jobs; the "
    "rest, or a reason that begins otherwise, to admins only."
)


class NewPilot(StrictInput):
    """A pilot about to be submitted: it is stored before its batch job exists."""

    stamp: str = Field(min_length=1, max_length=255, description="Unique id, and the name of the batch job.")
    queue: str | None = Field(default=None, description="`Site/CE/Queue` that it is sent to.")
    possible_queues: list[str] = Field(
        default=[],
        max_length=1000,
        description="Instead of `queue`: possible queues if a broker picks; the pilot states which.",
    )
    vo: str | None = Field(default=None, description="Default: the token's VO.")
    secret: bool = Field(
        default=False, description="Return a one-time secret that the pilot exchanges for its token."
    )
    secret_lifetime: float = Field(
        default=_LONGEST_SECRET,
        ge=1,
        le=_LONGEST_SECRET,
        description="Seconds within which the secret can be exchanged.",
    )


class PilotStatusReport(StrictInput):
    """Status of a pilot in the batch system."""

    status: PilotStatus
    reference: str | None = Field(default=None, max_length=1000, description="The CE's id, once known.")
    reason: str = Field(default="", max_length=2000, description=_REASON)
    empty_reason: str | None = Field(
        default=None,
        pattern=r"^[a-z_]{1,40}$",
        description="For a pilot without a job: the last reason it received, such as `no_task_queue`.",
    )
    host_trouble: bool = Field(default=False, description="It ends because of its host.")


class PilotNode(StrictInput):
    """The node that a pilot runs on."""

    node: str = Field(min_length=1, max_length=255, description="Name of the host.")
    process: str = Field(
        default="",
        max_length=64,
        description="Chosen by the process; another one than before ends what the former process had.",
    )


class NodeAnswer(BaseModel):
    """Whether a pilot is to take jobs on its node."""

    excluded_until: datetime | None = Field(
        default=None,
        description="Until then it may not, since pilots there ended because of their host; null: it may.",
    )
    reason: str = Field(default="", description="Why the last of these pilots ended.")


class StampsQuestion(StrictInput):
    """Names of batch jobs to compare with the registered pilots."""

    stamps: list[Annotated[str, Field(min_length=1, max_length=255)]] = Field(max_length=1000)


class StampStanding(StrEnum):
    """State of a stamp in the service."""

    ACTIVE = "active"
    ENDED = "ended"
    UNKNOWN = "unknown"


class Standings(BaseModel):
    """States of stamps in the service."""

    standings: dict[str, StampStanding]


class PilotAnswer(AnswerModel):
    """A pilot."""

    stamp: str
    vo: str
    status: PilotStatus
    status_reason: str
    site: str
    ce: str
    queue: str
    reference: str | None
    submitted_by: str = Field(
        description="Token subject of the director; empty: it was not registered first."
    )
    jobs: int = Field(description="Number of jobs given to it.")
    created_at: datetime
    updated_at: datetime
    last_seen_at: datetime | None
    possible_queues: list[str] = Field(description="Possible queues, if a broker picks.")
    empty_reason: str = Field(description="Code for why it got no job; empty: not reported.")
    open_jobs: int = Field(description="Number of jobs that it has now.")
    used_cores: int = Field(description="Cores of these jobs.")
    ended_jobs: int = Field(description="Number of jobs whose payload ended there.")
    node: str = Field(description="Name of its host; empty: not reported.")
    host_trouble: bool = Field(
        description="Whether it ended because of its host; false once an admin has readmitted its node."
    )
    has_output: bool = Field(description="`GET /pilots/{stamp}/output` has the end of its output.")
    has_log: bool = Field(description="`GET /pilots/{stamp}/output` has the end of its own log.")


class RegisteredPilot(PilotAnswer):
    """A registered pilot, new or not."""

    secret: str | None = Field(
        default=None,
        description="A one-time secret, if it was requested; it is shown once, and replaces an earlier one.",
    )
    secret_expires_at: datetime | None = None


class PilotPage(BaseModel):
    """Pilots by stamp."""

    pilots: list[PilotAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


class PilotSummaryRow(AnswerModel):
    """Numbers of pilots for one combination of the values in `by`, which are further fields of the row."""

    model_config = ConfigDict(extra="allow")

    count: int
    jobs: int = Field(description="Jobs given to them.")
    active: int = Field(description="Pilots that have not ended.")
    failed_jobs: int = Field(
        default=0, description="Of these jobs, those that ended with another exit code than 0."
    )
    with_jobs: int = Field(description="Pilots that got at least one job.")
    empty: int = Field(description="Pilots that ended normally without a job.")
    broken: int = Field(description="Failed or Aborted.")
    quality: float | None = Field(
        description="Share of pilots at which a job ended, well or not (`failed_jobs`), among these, empty "
        "and failed ones; null: none."
    )


class PilotSummary(BaseModel):
    """Numbers of pilots, one row for each value of the columns in `by`."""

    summary: list[PilotSummaryRow]


class PilotConditions(StrictInput):
    """Filter of pilots; several values are separated by commas."""

    vo: str | None = None
    site: str | None = None
    status: str | None = None

    def narrow(self, caller: Caller) -> PilotFilter:
        """The filter, narrowed to the pilots that the caller may count."""
        return visibility.visible_pilots(caller, vo=self.vo, site=self.site, status=self.status)


class PilotQuery(PilotConditions, ListPage):
    """Filter of pilots; several values are separated by commas."""

    since: Moment | None = Field(
        default=None,
        description="Status changed then or later: a time, a date, or how long ago: 24h, 7d.",
    )
    after: str = Field(default="", max_length=255, description="`next` of the page before.")


class PilotSummaryQuery(PilotConditions):
    """Filter and grouping of numbers of pilots; several values are separated by commas."""

    by: str = Field(
        default="status", description="Of `status, vo, site, ce, queue, node, empty_reason, submitted_by`."
    )
    since: Moment | None = Field(
        default=None, description="Leave out pilots that ended before: a time, a date, or how long ago."
    )


@router.post("", status_code=201)
@allow(Role.DIRECTOR, most_bytes=SMALL)
def register(parts: PartsOf, caller: CallerOf, body: NewPilot, response: Response) -> RegisteredPilot:
    """Register a pilot before it is submitted; repeating it answers 200 and renews only the secret."""
    if (body.queue is None) != bool(body.possible_queues):
        raise InvalidRequest([Problem(path="body", message="needs queue, or possible_queues, and not both")])
    queue = None if body.queue is None else QueueAddress.parse(body.queue)
    possible_queues = tuple(map(QueueAddress.parse, body.possible_queues))
    vo = visibility.vo_of(caller, body.vo)
    for each in possible_queues if queue is None else (queue,):
        visibility.require_pilot_site(caller, vo, each)
        parts.live.current.require(each)
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        is_new = pilots.register(
            conn,
            stamp=body.stamp,
            vo=vo,
            queue=queue,
            possible_queues=possible_queues,
            submitted_by=caller.subject,
            now=now,
        )
        if is_new:
            _require_within_quota(parts, conn, caller, vo)
        response.status_code = 201 if is_new else 200
        answer = RegisteredPilot.model_validate(pilots.get_pilot(conn, body.stamp))
        if body.secret:
            life = timedelta(seconds=body.secret_lifetime)
            answer.secret, answer.secret_expires_at = pilot_secrets.issue_secret(
                conn, body.stamp, life=life, now=now
            )
    access.count_jobs(parts, caller, int(is_new))
    return answer


def _require_within_quota(parts: Services, conn: Connection, caller: Caller, vo: str) -> None:
    access.admit_jobs(parts, caller, "pilots")
    most = options_for(parts.live.current, vo).limits.pilots_per_vo
    pilots.require_within_quota(conn, vo, most=most)


@router.post("/standings")
@allow(Role.DIRECTOR, most_bytes=SMALL)
def standings(parts: PartsOf, body: StampsQuestion) -> Standings:
    """Show for stamps of batch jobs whether they belong to an active or ended pilot, of any VO.

    Stamps cannot be guessed, so that this reveals nothing else.
    """
    with database.reading(parts.engine) as conn:
        known = pilots.read_statuses(conn, body.stamps)
    found = dict.fromkeys(body.stamps, StampStanding.UNKNOWN)
    for stamp, status in known.items():
        found[stamp] = StampStanding.ACTIVE if PILOT_STEPS[status] else StampStanding.ENDED
    return Standings(standings=found)


@router.get("/summary")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY, is_expensive=True)
def summary(parts: PartsOf, caller: CallerOf, query: Annotated[PilotSummaryQuery, Query()]) -> PilotSummary:
    """Count pilots by some of their fields, with their outcomes."""
    by = [name.strip() for name in query.by.split(",") if name.strip()]
    since = parse_given_moment("since", query.since, parts.clock())
    which = replace(query.narrow(caller), ended_since=since)
    with database.reading(parts.engine) as conn:
        counted = search.count_pilots(conn, by, which)
        failed = search.count_failed_jobs(conn, by, which)
    rows = [
        PilotSummaryRow.model_validate(fared).model_copy(
            update=dict(zip(by, values, strict=True)) | {"failed_jobs": failed.get(values, 0)}
        )
        for values, fared in counted.items()
    ]
    return PilotSummary(summary=rows)


@router.get("")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_pilots(parts: PartsOf, caller: CallerOf, query: Annotated[PilotQuery, Query()]) -> PilotPage:
    """List pilots of the caller's VOs, at the caller's sites."""
    since = parse_given_moment("since", query.since, parts.clock())
    which = replace(query.narrow(caller), since=since)
    with database.reading(parts.engine) as conn:
        found = search.list_pilots(conn, which, limit=query.fetch_limit, after=query.after)
    page, last = query.cut(found)
    return PilotPage(
        pilots=[PilotAnswer.model_validate(pilot) for pilot in page], next=last.stamp if last else None
    )


@router.get("/{stamp}")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def show(parts: PartsOf, caller: CallerOf, stamp: StampPath) -> PilotAnswer:
    """Show one pilot."""
    with database.reading(parts.engine) as conn:
        pilot = pilots.get_pilot(conn, stamp)
    visibility.require_pilot(caller, pilot)
    return PilotAnswer.model_validate(pilot)


@router.post("/{stamp}/status")
@allow(Role.DIRECTOR, Role.PILOT, most_bytes=SMALL)
def set_status(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotStatusReport) -> PilotAnswer:
    """Store the status of a pilot, reported by its director or by itself; jobs of one that ended stall."""
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        visibility.require_pilot(caller, pilots.get_pilot(conn, stamp))
        pilots.set_status(
            conn,
            stamp,
            body.status,
            reason=body.reason,
            reference=body.reference,
            empty_reason=body.empty_reason,
            host_trouble=body.host_trouble,
            now=now,
        )
        if body.status in PILOT_ENDS:
            expiry.mark_pilots_ended(conn, [stamp], now=now)
        return PilotAnswer.model_validate(pilots.get_pilot(conn, stamp))


@router.post("/{stamp}/node")
@allow(Role.PILOT, most_bytes=SMALL)
def set_node(parts: PartsOf, caller: CallerOf, stamp: StampPath, body: PilotNode) -> NodeAnswer:
    """Store the node of a pilot, reported before its first request; the answer may exclude the node.

    A node is excluded while three pilots in a row ended because of their host within an hour, but a pilot may
    try it every five minutes; the first job that ends there readmits it. If the pilot was started again, the
    jobs that its former process had stall, and are rescheduled unless it reports on them.
    """
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        visibility.require_pilot(caller, pilots.get_pilot(conn, stamp))
        if body.process and pilots.store_process(conn, stamp, body.process, now=now):
            expiry.mark_pilots_ended(conn, [stamp], now=now)
        found = nodes.admit_pilot(conn, stamp, body.node, now=now)
    return NodeAnswer() if found is None else NodeAnswer(excluded_until=found.until, reason=found.reason)


batch_router = APIRouter(prefix="/pilots", tags=["pilots"], route_class=ApiRoute)


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

    secrets: dict[str, str] = Field(description="One-time secrets by stamp.")


class ReportedStatus(StrictInput):
    """Status of a pilot in its batch system."""

    stamp: str = Field(min_length=1, max_length=255)
    status: PilotStatus
    reference: str | None = Field(default=None, max_length=1000, description="The CE's id, once known.")
    reason: str = Field(default="", max_length=2000, description=_REASON)
    node: str = Field(
        default="",
        max_length=255,
        description="Host where it is Aborted before it could report it: its end counts for the node.",
    )


class ReportedStatuses(StrictInput):
    """Statuses of many pilots."""

    reports: list[ReportedStatus] = Field(min_length=1, max_length=MOST)


class UnchangedPilots(BaseModel):
    """Pilots whose status is another one: they have ended meanwhile, or run already, or do not exist."""

    unchanged: list[str]


@batch_router.post("/registrations", status_code=201)
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
        visibility.require_pilot_site(caller, vo, address)
        parts.live.current.require(address)
    now = parts.clock()
    with database.writing(parts.engine) as conn:
        pilots.register_all(conn, intended, vo=vo, submitted_by=caller.subject, now=now)
        _require_within_quota(parts, conn, caller, vo)
        life = timedelta(seconds=body.secret_lifetime)
        secrets = pilot_secrets.issue_secrets(conn, [each.stamp for each in intended], life=life, now=now)
    access.count_jobs(parts, caller, len(intended))
    return PilotSecrets(secrets=dict(secrets))


@batch_router.post("/statuses")
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
