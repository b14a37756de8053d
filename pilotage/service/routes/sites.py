"""Sites: advertisements, bans, throttles, limits, nodes; directors and gateways, whose reports are leases."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from cs_config.options import bounds
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.limits import advertised_values, throttles
from pilotage.service.auth import audit, visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models import AnswerModel, FilledText, ListPage, StrictInput
from pilotage.service.queries import sites
from pilotage.service.queries.sites import ExcludedNodeAnswer, SeenHardwareAnswer, SiteAnswer
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf
from pilotage.service.services import Services
from requirements.classad import match_expression
from requirements.classad.match_expression import TwoSided
from requirements.errors import InvalidInput, InvalidRequest, NotAllowed, Problem, did_you_mean
from requirements.measured_values import MEASURED
from requirements.values import Value, as_short_value, as_value, fold
from taskqueue.db import database
from taskqueue.sites import processes, reservations, scopes
from taskqueue.sites.processes import QueueState, SiteProcess, TooSmallSlot
from taskqueue.sites.reservations import Advertisement

router = APIRouter(prefix="/sites", tags=["sites"], route_class=ApiRoute)
hardware_router = APIRouter(prefix="/hardware", tags=["sites"], route_class=ApiRoute)

#: Bytes of an advertisement; enough for 100,000 attempts.
_ADVERTISEMENT = 8 << 20
#: Names of one advertisement for which suggestions are looked up.
_HINTS = 20
#: Attempts that one advertisement may list.
_MOST_SEEN = 100_000


class Watermark(BaseModel):
    """A number to fetch before counting, and to send back as `as_of`."""

    watermark: int


class SeenAttempt(StrictInput):
    """An attempt by its job and number."""

    job_id: Annotated[int, Field(ge=1, lt=2**63)]
    epoch: Annotated[int, Field(ge=1, lt=2**31)]


class AdvertisementBody(BaseModel):
    """State of a site, CE or queue; any further name is an attribute for its expressions."""

    model_config = ConfigDict(extra="allow")

    as_of: int | None = Field(
        default=None, description="The watermark that was fetched before counting; null: a plain script."
    )
    attempts_seen: list[str | SeenAttempt] = Field(
        default=[],
        max_length=_MOST_SEEN,
        description="Attempts that the counts contain, by lease or by job and epoch.",
    )
    taken_at: datetime | None = Field(default=None, description="Time of counting; for people.")
    CurrentJobs: int | None = Field(default=None, ge=0)
    CurrentSubmittingJobs: int | None = Field(default=None, ge=0)
    CurrentGatheringOutputJobs: int | None = Field(default=None, ge=0)
    CurrentPendingJobs: int | None = Field(default=None, ge=0)
    CurrentRunningJobs: int | None = Field(default=None, ge=0)
    MaxJobs: int | None = Field(default=None, ge=0)
    MaxSubmittingJobs: int | None = Field(default=None, ge=0)
    MaxSubmittingAndOutputGatheringJobs: int | None = Field(default=None, ge=0)
    MaxPendingJobs: int | None = Field(default=None, ge=0)
    JobTypes: list[Annotated[str, Field(max_length=200)]] | None = Field(
        default=None, max_length=bounds.ADVERTISED, description="Job types that a gateway handles here."
    )
    CurMatches: int | float | str | None = Field(
        default=None, description="Start value for the policy `expression`: a number or an expression."
    )
    Requirements: str | None = Field(default=None, description="Requirements of the policy `expression`.")

    def attributes(self) -> dict[str, Any]:
        """The attributes of the site's state."""
        return self.model_dump(exclude={"as_of", "attempts_seen", "taken_at"}, exclude_none=True)


class TakenCounts(BaseModel):
    """Result of an advertisement."""

    accepted: bool = Field(description="False: one with a later watermark was received before.")
    as_of: int = Field(description="The watermark of the current advertisement.")
    warnings: list[str] = Field(description="Names that are probably misspelled.")


class BanBody(StrictInput):
    """Ban of a site."""

    reason: FilledText = Field(max_length=1000)
    until: datetime | None = Field(default=None, description="With a time zone; null: until allowed again.")


class ReadmittedNode(StrictInput):
    """A node to readmit."""

    node: str = Field(min_length=1, max_length=255, description="As `GET /sites/{site}/nodes` names it.")


class ExcludedNodes(BaseModel):
    """Nodes of a site that take no jobs for a while."""

    nodes: list[ExcludedNodeAnswer]


class SiteQuery(ListPage):
    """Page of sites."""

    after: str | None = Field(default=None, description="`next` of the page before.")


