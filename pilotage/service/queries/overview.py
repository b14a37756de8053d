"""Numbers and problems for the overview page, and one line per site for the list of sites."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cs_config.cache import Cache
from cs_config.tree.address import QueueAddress
from matcher.explain import job_conditions, queue_report, work_budget
from matcher.explain.queue_report import RunnableJobs
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.jobs import JobFilter
from pilotage.service.queries import explanations
from pilotage.service.queries import sites as queries_sites
from pilotage.service.queries.sites import SiteAnswer, ThrottleAnswer
from pilotage.service.services import Services
from requirements.job_fields import STATUS
from requirements.states import FINAL, JobStatus
from requirements.values import fold
from taskqueue.accounting import depths, time_series
from taskqueue.accounting.depths import DepthSeries
from taskqueue.accounting.time_series import StatusSeries
from taskqueue.jobs import search
from taskqueue.jobs.search import JobCount
from taskqueue.pools import pools
from taskqueue.sites import occupancy
from taskqueue.sites.occupancy import QueueOccupancy

#: Minutes over which matches are averaged, without the current minute.
_RECENT = 5
#: Steps of a chart of depths: each reads one sample.
DEPTH_STEPS = 48
#: Seconds for which a count of waiting jobs is cached: its cost grows with the number of classes.
_CACHE_TIME = 5
#: Work for counting them, in characters of classes; beyond that a new sample of the agent is used.
_COUNTED = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledJobs:
    """How many waiting jobs the queues could run, as in the last sample."""

    jobs: Mapping[tuple[str, str], int]  #: as from `depths.read_sample`

    @property
    def by_site(self) -> Mapping[str, int]:
        """Waiting jobs that each site could run."""
        return {site: jobs for (site, queue), jobs in self.jobs.items() if queue == depths.ALL}

    def count_by_queue(self, site: str) -> Mapping[QueueAddress, int]:
        """Waiting jobs that each queue of a site could run."""
        return {
            QueueAddress.parse(f"{site}/{queue}"): jobs
            for (name, queue), jobs in self.jobs.items()
            if name == site and queue != depths.ALL
        }


#: Waiting jobs that sites and queues could run, by VOs (None: all).
_RUNNABLE: Cache[frozenset[str] | None, RunnableJobs | SampledJobs] = Cache(1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewCounts:
    """Numbers of jobs now and in the last hour."""

    #: Of a user: own jobs that have not ended; None for other roles.
    own: Mapping[JobStatus, JobCount] | None
    by_vo: Mapping[str, Mapping[JobStatus, int]]  #: jobs that have not ended
    per_second: float  #: matches, averaged over the last minutes
    ended: Mapping[JobStatus, int]  #: in the last hour
    pools: int
    there: Mapping[str, Mapping[JobStatus, int]]  #: by VO, at the sites that the caller administers

    @property
    def living(self) -> Counter[JobStatus]:
        """Jobs of all VOs that have not ended."""
        return sum((Counter(of_vo) for of_vo in self.by_vo.values()), Counter[JobStatus]())


#: States by which sites can be filtered, with their titles.
STATES: Final[Mapping[str, str]] = {
    "open": "open",
    "banned": "banned",
    "down": "in a downtime",
    "partly": "some CEs in a downtime",
    "closed": "closed by a throttle",
    "stale": "advertisement stale",
    "full": "a limit is full",
    "off": "switched off",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteGlance:
    """A site in one line."""

    state: SiteAnswer
    ces: int
    closed_ces: int  #: those that a downtime of theirs or of the site closes now
    queues: int
    enabled: int  #: queues that are not disabled
    running: int  #: jobs held by pilots
    pilots: int  #: that have not ended
    could_run: int  #: waiting jobs for which a queue is eligible

    @property
    def site(self) -> str:
        """Name of the site."""
        return self.state.site

    @property
    def closed(self) -> Sequence[ThrottleAnswer]:
        """The closed throttles."""
        return [each for each in self.state.throttles if not each.open]

    @property
    def stale(self) -> Sequence[ThrottleAnswer]:
        """The throttles with an outdated advertisement."""
        return [each for each in self.state.throttles if each.stale]

    @property
    def advertised_at(self) -> datetime | None:
        """Time of the latest advertisement."""
        return max((each.advertised_at for each in self.state.throttles if each.advertised_at), default=None)

    @property
    def words(self) -> frozenset[str]:
        """Those of `STATES` that hold."""
        states = {
            "banned": self.state.ban is not None,
            "down": self.state.is_closed(self.site) or 0 < self.ces == self.closed_ces,
            "closed": bool(self.closed),
            "stale": bool(self.stale),
            "off": bool(self.queues and not self.enabled),
            "full": any(each.full for each in self.state.limits),
        }
        found = {word for word, holds in states.items() if holds} or {"open"}
        return frozenset(found | {"partly"} if self.closed_ces and "down" not in found else found)


def count_overview(parts: Services, caller: Caller, *, now: datetime) -> OverviewCounts:
    """Numbers of jobs of the caller's VOs; of a user also the own ones."""
    since = now - timedelta(minutes=60)
    own: Mapping[JobStatus, JobCount] | None = None
    with parts.replica.reading() as conn:
        if caller.role is Role.USER:
            living = [status for status in JobStatus if status not in FINAL]
            own = search.count_by_status(
                conn, visibility.visible_jobs(caller, JobFilter(), now=now).where(STATUS, living)
            )
        by_vo = time_series.count_current(conn, caller.visible_vos)
        there = jobs_there(conn, caller, caller.own_sites) if caller.own_sites else {}
        number_of_pools = pools.count_pools(conn, vos=caller.visible_vos)
        lately = time_series.read_series(conn, vos=caller.visible_vos, since=since, until=now)
    matched = lately.came.get(JobStatus.MATCHED, [])[-_RECENT - 1 : -1]
    return OverviewCounts(
        own=own,
        by_vo=dict(sorted(by_vo.items())),
        per_second=sum(matched) / (60 * _RECENT),
        ended={status: sum(lately.came[status]) for status in sorted(FINAL & lately.came.keys())},
        pools=number_of_pools,
        there=there,
    )


