"""Ban and allow sites, readmit nodes; read bans, excluded nodes, throttles, limits and advertisements."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from pydantic import BaseModel, Field

from cs_config.options import bounds
from cs_config.options.place_limits import ALL_SITES
from matcher.explain import kept_for_floors
from matcher.limits import advertised_values, floors, running_limits, throttle_standings
from matcher.limits.floors import FloorStanding
from matcher.limits.running_limits import DelayBucket, PlaceCondition, RunningLimitState
from matcher.limits.throttle_standings import ThrottleStanding
from pilotage.service.auth import audit, visibility
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models import AnswerModel
from pilotage.service.services import Services
from requirements.diracx import cpu_levels
from requirements.diracx.specification import format_version
from requirements.errors import InvalidRequest, Problem
from requirements.values import Value, fold
from taskqueue.db import database
from taskqueue.pilots import hardware, nodes
from taskqueue.pilots.hardware import SeenHardware
from taskqueue.sites import closures, processes, reservations, scopes
from taskqueue.sites.closures import Ban, Downtime, Severity
from taskqueue.sites.processes import QueueState
from taskqueue.sites.reservations import Reservation


class ReservationAnswer(AnswerModel):
    """A match that is not in the advertisement yet and counts in addition."""

    job_id: int
    epoch: int
    matched_at: datetime = Field(validation_alias="opened_at")
    started_at: datetime | None


class GaugeAnswer(AnswerModel):
    """A bound of a throttle: the sum must stay below the limit."""

    counters: list[str] = Field(description="The counters that are summed.")
    reported: int | float | None = Field(description="The sum as advertised; null: not advertised.")
    reserved: int = Field(description="Matches that count in addition.")
    limit_name: str
    limit: int | float | None = Field(
        description="The limit; null: it is not set, which closes the throttle."
    )


class ThrottleAnswer(AnswerModel):
    """The throttle of a site, CE or queue."""

    scope: str = Field(description="`Site`, `Site/CE` or `Site/CE/Queue`.")
    policy: str
    open: bool
    room: int | None = Field(description="Jobs that may still be matched; null: not limited by numbers.")
    why: str | None = Field(description="The reason if it is closed.")
    limits: dict[str, int | float]
    gauges: list[GaugeAnswer] = Field(description="Bounds of the policy; empty for an expression.")
    counters: dict[str, int | float] = Field(description="As advertised; CurMatches includes later matches.")
    reserved: int = Field(description="Matches that the advertisement does not contain.")
    reservations: list[ReservationAnswer] = Field(
        description="The first 100: for admins of the site of all VOs, for its gateways of theirs; else none."
    )
    stale: bool
    stale_rule: str = Field(description="Effect of a stale advertisement: closed, open or derived.")
    as_of: int
    advertised_at: datetime | None
    taken_at: str | None
    advertisement: dict[str, Value] | None


class LimitAnswer(AnswerModel):
    """A running limit or a matching delay with its current numbers."""

    scope: str = Field(description="`Site` or `Site/CE`, or `AllSites`: counted over the whole grid.")
    option: str = Field(description="RunningLimit or MatchingDelay.")
    attribute: str
    value: str
    vo: str | None = Field(description="VO whose jobs are limited; null: all.")
    of_site: bool = Field(description="Written at the node of the site or CE, not in the operations.")
    most: int | None = Field(description="Most jobs at a time (running limits).")
    there: int | None = Field(description="Jobs there now (running limits).")
    most_cores: int | None = Field(description="Most cores of these jobs at a time (running limits).")
    cores: int | None = Field(description="Cores of the jobs there now (running limits).")
    curb: int | None = Field(description="Jobs that are matched at any rate (running limits with a ramp).")
    seconds: float | None = Field(description="Seconds between two matches (delays and ramps).")
    burst: int | None = Field(description="Matches at once after a pause (delays).")
    tokens: float | None = Field(description="Matches possible now (delays and ramps).")
    full: bool = Field(description="No such job is matched now.")


class FloorAnswer(AnswerModel):
    """What a VO has at least of a site while it has work there (`Floors`), and what it has now."""

    vo: str
    floor_cores: int | None = Field(description="Cores; null: a part.")
    floor_percent: float | None = Field(description="Of the cores of all jobs there; null: cores.")
    cores: int = Field(description="Cores of its jobs there now.")
    total: int = Field(description="Cores of all jobs there now that are counted for floors.")
    is_below: bool = Field(description="It has less: its jobs come first, if it has some that fit.")
    waiting: int | None = Field(
        default=None,
        description="Its waiting jobs that the site could run; null in lists of sites, and if not yours.",
    )


class BanAnswer(AnswerModel):
    """A ban; only jobs of the type Test are matched."""

    reason: str
    author: str
    at: datetime
    until: datetime | None


class DowntimeAnswer(AnswerModel):
    """A downtime of a site or a CE that is not over."""

    downtime_id: int
    place: str = Field(description="`Site` or `Site/CE`.")
    begins: datetime
    ends: datetime
    severity: Severity = Field(description="OUTAGE closes the place for all jobs but tests.")
    reason: str
    author: str
    source: str = Field(description="The feed that states it; empty: planned by hand.")
    source_id: str | None = Field(description="Its id there.")
    is_closing: bool = Field(description="It closes the place now.")

    @classmethod
    def from_stored(cls, downtime: Downtime, now: datetime) -> "DowntimeAnswer":
        """Convert what is stored."""
        return cls(
            **{name: getattr(downtime, name) for name in cls.model_fields if name != "is_closing"},
            is_closing=downtime.is_closing(now),
        )

    def closes(self, scope: str) -> bool:
        """Whether it closes a site, CE or queue now."""
        return self.is_closing and fold(self.place) in scopes.list_enclosing(fold(scope))


class HandledTypesAnswer(AnswerModel):
    """The job types that a gateway handles, as it advertised; for display only."""

    scope: str = Field(description="`Site`, `Site/CE` or `Site/CE/Queue`.")
    job_types: list[str]
    advertised_at: datetime
    stale: bool


class AdvertisedValueAnswer(AnswerModel):
    """A name that a site, a CE or a queue advertised last."""

    scope: str = Field(description="`Site`, `Site/CE` or `Site/CE/Queue`.")
    name: str
    value: Value
    advertised_at: datetime
    stale: bool = Field(validation_alias="is_stale", description="Too old: nothing reads it now.")
    declared: bool = Field(
        validation_alias="is_declared",
        description="`NodeAttributes` of a queue there have it as `advertised`: jobs may require it.",
    )
    readers: list[str] = Field(description="What reads it; empty: nothing.")


class ExcludedNodeAnswer(AnswerModel):
    """A node that takes no jobs of a VO for a while, since its pilots there ended because of their host."""

    site: str
    node: str = Field(description="Name of the host, as its pilots report it.")
    vo: str = Field(description="VO whose pilots ended there, and take no jobs there.")
    since: datetime = Field(description="First of these ends in a row.")
    until: datetime = Field(
        description="When it ends by itself: an hour after the last but two of these ends."
    )
    next_trial_at: datetime = Field(
        description="From then on a pilot may try the node: a good job readmits it."
    )
    reason: str = Field(description="Why the last of these pilots ended.")


class SeenHardwareAnswer(BaseModel):
    """Hardware that pilots of a site had when they first asked for jobs; null: not stated."""

    site: str
    processors: int | None
    max_ram_mb: float | None = Field(description="MB of memory, rounded up to two digits.")
    scratch_mb: float | None = Field(description="MB of local disk, rounded up to two digits.")
    system: str | None
    architecture: str | None
    cpu_level: str | None = Field(description="The highest level or profile that all features are there for.")
    gpus: int
    gpu_vendor: str | None
    gpu_architecture: int | None = Field(description="The number of `sm_89`.")
    gpu_memory_mb: float | None = Field(description="MB of each GPU, rounded up to two digits.")
    gpu_runtime: str | None = Field(description="Version of the runtime of the GPUs, such as `12.4`.")
    node_tags: list[str] | None = Field(description="Tags that pilots measure, as `hostfeat:apptainer`.")
    first_seen_at: datetime
    last_seen_at: datetime = Field(description="The day of the last such pilot.")

    @classmethod
    def from_seen(cls, seen: SeenHardware) -> "SeenHardwareAnswer":
        """Convert what is stored."""
        shape = seen.shape
        return cls(
            site=seen.site,
            processors=shape.processors,
            max_ram_mb=shape.max_ram,
            scratch_mb=shape.scratch_mb,
            system=shape.system or None,
            architecture=shape.architecture or None,
            cpu_level=cpu_levels.find_level(shape.architecture or "", shape.cpu_features or frozenset()),
            gpus=shape.gpus,
            gpu_vendor=shape.gpu_vendor or None,
            gpu_architecture=shape.gpu_architecture or None,
            gpu_memory_mb=shape.gpu_memory_mb or None,
            gpu_runtime=format_version(shape.gpu_runtime) if shape.gpu_runtime else None,
            node_tags=None if shape.node_tags is None else sorted(shape.node_tags),
            first_seen_at=seen.first_seen_at,
            last_seen_at=seen.last_seen_at,
        )


class SiteAnswer(BaseModel):
    """A site with its ban, downtimes, throttles and limits, and the job types that its gateways handle."""

    site: str
    ban: BanAnswer | None
    downtimes: list[DowntimeAnswer] = Field(description="Of the site and its CEs, the earliest first.")
    throttles: list[ThrottleAnswer]
    limits: list[LimitAnswer]
    floors: list[FloorAnswer] = Field(description="By VO.")
    job_types: list[HandledTypesAnswer]
    advertised: list[AdvertisedValueAnswer] | None = Field(
        default=None, description="All that is advertised there, by scope and name; null in lists of sites."
    )

    def is_closed(self, scope: str) -> bool:
        """Whether a downtime closes the site, or a CE or queue of it, now."""
        return any(each.closes(scope) for each in self.downtimes)


def ban(parts: Services, caller: Caller, site: str, *, reason: str, until: datetime | None) -> None:
    """Ban a site from all jobs but tests; replaces an earlier ban."""
    visibility.require_site(caller, parts.live.current, site)
    now = parts.clock()
    if until is not None and (until.tzinfo is None or until <= now):
        is_over = f"is over, it is {now.replace(microsecond=0)}"
        problem = "has no time zone" if until.tzinfo is None else is_over
        raise InvalidRequest([Problem(path="until", message=f"{until} {problem}")])
    if until is not None and until.timestamp() > bounds.MOMENT:
        # Read in a time zone ahead of UTC, the last moments of the calendar are beyond it.
        raise InvalidRequest([Problem(path="until", message=f"{until} is too late, leave it out for no end")])
    new = Ban(site=site, reason=reason, author=caller.author, at=now, until=until)
    with database.writing(parts.engine) as conn:
        closures.set_ban(conn, new)
    audit.done(caller, "ban", site=site, reason=reason, until=until.isoformat() if until else "")


def allow(parts: Services, caller: Caller, site: str) -> None:
    """Lift the ban of a site; errors as for `ban`."""
    visibility.require_site(caller, parts.live.current, site)
    with database.writing(parts.engine) as conn:
        closures.lift_ban(conn, site)
    audit.done(caller, "allow", site=site)


def list_excluded_nodes(parts: Services, caller: Caller, site: str) -> list[ExcludedNodeAnswer]:
    """The excluded nodes of a site, for admins of the site those of all VOs, for others of their own."""
    visibility.require_known(parts.live.current, site)
    vos = visibility.vos_at(caller, site)
    with database.reading(parts.engine) as conn:
        found = nodes.list_excluded(conn, site=site, vos=vos, now=parts.clock())
    return [ExcludedNodeAnswer.model_validate(each) for each in found]


#: Hardware that was not seen for longer is not listed.
_SEEN = timedelta(days=90)


def list_hardware(parts: Services, names: Collection[str]) -> list[SeenHardwareAnswer]:
    """The hardware that pilots of some sites had, by site, the latest first."""
    with database.reading(parts.engine) as conn:
        found = hardware.read_seen(conn, names, since=parts.clock() - _SEEN)
    return [SeenHardwareAnswer.from_seen(each) for each in found]


class ServedQueueAnswer(BaseModel):
    """A queue as a director reported it last."""

    director: str
    vo: str
    state: QueueState
    paused_until: datetime | None = Field(description="Null: it is not paused now.")


def list_served_queues(parts: Services, caller: Caller, site: str) -> list[ServedQueueAnswer]:
    """The queues of a site to which directors of the caller's VOs send pilots, paused ones first."""
    now = parts.clock()
    with database.reading(parts.engine) as conn:
        found = visibility.visible_processes(caller, processes.list_processes(conn))
    queues = [
        ServedQueueAnswer(
            director=each.name,
            vo=each.vo,
            state=state,
            paused_until=state.paused_until if state.is_paused(now) else None,
        )
        for each in found
        if not each.is_overdue(now)
        for state in each.queues or ()
        if state.queue.partition("/")[0] == site
    ]
    return sorted(queues, key=lambda each: (each.paused_until is None, each.state.queue, each.vo))


