"""Sites where jobs of other VOs come first, since these have less than their floors and work that fits."""

from collections.abc import Collection, Iterator
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


def count_fitting(conn: Connection, config: Configuration, vo: str, site: str) -> int:
    """The waiting jobs of a VO that a queue of a site could run."""
    waiting = listing.list_waiting(conn, {vo})
    ads = job_conditions.read_job_ads(conn, config, waiting, needed=config.has_admission)
    whole = queue_set.all_queues(config, vo)
    here = whole.sites.get(site, 0)
    fitting = (
        each.jobs for each in waiting if here & whole.fulfilling(job_conditions.waiting_conditions(each, ads))
    )
    return sum(fitting)


def list_reasons(
    conn: Connection, config: Configuration, vo: str, sites: Collection[str], now: datetime
) -> Iterator[str]:
    """Why jobs of a VO come after those of others at some sites, as texts."""
    standings = list(read_standings(conn, config, sites, now))
    own = {fold(each.site) for each in standings if each.vo == vo and each.is_below}
    for each in standings:
        if not each.is_below or each.vo == vo or fold(each.site) in own:
            continue
        if number := count_fitting(conn, config, each.vo, each.site):
            is_expected = pilots.is_expected(conn, each.vo, each.site)
            lent = (
                "" if is_expected else "; no pilot of it waits there, so only pilots that serve both keep it"
            )
            yield f"{each.site} is {describe(each, number)}{lent}"


def describe(standing: FloorStanding, fitting: int) -> str:
    """For whom a site is kept, as text for people; `fitting`: waiting jobs of the VO that could run there."""
    waiting = format_count(fitting, "waiting job fits", "waiting jobs fit")
    return f"kept for {standing.vo} before others: it has {standing.why}, and {waiting}"
