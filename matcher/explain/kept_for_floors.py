"""Sites where jobs of other VOs come first, since these have less than their floors and work that fits."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from cs_config.tree.configuration import Configuration
from matcher.explain import job_conditions, queue_set
from matcher.limits import floors, running_limits
from matcher.limits.floors import FloorStanding
from requirements.errors import format_count
from requirements.values import fold
from taskqueue.pilots import pilots
from taskqueue.task_queues import listing


def read_standings(
    conn: Connection, config: Configuration, sites: Collection[str], now: datetime
) -> Iterator[FloorStanding]:
    """The floors at those of the sites that have some, with what runs there now; advisory, without locks."""
    here = [site for site in sites if floors.list_vos(config, site)]
    for conditions in running_limits.read_conditions(conn, config, here, now).values():
        yield from floors.list_standings(conditions)


class FittingJobs:
    """Waiting jobs of VOs that queues of sites could run; the queues of each class are found once."""

    def __init__(self, conn: Connection, config: Configuration) -> None:
        self._conn = conn
        self._config = config
        self._of_vos: dict[str, list[tuple[int, int]]] = {}  # bitmaps of queues, with numbers of jobs

    def count(self, vo: str, site: str) -> int:
        """The waiting jobs of a VO that a queue of a site could run."""
        here = queue_set.all_queues(self._config, vo).sites.get(site, 0)
        if vo not in self._of_vos:
            self._of_vos[vo] = self._read(vo)
        return sum(jobs for queues, jobs in self._of_vos[vo] if here & queues)

    def _read(self, vo: str) -> list[tuple[int, int]]:
        waiting = listing.list_waiting(self._conn, {vo})
        ads = job_conditions.read_job_ads(
            self._conn, self._config, waiting, needed=self._config.has_admission
        )
        fulfilling = queue_set.all_queues(self._config, vo).fulfilling
        return [(fulfilling(job_conditions.waiting_conditions(each, ads)), each.jobs) for each in waiting]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSite:
    """A site that is kept for another VO."""

    site: str
    why: str
    is_closed: bool  #: a pilot of the other VO waits there: those that do not serve it get nothing


def list_kept_sites(
    conn: Connection, config: Configuration, vo: str, sites: Collection[str], now: datetime
) -> Iterator[KeptSite]:
    """Sites where jobs of a VO come after those of others.

    Whoever may see one of its jobs reads them: they state that jobs of the other VO wait, and not how many.
    """
    standings = list(read_standings(conn, config, sites, now))
    own = {fold(each.site) for each in standings if each.vo == vo and each.is_below}
    others = [each for each in standings if each.is_below and each.vo != vo and fold(each.site) not in own]
    fitting, expected = (
        FittingJobs(conn, config),
        pilots.list_expected(conn, now=now) if others else frozenset(),
    )
    for each in others:
        if fitting.count(each.vo, each.site):
            is_expected = (each.vo, each.site) in expected
            lent = (
                "" if is_expected else "; no pilot of it waits there, so only pilots that serve both keep it"
            )
            yield KeptSite(
                site=each.site, why=f"{each.site} is {describe(each)}{lent}", is_closed=is_expected
            )


def describe(standing: FloorStanding, fitting: int | None = None) -> str:
    """For whom a site is kept, as text for people.

    Args:
        standing: Of the VO.
        fitting: Waiting jobs of the VO that could run there, for those who may count them; None: some.
    """
    some = "some of its waiting jobs fit"
    waiting = some if fitting is None else format_count(fitting, "waiting job fits", "waiting jobs fit")
    return f"kept for {standing.vo} before others: it has {standing.why}, and {waiting}"