def readmit_node(parts: Services, caller: Caller, site: str, node: str) -> None:
    """End the exclusion of a node; errors as for `ban`, and `NodeNotExcluded`."""
    visibility.require_site(caller, parts.live.current, site)
    with database.writing(parts.engine) as conn:
        nodes.readmit(conn, site, node, now=parts.clock())
    audit.done(caller, "readmit", site=site, node=node)


#: Reservations that are listed.
_SHOWN = 100


def summarize_sites(parts: Services, caller: Caller, sites: Collection[str]) -> list[SiteAnswer]:
    """State of sites for any caller: without reservations, with the limits of the caller's VOs."""
    return _list_states(parts, sites, jobs_of=frozenset(), vos=caller.visible_vos)


def describe_site(parts: Services, caller: Caller, site: str) -> SiteAnswer:
    """State of a site as far as the caller may see it.

    Reservations of other VOs are only for admins of the site; its gateways see those of their VOs.
    """
    if caller.looks_after(site):
        jobs_of, vos = None, None
    else:
        brings_jobs = caller.role is Role.GATEWAY and site in caller.sites
        jobs_of, vos = caller.vos if brings_jobs else frozenset[str](), caller.visible_vos
    [found] = _list_states(parts, [site], jobs_of=jobs_of, vos=vos)
    with database.reading(parts.engine) as conn:
        values = advertised_values.list_values(conn, parts.live.current, site, parts.clock())
        fitting = kept_for_floors.FittingJobs(conn, parts.live.current)
        for each in found.floors:
            if vos is None or each.vo in vos:
                each.waiting = fitting.count(each.vo, site)
    advertised = [AdvertisedValueAnswer.model_validate(each) for each in values]
    return found.model_copy(update={"advertised": advertised})


