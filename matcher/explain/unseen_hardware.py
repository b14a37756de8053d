"""Hardware that a job requires and no pilot of an eligible site had lately."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from matcher import conditions
from matcher.explain import queue_set
from matcher.explain.job_conditions import JobDemand
from requirements.requirement_class import RequirementClass
from taskqueue.pilots import hardware
from taskqueue.pilots.hardware import HardwareShape

#: Different shapes that a job is compared with; where sites had more, nothing is told.
_MOST_SHAPES: Final = 2_000


def list_warnings(
    conn: Connection, config: Configuration, demands: Iterable[JobDemand], now: datetime
) -> Iterator[str]:
    """A warning for each demand that no hardware seen at its eligible sites fulfils."""
    for demand in demands:
        if text := find_lacking(conn, config, demand, now):
            yield text


def find_lacking(conn: Connection, config: Configuration, demand: JobDemand, now: datetime) -> str | None:
    """What no hardware seen at eligible sites had of a demand, in the days that the VO sets, else all.

    None: some had all of it. Without an eligible queue, and where no pilot of these sites was seen, nothing
    is known.
    """
    stated = options_for(config, demand.asked.vo).job_scheduling.unseen_hardware_days
    days = stated or hardware.KEPT.days
    survey = queue_set.all_queues(config, demand.asked.vo)
    eligible = survey.eligible(demand)
    sites = [site for site, queues in survey.sites.items() if queues & eligible]
    since = now - timedelta(days=days + 1)
    seen = hardware.read_shapes(conn, sites, since=since, most=_MOST_SHAPES) if sites else ()
    if not seen or any(conditions.fits(demand.asked, each.to_resource()) for each in seen):
        return None
    nearest = min((_list_lacking(demand.asked, each) for each in seen), key=len)
    return (
        f"no pilot of an eligible site had such hardware in the last {days:g} days: the nearest "
        f"lacks {', '.join(nearest)}; `pilotage site hardware` lists what was seen"
    )


def _list_lacking(asked: RequirementClass, shape: HardwareShape) -> list[str]:
    """What of a demand a shape does not fulfil, as people see it."""
    refused = conditions.refusals(asked, shape.to_resource(), ())
    return [conditions.BY_NAME[name].describe(asked) for name in refused if name in conditions.BY_NAME]
