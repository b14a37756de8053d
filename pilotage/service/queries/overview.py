"""How things stand, for who asks: their jobs, what moves, and what needs a look."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from agents import schedule
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

#: Minutes whose matches are averaged; the last one is not over.
_RECENT = 5
#: Jobs of pools without a queue that are counted.
MOST_STUCK = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewCounts:
    """The jobs now, and what became of them lately."""

    own: (
        Mapping[JobStatus, JobCount] | None
    )  #: of a user, those that have not ended; None: he has no own ones
    by_vo: Mapping[str, Mapping[JobStatus, int]]  #: that have not ended
    per_second: float  #: matches, over the last minutes
    ended: Mapping[JobStatus, int]  #: in the last hour
    pools: int
    there: Mapping[str, Mapping[JobStatus, int]]  #: by VO, at the sites that one looks after

    @property
    def living(self) -> Counter[JobStatus]:
        """The jobs of all VOs together that have not ended."""
        return sum((Counter(of_vo) for of_vo in self.by_vo.values()), Counter[JobStatus]())


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewTroubles:
    """What needs a look, as far as it concerns who asks."""

    stuck_pools: int  #: no queue is eligible for them
    stuck_jobs: int  #: that wait in these; counted up to `MOST_STUCK`
    banned: Sequence[SiteAnswer]
    throttled: Sequence[SiteAnswer]  #: that let nothing in by a throttle of the site, a CE or queue
    stale: Sequence[SiteAnswer]  #: whose advertisement is too old
    silent: Sequence[str]  #: agents that nobody runs; only operators can help it
    configuration: str | None  #: what is wrong with the latest one; told to operators

    @property
    def are_none(self) -> bool:
        """Whether everything is as it should be; to be full is no trouble of a site."""
        return not (self.stuck_jobs or self.banned or self.stale or self.silent or self.configuration)


def standing(parts: Services, caller: Caller, *, now: datetime) -> OverviewCounts:
    """The jobs that the caller may know of: of its VOs; a user's own besides."""
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
    """How the jobs of the caller's VOs stood and moved."""
    with database.reading(parts.engine) as conn:
        since = now - timedelta(hours=hours)
        return time_series.read_series(conn, vos=caller.visible_vos, since=since, until=now, step=step)


def troubles(parts: Services, caller: Caller, *, now: datetime) -> OverviewTroubles:
    """What needs a look at the caller's sites and in its VOs."""
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
        silent=schedule.list_overdue(latest, now=now) if latest is not None else (),
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
    """Only sites that a throttle or a ban may close: of the others there is nothing to tell."""
    limited = {scopes.parse_site(scope) for scope in parts.live.current.throttles} & set(sites)
    return queries_sites.briefly(parts, caller, sorted(limited | set(banned)))