def _list_states(
    parts: Services, sites: Collection[str], *, jobs_of: frozenset[str] | None, vos: frozenset[str] | None
) -> list[SiteAnswer]:
    """`jobs_of` are the VOs whose reservations are listed, `vos` those whose limits are; None: every VO."""
    config, now, here = parts.live.current, parts.clock(), frozenset(sites)
    limited = sorted(
        name
        for name in running_limits.rules_by_scope(config)
        if scopes.parse_site(name) in {*here, ALL_SITES}
    )
    names = sorted(name for name in config.throttles if scopes.parse_site(name) in here)
    with database.reading(parts.engine) as conn:
        banned = closures.read_bans(conn, sites, now=now)
        ahead = closures.list_downtimes(conn, sites, now=now)
        found = throttle_standings.read_standings(conn, config, scopes.read_scopes(conn, names).values(), now)
        # A list has many sites, and no reservations: no statement for each.
        shown = {
            name: reservations.list_reservations(conn, name, _SHOWN, vos=jobs_of)
            for name in (names if jobs_of is None or jobs_of else ())
        }
        conditions = running_limits.read_conditions(conn, config, limited, now)
        handled = defaultdict[str, list[HandledTypesAnswer]](list)
        for each in throttle_standings.list_handled_types(conn, config, here, now):
            handled[scopes.parse_site(each.scope)].append(HandledTypesAnswer.model_validate(each))
    throttled = defaultdict[str, list[ThrottleAnswer]](list)
    visible, shares = defaultdict[str, list[LimitAnswer]](list), defaultdict[str, list[FloorAnswer]](list)
    for name in names:
        throttled[scopes.parse_site(name)].append(_throttle(found[name], shown.get(name, ())))
    for name, those in conditions.items():
        shown_limits = [_limit(name, each) for each in those if each.rule.is_visible(vos) and _is_limit(each)]
        shares[scopes.parse_site(name)] += map(_floor, floors.list_standings(those))
        for site in sites if name == ALL_SITES else (scopes.parse_site(name),):
            visible[site] += shown_limits
    downtimes = defaultdict[str, list[DowntimeAnswer]](list)
    for downtime in ahead:
        downtimes[fold(scopes.parse_site(downtime.place))].append(DowntimeAnswer.from_stored(downtime, now))
    site_bans = {site: BanAnswer.model_validate(each) for site, each in banned.items()}
    return [
        SiteAnswer(
            site=site,
            ban=site_bans.get(site),
            downtimes=downtimes[fold(site)],
            throttles=throttled[site],
            limits=visible[site],
            floors=sorted(shares[site], key=lambda each: each.vo),
            job_types=handled[site],
        )
        for site in sites
    ]


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
        reservations=[ReservationAnswer.model_validate(each) for each in reserved],
        stale=standing.stale,
        stale_rule=throttled.throttle.stale,
        as_of=scope.as_of,
        advertised_at=scope.advertised_at,
        taken_at=scope.taken_at,
        advertisement=None if scope.advertised is None else dict(scope.advertised),
    )


