"""Sites: advertisements, bans, throttles and limits."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query

from matcher.limits import throttles
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.sites import (
    AdvertisementBody,
    BanBody,
    SiteAnswer,
    SitePage,
    SiteQuery,
    TakenCounts,
    Watermark,
)
from pilotage.service.queries import sites
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf, takes_at_most
from pilotage.service.services import Services
from requirements.classad import match_expression
from requirements.classad.match_expression import TwoSided
from requirements.errors import InvalidInput, InvalidRequest, Problem, did_you_mean
from requirements.values import Value, as_value, fold
from taskqueue.db import database
from taskqueue.sites import reservations, scopes
from taskqueue.sites.reservations import Advertisement

router = APIRouter(prefix="/sites", tags=["sites"], route_class=ApiRoute)

#: Bytes of an advertisement; enough for 100,000 attempts.
_ADVERTISEMENT = 8 << 20
#: Names of one advertisement for which suggestions are looked up.
_HINTS = 20


@router.post("/{site}/watermark")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
def give_watermark(parts: PartsOf, caller: CallerOf, site: str) -> Watermark:
    """Get a watermark: fetch it, count, then advertise with it as `as_of`."""
    visibility.require_site(caller, parts.live.current, site)
    with database.writing(parts.engine) as conn:
        return Watermark(watermark=reservations.create_watermark(conn, site))


@router.post("/{site}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
@takes_at_most(_ADVERTISEMENT)
def advertise_site(parts: PartsOf, caller: CallerOf, site: str, body: AdvertisementBody) -> TakenCounts:
    """Advertise the state of a site, such as its numbers of jobs."""
    return _advertise(parts, caller, body, site)


@router.post("/{site}/ces/{ce}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
@takes_at_most(_ADVERTISEMENT)
def advertise_ce(
    parts: PartsOf, caller: CallerOf, site: str, ce: str, body: AdvertisementBody
) -> TakenCounts:
    """Advertise the state of a CE, such as its numbers of jobs."""
    return _advertise(parts, caller, body, site, ce)


@router.post("/{site}/ces/{ce}/queues/{queue}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
@takes_at_most(_ADVERTISEMENT)
def advertise_queue(
    parts: PartsOf, caller: CallerOf, site: str, ce: str, queue: str, body: AdvertisementBody
) -> TakenCounts:
    """Advertise the state of a batch queue, such as its numbers of jobs."""
    return _advertise(parts, caller, body, site, ce, queue)


@router.post("/{site}/ban")
@allow(Role.SITE_ADMIN)
@takes_at_most(SMALL)
def ban(parts: PartsOf, caller: CallerOf, site: str, body: BanBody) -> SiteAnswer:
    """Ban a site from all jobs but tests; replaces an earlier ban."""
    sites.ban(parts, caller, site, reason=body.reason, until=body.until)
    return sites.list_states(parts, [site], jobs_of=None)[0]


@router.post("/{site}/allow")
@allow(Role.SITE_ADMIN)
def end_ban(parts: PartsOf, caller: CallerOf, site: str) -> SiteAnswer:
    """Lift the ban of a site."""
    sites.allow(parts, caller, site)
    return sites.list_states(parts, [site], jobs_of=None)[0]


@router.get("")
@allow(*EVERY_ROLE)
def list_sites(parts: PartsOf, caller: CallerOf, query: Annotated[SiteQuery, Query()]) -> SitePage:
    """List the sites with their bans, throttles and limits."""
    page, last = query.cut(sorted(name for name in parts.live.current.sites if name > (query.after or "")))
    return SitePage(sites=sites.briefly(parts, caller, page), next=last)


@router.get("/{site}")
@allow(*EVERY_ROLE)
def show_site(parts: PartsOf, caller: CallerOf, site: str) -> SiteAnswer:
    """Show the ban, throttles, limits and latest advertisements of a site."""
    visibility.require_known(parts.live.current, site)
    return sites.may_see_in_full(parts, caller, site)


def _advertise(parts: Services, caller: Caller, body: AdvertisementBody, *path: str) -> TakenCounts:
    config, scope = parts.live.current, "/".join(path)
    visibility.require_site(caller, config, path[0])
    if scope not in visibility.places(config):
        visibility.unknown(config, scope)
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
    warnings = list(_list_unknown_names(advertisement.attributes))
    return TakenCounts(accepted=accepted, as_of=as_of, warnings=warnings)


def _list_unknown_names(attributes: Mapping[str, Value]) -> Iterator[str]:
    """Warn of attributes that are probably misspelled; any name is allowed."""
    known = list(AdvertisementBody.model_fields)
    for name in islice((each for each in attributes if each not in known), _HINTS):
        meant = did_you_mean(name, known)
        if meant:
            yield f"{name}: is used only in expressions, did you mean {meant}?"


def _attributes(body: AdvertisementBody) -> Mapping[str, Value]:
    """The attributes, validated as far as throttles use them; an error lists all problems."""
    found: dict[str, Value] = {}
    problems: list[Problem] = []
    spelled = {fold(name): name for name in AdvertisementBody.model_fields}
    for name, raw in body.attributes().items():
        try:
            found[name] = as_value(raw, name)
            if name in (throttles.REQUIREMENTS, throttles.CUR_MATCHES) and isinstance(raw, str):
                _check_expression(name, match_expression.parse_match_expression(raw, name))
        except InvalidInput as error:
            problems += error.problems
        right = spelled.get(fold(name), name)
        if right != name:
            problems.append(Problem(path=name, message="is spelled otherwise", suggestion=right))
    if problems:
        raise InvalidRequest(problems)
    throttles.check_start(found)
    return found


def _check_expression(name: str, read: TwoSided) -> None:
    """Reject an expression that refers to itself: CurMatches is counted from its start value."""
    if fold(name) in read.own_names:
        what = f"{read.text!r:.80} refers to itself, allowed is a number or an expression of other names"
        raise InvalidInput([Problem(path=name, message=what)])
