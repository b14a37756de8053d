"""Warnings of jobs that require hardware which no pilot of an eligible site had lately."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from sqlalchemy import Connection

from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from matcher import conditions
from matcher.conditions import Condition
from matcher.explain import queue_set
from matcher.explain.job_conditions import JobDemand
from requirements.requirement_class import RequirementClass
from taskqueue.pilots import hardware
from taskqueue.pilots.hardware import SeenHardware


def list_warnings(
    conn: Connection, config: Configuration, demands: Iterable[JobDemand], now: datetime
) -> Iterator[str]:
    """A warning for each demand that no hardware seen at its eligible sites fulfils.

    Without an eligible queue, and where no pilot of these sites was seen, nothing is known.
    """
    for demand in demands:
        days = options_for(config, demand.asked.vo).job_scheduling.unseen_hardware_days
        survey = queue_set.all_queues(config, demand.asked.vo)
        eligible = survey.eligible(demand)
        sites = [site for site, queues in survey.sites.items() if queues & eligible]
        seen = hardware.read_seen(conn, sites, since=now - timedelta(days=days + 1)) if sites else ()
        lacking = [_list_lacking(demand.asked, each) for each in seen]
        if lacking and all(lacking):
            nearest = min(lacking, key=len)
            yield (
                f"no pilot of an eligible site had such hardware in the last {days:g} days: the nearest "
                f"lacks {', '.join(nearest)}; `pilotage site hardware` lists what was seen"
            )


def _list_lacking(asked: RequirementClass, seen: SeenHardware) -> list[str]:
    """What of a demand a shape does not fulfil, as people see it."""
    refused = conditions.refusals(asked, seen.shape.to_resource(), ())
    return [_describe(conditions.BY_NAME[name], asked) for name in refused if name in conditions.BY_NAME]


def _describe(condition: Condition, asked: RequirementClass) -> str:
    for demand in condition.demands:
        for values in demand.list_values(asked):
            return f"{demand.keyword} ({demand.format_wanted(demand.isolate(values))})"
    return condition.name
