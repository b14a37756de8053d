"""Sites: what they advertise, and how their throttles stand."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, NoReturn

from fastapi import APIRouter, Query

from cs_config.configuration import Configuration
from cs_config.errors import SiteNotFound
from matcher import limits, standings, throttles
from matcher.limits import Bucket, Condition, Running
from matcher.standings import Standing
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.api_route import SMALL, ApiRoute, CallerOf, PartsOf, takes_at_most
from pilotage.service.callers import Caller, Role
from pilotage.service.models.sites import (
    AdvertisementBody,
    BanAnswer,
    BanBody,
    LimitAnswer,
    ReservationAnswer,
    SiteAnswer,
    SitePage,
    SiteQuery,
    Taken,
    ThrottleAnswer,
    Watermark,
)
from pilotage.service.parts import Parts
from requirements import two_sided
from requirements.errors import InvalidInput, InvalidRequest, NotAllowed
from requirements.problem import Problem
from requirements.suggestion import did_you_mean
from requirements.two_sided import TwoSided
from requirements.values import Value, as_value, fold
from taskqueue import advertisements, bans, database, reservations, scopes
from taskqueue.advertisements import Advertisement
from taskqueue.bans import Ban
from taskqueue.reservations import Reservation

router = APIRouter(prefix="/sites", tags=["sites"], route_class=ApiRoute)

#: Bytes of an advertisement; one with 100,000 attempts that were seen has fewer.
_ADVERTISEMENT = 8 << 20
#: Reservations that are shown one by one.
_SHOWN = 100
#: Names of one advertisement that suggestions are looked up for.
_HINTS = 20


@router.post("/{site}/watermark")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
def give_watermark(parts: PartsOf, caller: CallerOf, site: str) -> Watermark:
    """Fetch it, count, then advertise as of it."""
    _require(caller, parts.live.current, site)
    with database.writing(parts.engine) as conn:
        return Watermark(watermark=advertisements.give_watermark(conn, site))


@router.post("/{site}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
@takes_at_most(_ADVERTISEMENT)
def advertise_site(parts: PartsOf, caller: CallerOf, site: str, body: AdvertisementBody) -> Taken:
    """Say how many jobs the site has."""
    return _advertise(parts, caller, body, site)


@router.post("/{site}/ces/{ce}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
@takes_at_most(_ADVERTISEMENT)
def advertise_ce(parts: PartsOf, caller: CallerOf, site: str, ce: str, body: AdvertisementBody) -> Taken:
    """Say how many jobs a CE has."""
    return _advertise(parts, caller, body, site, ce)


@router.post("/{site}/ces/{ce}/queues/{queue}/advertisement")
@allow(Role.SITE_ADMIN, Role.GATEWAY)
@takes_at_most(_ADVERTISEMENT)
def advertise_queue(
    parts: PartsOf, caller: CallerOf, site: str, ce: str, queue: str, body: AdvertisementBody
) -> Taken:
    """Say how many jobs a batch queue has."""
    return _advertise(parts, caller, body, site, ce, queue)


@router.post("/{site}/ban")
@allow(Role.SITE_ADMIN)
@takes_at_most(SMALL)
def ban(parts: PartsOf, caller: CallerOf, site: str, body: BanBody) -> SiteAnswer:
    """Give the site no jobs but tests; a ban that there is already is replaced."""
    _require(caller, parts.live.current, site)
    now = parts.clock()
    _require_end(body.until, now)
    new = Ban(site=site, reason=body.reason, author=caller.subject, at=now, until=body.until)
    with database.writing(parts.engine) as conn:
        bans.ban(conn, new)
    return _answers(parts, [site], jobs_of=None)[0]


@router.post("/{site}/allow")
@allow(Role.SITE_ADMIN)
def end_ban(parts: PartsOf, caller: CallerOf, site: str) -> SiteAnswer:
    """Give the site jobs again."""
    _require(caller, parts.live.current, site)
    with database.writing(parts.engine) as conn:
        bans.allow(conn, site)
    return _answers(parts, [site], jobs_of=None)[0]


@router.get("")
@allow(*EVERY_ROLE)
def list_sites(parts: PartsOf, caller: CallerOf, query: Annotated[SiteQuery, Query()]) -> SitePage:
    """List the sites with what limits matches there."""
    page, last = query.cut(sorted(name for name in parts.live.current.sites if name > (query.after or "")))
    vos = None if caller.is_operator else caller.vos
    return SitePage(sites=_answers(parts, page, jobs_of=frozenset(), vos=vos), next=last)


@router.get("/{site}")
@allow(*EVERY_ROLE)
def show_site(parts: PartsOf, caller: CallerOf, site: str) -> SiteAnswer:
    """Show limits, counters, reservations and the last advertisements of a site."""
    if site not in parts.live.current.sites:
        _unknown(parts.live.current, site)
    # Jobs of other VOs are nobody's business but of those who look after the site; its gateways know theirs.
    if caller.looks_after(site):
        return _answers(parts, [site], jobs_of=None)[0]
    brings_jobs = caller.role is Role.GATEWAY and site in caller.sites
    jobs_of = caller.vos if brings_jobs else frozenset[str]()
    return _answers(parts, [site], jobs_of=jobs_of, vos=caller.vos)[0]


def _advertise(parts: Parts, caller: Caller, body: AdvertisementBody, *path: str) -> Taken:
    config, scope = parts.live.current, "/".join(path)
    _require(caller, config, path[0])
    if scope not in _scopes(config):
        _unknown(config, scope)
    said = Advertisement(
        attributes=_attributes(body),
        as_of=body.as_of,
        leases_seen=[each for each in body.attempts_seen if isinstance(each, str)],
        attempts_seen=[(each.job_id, each.epoch) for each in body.attempts_seen if not isinstance(each, str)],
        taken_at=body.taken_at.isoformat() if body.taken_at else None,
    )
    with database.writing(parts.engine) as conn:
        accepted = advertisements.advertise(conn, scope, said, now=parts.clock())
        as_of = scopes.read(conn, [scope])[scope].as_of
    return Taken(accepted=accepted, as_of=as_of, warnings=list(_doubts(said.attributes)))


def _doubts(attributes: Mapping[str, Value]) -> Iterator[str]:
    """Attributes that read like a slip of the pen; any name is allowed."""
    known = list(AdvertisementBody.model_fields)
    for name in islice((each for each in attributes if each not in known), _HINTS):
        meant = did_you_mean(name, known)
        if meant:
            yield f"{name}: counts for nothing but expressions, did you mean {meant}?"


def _attributes(body: AdvertisementBody) -> Mapping[str, Value]:
    """What is advertised, checked as far as a throttle will use it.

    Raises:
        InvalidInput, InvalidRequest: With everything that is wrong.
    """
    found: dict[str, Value] = {}
    problems: list[Problem] = []
    spelled = {fold(name): name for name in AdvertisementBody.model_fields}
    for name, raw in body.attributes().items():
        try:
            found[name] = as_value(raw, name)
            if name in (throttles.REQUIREMENTS, throttles.CUR_MATCHES) and isinstance(raw, str):
                _check_asked(name, two_sided.read(raw, name))
        except InvalidInput as error:
            problems += error.problems
        right = spelled.get(fold(name), name)
        if right != name:
            problems.append(Problem(path=name, message="is spelled otherwise", suggestion=right))
    if problems:
        raise InvalidRequest(problems)
    throttles.check_start(found)
    return found


def _check_asked(name: str, read: TwoSided) -> None:
    """Refuse what asks for itself: it would never be true, and CurMatches is counted from its start value."""
    if fold(name) in read.own_names:
        what = f"{read.text!r:.80} asks for itself, allowed is a number or an expression of other names"
        raise InvalidInput([Problem(path=name, message=what)])


def _answers(
    parts: Parts,
    sites: Collection[str],
    *,
    jobs_of: frozenset[str] | None,
    vos: frozenset[str] | None = None,
) -> list[SiteAnswer]:
    """What holds at sites.

    Args:
        parts: Of the service.
        sites: Which.
        jobs_of: Reservations of jobs of these VOs are shown; None: of all.
        vos: Limits of these VOs are shown beside those of all; None: of every VO.
    """
    config = parts.live.current
    limited = [name for name in sorted(limits.rules(config)) if scopes.site_of(name) in set(sites)]
    names = [name for name in config.throttles if scopes.site_of(name) in set(sites)]
    with database.reading(parts.engine) as conn:
        banned = bans.of(conn, sites, now=parts.clock())
        found = standings.of(conn, config, scopes.read(conn, names).values(), parts.clock())
        shown = {name: reservations.show(conn, name, _SHOWN, vos=jobs_of) for name in names}
        conditions = limits.conditions(conn, config, limited, parts.clock())
    answers = [_answer(found[name], shown[name]) for name in sorted(names)]
    return [
        SiteAnswer(
            site=site,
            ban=BanAnswer.model_validate(banned[site]) if site in banned else None,
            throttles=[each for each in answers if scopes.site_of(each.scope) == site],
            limits=[
                _limit(name, each)
                for name, those in conditions.items()
                for each in those
                if scopes.site_of(name) == site and each.rule.may_be_told(vos)
            ],
        )
        for site in sites
    ]


def _answer(standing: Standing, reserved: Sequence[Reservation]) -> ThrottleAnswer:
    room, throttled, scope = standing.room(), standing.throttled, standing.scope
    return ThrottleAnswer(
        scope=scope.scope,
        policy=throttled.throttle.policy,
        open=room.jobs != 0,
        room=room.jobs,
        why=room.why,
        limits=dict(throttled.limits),
        counters=dict(throttled.counters),
        reserved=throttled.reserved,
        reservations=[_reservation(each) for each in reserved],
        stale=standing.stale,
        stale_rule=throttled.throttle.stale,
        as_of=scope.as_of,
        advertised_at=scope.advertised_at,
        taken_at=scope.taken_at,
        advertisement=None if scope.advertised is None else dict(scope.advertised),
    )


def _limit(scope: str, condition: Condition) -> LimitAnswer:
    running = condition if isinstance(condition, Running) else None
    bucket = condition if isinstance(condition, Bucket) else None
    return LimitAnswer(
        scope=scope,
        option="RunningLimit" if running else "MatchingDelay",
        attribute=condition.rule.limit.attribute,
        value=condition.rule.limit.value,
        vo=condition.rule.vo,
        most=running.limit.most if running else None,
        there=running.there if running else None,
        seconds=bucket.delay.seconds if bucket else None,
        burst=bucket.delay.burst if bucket else None,
        tokens=bucket.tokens if bucket else None,
        full=condition.full,
    )


def _reservation(each: Reservation) -> ReservationAnswer:
    return ReservationAnswer(
        job_id=each.job_id, epoch=each.epoch, matched_at=each.opened_at, started_at=each.started_at
    )


def _require(caller: Caller, config: Configuration, site: str) -> None:
    """Refuse sites of others, then those that do not exist.

    Raises:
        NotAllowed, SiteNotFound: It is such a one.
    """
    if not caller.is_operator and site not in caller.sites:
        raise NotAllowed(f"the token is for {', '.join(sorted(caller.sites))}, not for {site}")
    if site not in config.sites:
        _unknown(config, site)


def _require_end(until: datetime | None, now: datetime) -> None:
    problem = None
    if until is not None and until.tzinfo is None:
        problem = f"{until} has no time zone"
    elif until is not None and until <= now:
        problem = f"{until} is over, it is {now.replace(microsecond=0)}"
    if problem is not None:
        raise InvalidRequest([Problem(path="until", message=problem)])


def _unknown(config: Configuration, scope: str) -> NoReturn:
    raise SiteNotFound(scope, did_you_mean(scope, _scopes(config)))


def _scopes(config: Configuration) -> frozenset[str]:
    """Every site, CE and queue."""
    below = (scopes.line(str(address)) for address in config.addresses)
    return config.sites.union(config.throttles, *below)
