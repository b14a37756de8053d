"""How things stand, for who asks: their jobs, what moves, and what needs a look."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from agents import silence
from pilotage.service import job_scope, site_overview, site_scope, site_states
from pilotage.service.callers import Caller, Role
from pilotage.service.models.job_filter import JobFilter
from pilotage.service.models.sites import SiteAnswer
from pilotage.service.parts import Parts
from taskqueue import agent_cycles, bans, database, job_counts, pools, scopes, stuck_jobs
from taskqueue.accounting import series
from taskqueue.accounting.series import Series
from taskqueue.job_counts import Count
from taskqueue.states import FINAL, JobStatus

#: Minutes whose matches are averaged; the last one is not over.
_RECENT = 5
#: Jobs of pools without a queue that are counted.
MOST_STUCK = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The jobs now, and what became of them lately."""

    own: Mapping[JobStatus, Count] | None  #: of a user, those that have not ended; None: he has no own ones
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
class Troubles:
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


def standing(parts: Parts, caller: Caller, *, now: datetime) -> Standing:
    """The jobs that the caller may know of: of its VOs; a user's own besides."""
    since = now - timedelta(minutes=60)
    with database.reading(parts.engine) as conn:
        own = _own(conn, caller)
        by_vo = series.stocks(conn, caller.visible_vos)
        there = site_overview.jobs_there(conn, caller, caller.own_sites) if caller.own_sites else {}
        number_of_pools = pools.count(conn, vos=caller.visible_vos)
        lately = series.series(conn, vos=caller.visible_vos, since=since, until=now)
    matched = lately.came.get(JobStatus.MATCHED, [])[-_RECENT - 1 : -1]
    return Standing(
        own=own,
        by_vo=dict(sorted(by_vo.items())),
        per_second=sum(matched) / (60 * _RECENT),
        ended={status: sum(lately.came[status]) for status in sorted(FINAL & lately.came.keys())},
        pools=number_of_pools,
        there=there,
    )


def course(parts: Parts, caller: Caller, *, hours: int, step: timedelta, now: datetime) -> Series:
    """How the jobs of the caller's VOs stood and moved."""
    with database.reading(parts.engine) as conn:
        since = now - timedelta(hours=hours)
        return series.series(conn, vos=caller.visible_vos, since=since, until=now, step=step)


def troubles(parts: Parts, caller: Caller, *, now: datetime) -> Troubles:
    """What needs a look at the caller's sites and in its VOs."""
    config = parts.live.current
    sites = site_scope.of_concern(caller, config)
    with database.reading(parts.engine) as conn:
        stuck = stuck_jobs.pools_without_queue(conn, caller.visible_vos)
        jobs = stuck_jobs.count_waiting(conn, stuck, most=MOST_STUCK)
        banned = {each.site for each in bans.current(conn, now=now)} & sites
        latest = agent_cycles.latest(conn) if caller.is_operator else None
    states = _states(parts, caller, sites, banned)
    return Troubles(
        stuck_pools=len(stuck),
        stuck_jobs=jobs,
        banned=[each for each in states if each.ban],
        throttled=[each for each in states if any(not one.open for one in each.throttles)],
        stale=[each for each in states if any(one.stale for one in each.throttles)],
        silent=silence.silent(latest, now=now) if latest is not None else (),
        configuration=parts.live.problem if caller.is_operator else None,
    )


def _own(conn: Connection, caller: Caller) -> Mapping[JobStatus, Count] | None:
    if caller.role is not Role.USER:
        return None
    living = [status for status in JobStatus if status not in FINAL]
    return job_counts.by_status(conn, job_scope.visible(caller, JobFilter(status=living)))


def _states(
    parts: Parts, caller: Caller, sites: Collection[str], banned: Collection[str]
) -> Sequence[SiteAnswer]:
    """Only sites that a throttle or a ban may close: of the others there is nothing to tell."""
    limited = {scopes.site_of(scope) for scope in parts.live.current.throttles} & set(sites)
    return site_states.briefly(parts, caller, sorted(limited | set(banned)))
