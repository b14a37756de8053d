"""Ban and allow sites; read their bans, throttles, limits and advertisements."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection

from matcher.limits import running_limits, throttle_state
from matcher.limits.running_limits import DelayBucket, PlaceCondition, RunningLimitState
from matcher.limits.throttle_state import ThrottleStanding
from pilotage.service.auth import audit, visibility
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.sites import (
    BanAnswer,
    GaugeAnswer,
    LimitAnswer,
    ReservationAnswer,
    SiteAnswer,
    ThrottleAnswer,
)
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import database
from taskqueue.sites import bans, reservations, scopes
from taskqueue.sites.bans import Ban
from taskqueue.sites.reservations import Reservation


def ban(parts: Services, caller: Caller, site: str, *, reason: str, until: datetime | None) -> None:
    """Ban a site from all jobs but tests; replaces an earlier ban.

    Raises:
        NotAllowed, SiteNotFound: It is not the caller's, or does not exist.
        InvalidRequest: The end has no time zone, or has passed.
    """
    visibility.require_site(caller, parts.live.current, site)
    now = parts.clock()
    _require_end(until, now)
    new = Ban(site=site, reason=reason, author=caller.subject, at=now, until=until)
    with database.writing(parts.engine) as conn:
        bans.set_ban(conn, new)
    audit.done(caller, "ban", site=site, reason=reason, until=until.isoformat() if until else "")


def allow(parts: Services, caller: Caller, site: str) -> None:
    """Lift the ban of a site; errors as for `ban`."""
    visibility.require_site(caller, parts.live.current, site)
    with database.writing(parts.engine) as conn:
        bans.lift_ban(conn, site)
    audit.done(caller, "allow", site=site)


def _require_end(until: datetime | None, now: datetime) -> None:
    problem = None
    if until is not None and until.tzinfo is None:
        problem = f"{until} has no time zone"
    elif until is not None and until <= now:
        problem = f"{until} is over, it is {now.replace(microsecond=0)}"
    if problem is not None:
        raise InvalidRequest([Problem(path="until", message=problem)])


#: Reservations that are listed.
_SHOWN = 100


def briefly(parts: Services, caller: Caller, sites: Collection[str]) -> list[SiteAnswer]:
    """State of sites for any caller: without reservations, with the limits of the caller's VOs."""
    return list_states(parts, sites, jobs_of=frozenset(), vos=caller.visible_vos)


def may_see_in_full(parts: Services, caller: Caller, site: str) -> SiteAnswer:
    """State of a site as far as the caller may see it.

    Reservations of other VOs are only for admins of the site; its gateways see those of their VOs.
    """
    if caller.looks_after(site):
        return list_states(parts, [site], jobs_of=None)[0]
    brings_jobs = caller.role is Role.GATEWAY and site in caller.sites
    jobs_of = caller.vos if brings_jobs else frozenset[str]()
    return list_states(parts, [site], jobs_of=jobs_of, vos=caller.visible_vos)[0]


def list_states(
    parts: Services,
    sites: Collection[str],
    *,
    jobs_of: frozenset[str] | None,
    vos: frozenset[str] | None = None,
) -> list[SiteAnswer]:
    """State of sites.

    Args:
        parts: Dependencies.
        sites: Names of the sites.
        jobs_of: VOs whose reservations are listed; None: all.
        vos: VOs whose limits are listed besides those for all VOs; None: every VO.
    """
    config, now, here = parts.live.current, parts.clock(), frozenset(sites)
    limited = sorted(
        name for name in running_limits.rules_by_scope(config) if scopes.parse_site(name) in here
    )
    names = sorted(name for name in config.throttles if scopes.parse_site(name) in here)
    with database.reading(parts.engine) as conn:
        banned = bans.read_bans(conn, sites, now=now)
        found = throttle_state.read_standings(conn, config, scopes.read_scopes(conn, names).values(), now)
        shown = {name: _reservations(conn, name, jobs_of) for name in names}
        conditions = running_limits.read_conditions(conn, config, limited, now)
    throttled, visible = (
        defaultdict[str, list[ThrottleAnswer]](list),
        defaultdict[str, list[LimitAnswer]](list),
    )
    for name in names:
        throttled[scopes.parse_site(name)].append(_throttle(found[name], shown[name]))
    for name, those in conditions.items():
        visible[scopes.parse_site(name)] += [
            _limit(name, each) for each in those if each.rule.is_visible(vos)
        ]
    site_bans = {site: BanAnswer.model_validate(each) for site, each in banned.items()}
    return [
        SiteAnswer(site=site, ban=site_bans.get(site), throttles=throttled[site], limits=visible[site])
        for site in sites
    ]


def _reservations(conn: Connection, scope: str, vos: frozenset[str] | None) -> Sequence[Reservation]:
    """Skip the statement if no VO's reservations are visible: a list has many sites."""
    return reservations.list_reservations(conn, scope, _SHOWN, vos=vos) if vos is None or vos else ()


def _throttle(standing: ThrottleStanding, reserved: Sequence[Reservation]) -> ThrottleAnswer:
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


def _limit(scope: str, condition: PlaceCondition) -> LimitAnswer:
    running = condition if isinstance(condition, RunningLimitState) else None
    bucket = condition if isinstance(condition, DelayBucket) else None
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
