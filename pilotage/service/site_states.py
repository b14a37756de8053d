"""What holds at sites, as far as somebody may know: bans, throttles, limits, what they advertised."""

from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from matcher import limits, standings
from matcher.limits import Bucket, Condition, Running
from matcher.standings import Standing
from pilotage.service.callers import Caller, Role
from pilotage.service.models.sites import (
    BanAnswer,
    GaugeAnswer,
    LimitAnswer,
    ReservationAnswer,
    SiteAnswer,
    ThrottleAnswer,
)
from pilotage.service.parts import Parts
from taskqueue import bans, database, reservations, scopes
from taskqueue.reservations import Reservation

#: Reservations that are shown one by one.
_SHOWN = 100


def briefly(parts: Parts, caller: Caller, sites: Collection[str]) -> list[SiteAnswer]:
    """What anybody may know of sites: no reservations, and the limits of the caller's own VOs."""
    return of(parts, sites, jobs_of=frozenset(), vos=caller.visible_vos)


def in_full(parts: Parts, caller: Caller, site: str) -> SiteAnswer:
    """All that the caller may know of a site.

    Jobs of other VOs are nobody's business but of those who look after the site; its gateways know theirs.
    """
    if caller.looks_after(site):
        return of(parts, [site], jobs_of=None)[0]
    brings_jobs = caller.role is Role.GATEWAY and site in caller.sites
    jobs_of = caller.vos if brings_jobs else frozenset[str]()
    return of(parts, [site], jobs_of=jobs_of, vos=caller.visible_vos)[0]


def of(
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
    config, now, here = parts.live.current, parts.clock(), frozenset(sites)
    limited = sorted(name for name in limits.rules(config) if scopes.site_of(name) in here)
    names = sorted(name for name in config.throttles if scopes.site_of(name) in here)
    with database.reading(parts.engine) as conn:
        banned = bans.of(conn, sites, now=now)
        found = standings.of(conn, config, scopes.read(conn, names).values(), now)
        shown = {name: _reservations(conn, name, jobs_of) for name in names}
        conditions = limits.conditions(conn, config, limited, now)
    throttled, told = defaultdict[str, list[ThrottleAnswer]](list), defaultdict[str, list[LimitAnswer]](list)
    for name in names:
        throttled[scopes.site_of(name)].append(_throttle(found[name], shown[name]))
    for name, those in conditions.items():
        told[scopes.site_of(name)] += [_limit(name, each) for each in those if each.rule.may_be_told(vos)]
    bans_told = {site: BanAnswer.model_validate(each) for site, each in banned.items()}
    return [
        SiteAnswer(site=site, ban=bans_told.get(site), throttles=throttled[site], limits=told[site])
        for site in sites
    ]


def _reservations(conn: Connection, scope: str, vos: frozenset[str] | None) -> Sequence[Reservation]:
    """Nobody's are not asked for: a list has many sites."""
    return reservations.show(conn, scope, _SHOWN, vos=vos) if vos is None or vos else ()


def _throttle(standing: Standing, reserved: Sequence[Reservation]) -> ThrottleAnswer:
    room, throttled, scope = standing.room(), standing.throttled, standing.scope
    return ThrottleAnswer(
        scope=scope.scope,
        policy=throttled.throttle.policy,
        open=room.jobs != 0,
        room=room.jobs,
        why=room.why,
        limits=dict(throttled.limits),
        gauges=[GaugeAnswer.model_validate(each) for each in throttled.gauges],
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