def _is_limit(condition: PlaceCondition) -> bool:
    """Whether a condition bounds something, and does not only count for floors."""
    return isinstance(condition, DelayBucket) or condition.limit.is_bound


def _floor(standing: FloorStanding) -> FloorAnswer:
    return FloorAnswer(
        vo=standing.vo,
        floor_cores=standing.floor.cores,
        floor_percent=standing.floor.percent,
        cores=standing.cores,
        total=standing.total,
        is_below=standing.is_below,
    )


def _limit(scope: str, condition: PlaceCondition) -> LimitAnswer:
    running = condition if isinstance(condition, RunningLimitState) else None
    delay = condition if isinstance(condition, DelayBucket) else None
    bucket = running.bucket if running else delay
    return LimitAnswer(
        scope=scope,
        option="RunningLimit" if running else "MatchingDelay",
        attribute=condition.rule.limit.attribute,
        value=condition.rule.limit.value,
        vo=condition.rule.vo,
        of_site=condition.rule.is_of_site,
        most=running.limit.most if running else None,
        there=running.there if running else None,
        most_cores=running.limit.cores if running else None,
        cores=running.cores if running else None,
        seconds=bucket.delay.seconds if bucket else None,
        curb=running.limit.curb if running else None,
        burst=delay.delay.burst if delay else None,
        tokens=bucket.tokens if bucket else None,
        full=condition.full,
    )