class HardwareQuery(SiteQuery):
    """Page of sites whose hardware is listed."""

    site: str | None = Field(default=None, max_length=255, description="This site only.")


class HardwarePage(BaseModel):
    """Hardware of some sites, in the order of their names, of each the latest first."""

    hardware: list[SeenHardwareAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


class SitePage(BaseModel):
    """Some sites, in the order of their names."""

    sites: list[SiteAnswer]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


@router.post("/{site}/watermark")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
def give_watermark(parts: PartsOf, caller: CallerOf, site: str) -> Watermark:
    """Get a watermark: fetch it, count, then advertise with it as `as_of`."""
    visibility.require_site(caller, parts.live.current, site)
    with database.writing(parts.engine) as conn:
        return Watermark(watermark=reservations.create_watermark(conn, site))


@router.post("/{site}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY, most_bytes=_ADVERTISEMENT)
def advertise_site(parts: PartsOf, caller: CallerOf, site: str, body: AdvertisementBody) -> TakenCounts:
    """Advertise the state of a site, such as its numbers of jobs."""
    return _advertise(parts, caller, body, site)


@router.post("/{site}/ces/{ce}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY, most_bytes=_ADVERTISEMENT)
def advertise_ce(
    parts: PartsOf, caller: CallerOf, site: str, ce: str, body: AdvertisementBody
) -> TakenCounts:
    """Advertise the state of a CE, such as its numbers of jobs."""
    return _advertise(parts, caller, body, site, ce)


@router.post("/{site}/ces/{ce}/queues/{queue}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY, most_bytes=_ADVERTISEMENT)
def advertise_queue(
    parts: PartsOf, caller: CallerOf, site: str, ce: str, queue: str, body: AdvertisementBody
) -> TakenCounts:
    """Advertise the state of a batch queue, such as its numbers of jobs."""
    return _advertise(parts, caller, body, site, ce, queue)


@router.post("/{site}/ban")
@allow(Role.SITE_ADMIN, most_bytes=SMALL)
def ban(parts: PartsOf, caller: CallerOf, site: str, body: BanBody) -> SiteAnswer:
    """Ban a site from all jobs but tests; replaces an earlier ban."""
    sites.ban(parts, caller, site, reason=body.reason, until=body.until)
    return sites.describe_site(parts, caller, site)


@router.post("/{site}/allow")
@allow(Role.SITE_ADMIN)
def end_ban(parts: PartsOf, caller: CallerOf, site: str) -> SiteAnswer:
    """Lift the ban of a site."""
    sites.allow(parts, caller, site)
    return sites.describe_site(parts, caller, site)


@router.get("/{site}/nodes")
@allow(Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_nodes(parts: PartsOf, caller: CallerOf, site: str) -> ExcludedNodes:
    """List the nodes that take no jobs for a while, since pilots there ended because of their host.

    Admins of the site see those of all VOs, others those of their own.
    """
    return ExcludedNodes(nodes=sites.list_excluded_nodes(parts, caller, site))


@hardware_router.get("")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, Role.DIRECTOR, Role.GATEWAY)
def list_hardware(parts: PartsOf, query: Annotated[HardwareQuery, Query()]) -> HardwarePage:
    """List the hardware that pilots had in the last 90 days, by site."""
    known = parts.live.current.sites
    if query.site is not None:
        visibility.require_known(parts.live.current, query.site)
    named = sorted(known) if query.site is None else [query.site]
    page, last = query.cut([name for name in named if name > (query.after or "")])
    return HardwarePage(hardware=sites.list_hardware(parts, page), next=last)


@router.post("/{site}/readmit")
@allow(Role.SITE_ADMIN, most_bytes=SMALL)
def readmit(parts: PartsOf, caller: CallerOf, site: str, body: ReadmittedNode) -> ExcludedNodes:
    """Readmit a node for all VOs at once; the nodes that are still excluded.

    404 `node_not_excluded`: it is not.
    """
    sites.readmit_node(parts, caller, site, body.node)
    return ExcludedNodes(nodes=sites.list_excluded_nodes(parts, caller, site))


@router.get("")
@allow(*EVERY_ROLE)
def list_sites(parts: PartsOf, caller: CallerOf, query: Annotated[SiteQuery, Query()]) -> SitePage:
    """List the sites with their bans, throttles and limits."""
    page, last = query.cut(sorted(name for name in parts.live.current.sites if name > (query.after or "")))
    return SitePage(sites=sites.summarize_sites(parts, caller, page), next=last)


@router.get("/{site}")
@allow(*EVERY_ROLE)
def show_site(parts: PartsOf, caller: CallerOf, site: str) -> SiteAnswer:
    """Show the ban, throttles, limits and latest advertisements of a site."""
    visibility.require_known(parts.live.current, site)
    return sites.describe_site(parts, caller, site)


def _advertise(parts: Services, caller: Caller, body: AdvertisementBody, *path: str) -> TakenCounts:
    config, scope = parts.live.current, "/".join(path)
    visibility.require_site(caller, config, path[0])
    if scope not in visibility.list_scopes(config):
        visibility.refuse_unknown(config, scope)
    advertisement = Advertisement(
        attributes=_attributes(body),
        as_of=body.as_of,
        leases_seen=[each for each in body.attempts_seen if isinstance(each, str)],
        attempts_seen=[(each.job_id, each.epoch) for each in body.attempts_seen if not isinstance(each, str)],
        taken_at=body.taken_at.isoformat() if body.taken_at else None,
    )
    with database.writing(parts.engine) as conn:
        accepted = reservations.accept_advertisement(conn, scope, advertisement, now=parts.clock())
        as_of = scopes.read_scopes(conn, [scope])[scope].as_of
    warnings = _warn_of_names(config, scope, advertisement.attributes)
    return TakenCounts(accepted=accepted, as_of=as_of, warnings=warnings)


def _warn_of_names(config: Configuration, scope: str, advertised: Mapping[str, Value]) -> list[str]:
    """Warnings of names that are probably misspelled, or that nothing reads; any name is allowed."""
    known = list(AdvertisementBody.model_fields)
    measured = set(map(fold, MEASURED))  # each gateway advertises these, read or not
    readers = advertised_values.find_readers(config, scope, advertised)
    found: list[str] = []
    unknown = (each for each in advertised if each not in known and fold(each) not in measured)
    for name in islice(unknown, _HINTS):
        if meant := did_you_mean(name, known):
            found.append(f"{name}: is used only in expressions, did you mean {meant}?")
        elif not readers[name]:
            found.append(
                f"{name}: nothing reads it, no job can require it: no queue in {scope} declares it "
                f"(NodeAttributes: {{{name}: advertised}}), and no throttle of {scope} reads it"
            )
    return found


def _attributes(body: AdvertisementBody) -> Mapping[str, Value]:
    """The attributes, validated as far as throttles use them; an error lists all problems."""
    _check_size(body)
    found: dict[str, Value] = {}
    problems: list[Problem] = []
    spelled = {fold(name): name for name in AdvertisementBody.model_fields}
    for name, raw in body.attributes().items():
        try:
            if name in (throttles.REQUIREMENTS, throttles.CUR_MATCHES) and isinstance(raw, str):
                found[name] = as_value(raw, name)
                _check_expression(name, match_expression.parse_match_expression(raw, name))
            else:
                found[name] = as_short_value(raw, name)
        except InvalidInput as error:
            problems += error.problems
        right = spelled.get(fold(name), name)
        if right != name:
            problems.append(Problem(path=name, message="is spelled otherwise", suggestion=right))
    if problems:
        raise InvalidRequest(problems)
    throttles.check_start(found)
    return found


def _check_size(body: AdvertisementBody) -> None:
    """Reject attributes beyond the bounds: each match at the place reads them."""
    number = len(body.model_extra or {})
    if number > bounds.ADVERTISED:
        message = f"has {number} further attributes, allowed are {bounds.ADVERTISED}"
        raise InvalidRequest([Problem(path="body", message=message)])
    size = len(json.dumps(body.attributes(), ensure_ascii=False).encode())
    if size > bounds.ADVERTISED_BYTES:
        message = f"its attributes have {size} bytes, allowed are {bounds.ADVERTISED_BYTES}"
        raise InvalidRequest([Problem(path="body", message=message)])


def _check_expression(name: str, read: TwoSided) -> None:
    """Reject an expression that refers to itself: CurMatches is counted from its start value."""
    if fold(name) in read.own_names:
        what = f"{read.text!r:.80} refers to itself, allowed is a number or an expression of other names"
        raise InvalidInput([Problem(path=name, message=what)])


process_router = APIRouter(prefix="/site-processes", tags=["sites"], route_class=ApiRoute)

_Address = Annotated[str, Field(max_length=800)]

#: A pause of a queue ends at most so long from now.
_LONGEST_PAUSE = timedelta(days=30)


class TooSmallSlotBody(StrictInput):
    """Waiting jobs that a queue allows, and for which the slots of its pilots are too small."""

    queue: _Address = Field(description="`Site/CE/Queue`")
    slot: str = Field(
        max_length=500, description="Slot of the pilots, as the file of the director states it."
    )
    jobs: int = Field(ge=0)
    task_queues: list[int] = Field(default=[], max_length=1000, description="Task queues of these jobs.")


class QueueStateBody(StrictInput):
    """State of a queue for the pilots of the VO, in the last cycle of its director."""

    queue: _Address = Field(description="`Site/CE/Queue`")
    waiting: int = Field(default=0, ge=0, description="Pilots that wait in the batch system.")
    running: int = Field(default=0, ge=0)
    wanted: int = Field(default=0, ge=0, description="New pilots by the last decision.")
    room: int = Field(default=0, ge=0, description="Pilots that may be added by the limits of the queue.")
    paused_until: AwareDatetime | None = Field(
        default=None,
        description="Until then it gets no pilots, since most of the last ones were bad; within 30 days.",
    )
    reason: str = Field(default="", max_length=200, description="Why the last bad pilot ended; for admins.")
    bad_nodes: list[Annotated[str, Field(max_length=255)]] = Field(
        default=[], max_length=50, description="Nodes that pilots are kept from in the batch system."
    )


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
        default=[], max_length=50, description="Problems of the last cycle."
    )
    too_small: list[TooSmallSlotBody] = Field(default=[], max_length=1000)
    queues: list[QueueStateBody] | None = Field(
        default=None,
        max_length=processes.MOST_QUEUES,
        description="Of a director: its queues that the VO may use, the most important first.",
    )


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
    queues: list[QueueStateBody] | None = Field(description="Queues of a director; null: not reported.")


class SiteProcesses(BaseModel):
    """Directors and gateways."""

    processes: list[SiteProcessAnswer]


@process_router.post("", status_code=204, response_class=Response)
@allow(Role.DIRECTOR, Role.GATEWAY)
def report_process(parts: PartsOf, caller: CallerOf, body: ProcessReport) -> None:
    """Store the report of a process; 409 `other_process`: another one, or another token, has this name.

    Sites that the token is not for are left out with their queues, since their admins would see it; so are
    queues that the configuration does not have.
    """
    if not caller.is_operator and all(one.role != body.kind for one in caller.each):
        raise NotAllowed(f"a token that is not that of a {body.kind} may not report for one")
    vo, now = visibility.vo_of(caller, body.vo), parts.clock()
    is_served = partial(_is_served, caller, parts.live.current, vo)
    process = SiteProcess(
        kind=body.kind,
        name=body.name,
        vo=vo,
        holder=body.holder,
        reported_by=caller.subject,
        every=body.every,
        sites=[site for site in body.sites if visibility.may_serve(caller, vo, site)],
        problems=body.problems,
        too_small=[TooSmallSlot(**each.model_dump()) for each in body.too_small if is_served(each.queue)],
        queues=None if body.queues is None else _read_queues(body.queues, is_served, now),
        seen_at=now,
    )
    lease = timedelta(seconds=body.lease)
    with database.writing(parts.engine) as conn:
        processes.report(conn, process, lease=lease, replaces=body.replaces, now=now)


def _is_served(caller: Caller, config: Configuration, vo: str, queue: str) -> bool:
    """Whether a queue exists, and the caller may send pilots or jobs of the VO there."""
    try:
        address = QueueAddress.parse(queue)
    except InvalidRequest:
        return False
    return config.knows(address) and visibility.may_serve(caller, vo, address.site)


def _read_queues(
    stated: Iterable[QueueStateBody], is_served: Callable[[str], bool], now: datetime
) -> list[QueueState]:
    """The states of these queues, as far as the caller serves them, with times in UTC."""
    found = []
    for number, each in enumerate(stated):
        until = each.paused_until
        # Compared first: at the ends of the calendar there are times that no other zone can express.
        if until is not None and abs(until - now) > _LONGEST_PAUSE:
            message = f"{until} is not within {_LONGEST_PAUSE.days} days from now"
            raise InvalidRequest([Problem(path=f"queues/{number}/paused_until", message=message)])
        if is_served(each.queue):
            in_utc = None if until is None else until.astimezone(UTC)
            found.append(QueueState(**{**each.model_dump(), "paused_until": in_utc}))
    return found


class ForgottenProcess(StrictInput):
    """Directors and gateways that were taken out of service."""

    name: str = Field(min_length=1, max_length=255)


@process_router.post("/forget")
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


@process_router.get("")
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