def course(
    parts: Services, caller: Caller, *, vo: str = "", hours: int, step: timedelta, now: datetime
) -> StatusSeries:
    """Numbers of jobs of the caller's VOs over time, or of one of them."""
    vos = caller.visible_vos
    if vo:
        vos = frozenset({fold(vo)}) if vos is None else vos & {fold(vo)}
    with parts.replica.reading() as conn:
        since = now - timedelta(hours=hours)
        return time_series.read_series(conn, vos=vos, since=since, until=now, step=step)


def read_depths(
    parts: Services, caller: Caller, *, site: str | None = None, hours: int, now: datetime
) -> DepthSeries:
    """Waiting jobs that a site and its queues, or the caller's sites, could run over time.

    Of all VOs for admins of the site, else of the caller's.
    """
    sites, vos = None, caller.visible_vos
    if site is not None:
        vos = visibility.vos_at(caller, site)
    elif not (caller.is_operator or caller.vos):
        sites, vos = caller.own_sites, None
    since, step = now - timedelta(hours=hours), max(depths.INTERVAL, timedelta(hours=hours) / DEPTH_STEPS)
    with parts.replica.reading() as conn:
        return depths.read_depths(conn, site=site, sites=sites, vos=vos, since=since, until=now, step=step)


def list_glances(parts: Services, caller: Caller, sites: Sequence[str]) -> list[SiteGlance]:
    """Sites in the order given; jobs and pilots of other VOs count only for admins of the site."""
    config = parts.live.current
    places: defaultdict[str, list[QueueAddress]] = defaultdict(list)
    for address in config.addresses:
        places[address.site].append(address)
    with parts.replica.reading() as conn:
        there = occupancy.count_by_queue(conn)
    running, pilots = Counter[str](), Counter[str]()
    for (vo, address), at_queue in there.items():
        own = visibility.vos_at(caller, address.site)
        if own is None or vo in own:
            running[address.site] += at_queue.jobs
            pilots[address.site] += at_queue.pilots
    could_run = {
        of_all: _count_runnable(parts, None if of_all else caller.visible_vos).by_site
        for of_all in {caller.looks_after(site) for site in sites}
    }
    ces = {site: {f"{site}/{address.ce}" for address in there} for site, there in places.items()}
    return [
        SiteGlance(
            state=state,
            ces=len(ces.get(state.site, ())),
            closed_ces=sum(map(state.is_closed, ces.get(state.site, ()))),
            queues=len(places[state.site]),
            enabled=sum(config.enabled(address, "") for address in places[state.site]),
            running=running[state.site],
            pilots=pilots[state.site],
            could_run=could_run[caller.looks_after(state.site)].get(state.site, 0),
        )
        for state in queries_sites.summarize_sites(parts, caller, sites)
    ]


def count_at_queues(parts: Services, caller: Caller, site: str) -> Mapping[QueueAddress, QueueOccupancy]:
    """Jobs and pilots at the queues of a site now, of the VOs that the caller may count there."""
    own = visibility.vos_at(caller, site)
    with parts.replica.reading() as conn:
        there = occupancy.count_by_queue(conn)
    found: dict[QueueAddress, QueueOccupancy] = {}
    for (vo, address), more in there.items():
        if address.site == site and (own is None or vo in own):
            seen = found.get(address, QueueOccupancy(jobs=0, pilots=0))
            found[address] = QueueOccupancy(jobs=seen.jobs + more.jobs, pilots=seen.pilots + more.pilots)
    return found


def count_waiting_for_queues(parts: Services, caller: Caller, site: str) -> Mapping[QueueAddress, int]:
    """Waiting jobs that each queue of a site could run; of all VOs for admins of the site."""
    return _count_runnable(parts, None if caller.looks_after(site) else caller.visible_vos).count_by_queue(
        site
    )


def jobs_there(
    conn: Connection, caller: Caller, sites: Collection[str]
) -> Mapping[str, Mapping[JobStatus, int]]:
    """Jobs held by pilots at sites, by VO and status, as far as the caller may count them."""
    visible = [visibility.vos_at(caller, site) for site in sites]
    found = occupancy.count_by_vo(conn, sites)
    return {vo: jobs for vo, jobs in found.items() if all(own is None or vo in own for own in visible)}


def _count_runnable(parts: Services, vos: frozenset[str] | None) -> RunnableJobs | SampledJobs:
    """Waiting jobs of some VOs, cached for a few seconds, since pages refresh themselves."""
    config = parts.live.current

    def count() -> RunnableJobs | SampledJobs:
        with parts.replica.reading() as conn:
            waiting = explanations.classes(parts, conn, vos)
            if sum(map(work_budget.class_size, waiting)) > _COUNTED:
                latest = depths.read_latest(conn)
                if latest is not None and parts.clock() - latest <= 2 * depths.INTERVAL:
                    return SampledJobs(jobs=depths.read_sample(conn, vos))
            ads = job_conditions.read_job_ads(conn, config, waiting, needed=config.has_admission)
        return queue_report.count_runnable(config, waiting, ads)

    return _RUNNABLE.get(vos, count, (config, parts.clock().timestamp() // _CACHE_TIME))
