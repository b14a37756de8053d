"""Numbers and problems for the overview page."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from agents import loop
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models.jobs import JobFilter
from pilotage.service.models.sites import SiteAnswer
from pilotage.service.queries import site_overview
from pilotage.service.queries import sites as queries_sites
from pilotage.service.services import Services
from taskqueue.accounting import time_series
from taskqueue.accounting.time_series import StatusSeries
from taskqueue.db import agent_leases, database
from taskqueue.jobs import search, unmatchable
from taskqueue.jobs.search import JobCount
from taskqueue.pools import pools
from taskqueue.sites import bans, scopes
from taskqueue.states import FINAL, JobStatus

#: Minutes over which matches are averaged, without the current minute.
_RECENT = 5
#: Counting of jobs in pools without a queue stops here.
MOST_STUCK = 10_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewTroubles:
    """Problems that concern the caller."""

    stuck_pools: int  #: pools without an eligible queue
    stuck_jobs: int  #: waiting jobs in these pools, counted up to `MOST_STUCK`
    banned: Sequence[SiteAnswer]
    throttled: Sequence[SiteAnswer]  #: closed by a throttle of the site, a CE or queue
    stale: Sequence[SiteAnswer]  #: with an outdated advertisement
    silent: Sequence[str]  #: overdue agents; for operators, who can restart them
    configuration: str | None  #: fault of the latest version; for operators

    @property
    def are_none(self) -> bool:
        """Whether there are no problems; a full site is not a problem."""
        return not (self.stuck_jobs or self.banned or self.stale or self.silent or self.configuration)


def standing(parts: Services, caller: Caller, *, now: datetime) -> OverviewCounts:
    """Numbers of jobs of the caller's VOs; of a user also the own ones."""
    since = now - timedelta(minutes=60)
    with database.reading(parts.engine) as conn:
        own = _own(conn, caller)
        by_vo = time_series.count_current(conn, caller.visible_vos)
        there = site_overview.jobs_there(conn, caller, caller.own_sites) if caller.own_sites else {}
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


def course(parts: Services, caller: Caller, *, hours: int, step: timedelta, now: datetime) -> StatusSeries:
    """Numbers of jobs of the caller's VOs over time."""
    with database.reading(parts.engine) as conn:
        since = now - timedelta(hours=hours)
        return time_series.read_series(conn, vos=caller.visible_vos, since=since, until=now, step=step)


def troubles(parts: Services, caller: Caller, *, now: datetime) -> OverviewTroubles:
    """Problems at the caller's sites and in its VOs."""
    config = parts.live.current
    sites = visibility.concerned_sites(caller, config)
    with database.reading(parts.engine) as conn:
        stuck = unmatchable.list_pools_without_queue(conn, caller.visible_vos)
        jobs = unmatchable.count_waiting_jobs(conn, stuck, most=MOST_STUCK)
        banned = {each.site for each in bans.list_bans(conn, now=now)} & sites
        latest = agent_leases.list_last_cycles(conn) if caller.is_operator else None
    states = _states(parts, caller, sites, banned)
    return OverviewTroubles(
        stuck_pools=len(stuck),
        stuck_jobs=jobs,
        banned=[each for each in states if each.ban],
        throttled=[each for each in states if any(not one.open for one in each.throttles)],
        stale=[each for each in states if any(one.stale for one in each.throttles)],
        silent=loop.list_overdue(latest, now=now) if latest is not None else (),
        configuration=parts.live.problem if caller.is_operator else None,
    )


def _own(conn: Connection, caller: Caller) -> Mapping[JobStatus, JobCount] | None:
    if caller.role is not Role.USER:
        return None
    living = [status for status in JobStatus if status not in FINAL]
    return search.count_by_status(conn, visibility.visible_jobs(caller, JobFilter(status=living)))


def _states(
    parts: Services, caller: Caller, sites: Collection[str], banned: Collection[str]
) -> Sequence[SiteAnswer]:
    """Only sites with a throttle or a ban: others have no problems."""
    limited = {scopes.parse_site(scope) for scope in parts.live.current.throttles} & set(sites)
    return queries_sites.briefly(parts, caller, sorted(limited | set(banned)))
