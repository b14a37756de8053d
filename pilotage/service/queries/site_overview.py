"""One line per site: state, jobs, pilots, and waiting jobs that it could run."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from cs_config.tree import admission_cache
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.explain import parameter_impact
from matcher.limits import job_groups
from pilotage.service.auth import visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models.sites import SiteAnswer, ThrottleAnswer
from pilotage.service.queries import explanations
from pilotage.service.queries import sites as queries_sites
from pilotage.service.services import Services
from taskqueue.db import database
from taskqueue.sites import occupancy
from taskqueue.sites.occupancy import QueueOccupancy
from taskqueue.states import JobStatus
from taskqueue.task_queues import listing

#: How long a count of waiting jobs is cached: its cost grows with the number of classes.
_CACHE_TIME = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """Number of waiting jobs that each site could run, with the time of counting."""

    jobs: Counter[str]
    at: datetime


#: Cache by configuration and VOs (None: all).
_REACHED: WeakKeyDictionary[Configuration, dict[frozenset[str] | None, _Reached]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteGlance:
    """A site in one line."""

    state: SiteAnswer
    ces: int
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
        """States by which sites can be filtered."""
        found = {"banned"} if self.state.ban else set()
        found |= {"closed"} if self.closed else set()
        found |= {"stale"} if self.stale else set()
        found |= {"off"} if self.queues and not self.enabled else set()
        found |= {"full"} if any(each.full for each in self.state.limits) else set()
        return frozenset(found or {"open"})


def list_glances(parts: Services, caller: Caller, sites: Sequence[str]) -> list[SiteGlance]:
    """Sites in the order given; jobs and pilots of other VOs count only for admins of the site."""
    config = parts.live.current
    places: defaultdict[str, list[QueueAddress]] = defaultdict(list)
    for address in config.addresses:
        places[address.site].append(address)
    with database.reading(parts.engine) as conn:
        there = occupancy.count_by_queue(conn)
    could_run = _could_run(parts, caller)
    running, pilots = _present(caller, there)
    return [
        SiteGlance(
            state=state,
            ces=len({address.ce for address in places[state.site]}),
            queues=len(places[state.site]),
            enabled=sum(config.enabled(address, "") for address in places[state.site]),
            running=running[state.site],
            pilots=pilots[state.site],
            could_run=could_run[caller.looks_after(state.site)][state.site],
        )
        for state in queries_sites.briefly(parts, caller, sites)
    ]


def jobs_there(
    conn: Connection, caller: Caller, sites: Collection[str]
) -> Mapping[str, Mapping[JobStatus, int]]:
    """Jobs held by pilots at sites, by VO and status, as far as the caller may count them."""
    visible = [visibility.vos_at(caller, site) for site in sites]
    found = occupancy.count_by_vo(conn, sites)
    return {vo: jobs for vo, jobs in found.items() if all(own is None or vo in own for own in visible)}


def _present(
    caller: Caller, there: Mapping[tuple[str, QueueAddress], QueueOccupancy]
) -> tuple[Counter[str], Counter[str]]:
    running, pilots = Counter[str](), Counter[str]()
    for (vo, address), at_queue in there.items():
        own = visibility.vos_at(caller, address.site)
        if own is None or vo in own:
            running[address.site] += at_queue.jobs
            pilots[address.site] += at_queue.pilots
    return running, pilots


def _could_run(parts: Services, caller: Caller) -> Mapping[bool, Counter[str]]:
    """Waiting jobs by site, keyed by whether all VOs count, as they do for admins of the site."""
    is_everyones = caller.visible_vos is None or caller.own_sites
    of_all = _reached(parts, None) if is_everyones else Counter[str]()
    return {True: of_all, False: _reached(parts, caller.visible_vos)}


def _reached(parts: Services, vos: frozenset[str] | None) -> Counter[str]:
    """Waiting jobs by site for some VOs, cached for a few seconds, since pages refresh themselves."""
    config, now = parts.live.current, parts.clock()
    remembered = _REACHED.setdefault(config, {})
    cached = remembered.get(vos)
    if cached is None or not timedelta() <= now - cached.at < _CACHE_TIME:
        with database.reading(parts.engine) as conn:
            cached = remembered[vos] = _Reached(jobs=_count(parts, conn, vos), at=now)
    return cached.jobs


def _count(parts: Services, conn: Connection, vos: frozenset[str] | None) -> Counter[str]:
    config = parts.live.current
    waiting = explanations.classes(parts, conn, vos)
    jobs = listing.list_first_jobs(conn, waiting) if admission_cache.is_configured(config) else ()
    return parameter_impact.runnable_by_site(
        config, waiting, {job.job_id: job_groups.job_ad(job) for job in jobs}
    )
