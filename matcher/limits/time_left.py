"""The time that is left at a place before its next downtime: a job that would not end before is not sent."""

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from matcher.conditions import COLUMNS, CONDITIONS
from matcher.request import queue_offer
from requirements.column_index import SingleItem
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from requirements.values import Value

#: Seconds by which the time left is rounded down: pilots that ask within them get the same answer.
STEP: Final = 60
#: The attributes of a resource that end with the time left, and the conditions that depend on them.
_BOUNDED: Final = frozenset({"cpu_time", "wall_time"})
_CONDITIONS: Final = tuple(each for each in CONDITIONS if _BOUNDED.intersection((each.capacity, *each.reads)))


def bound(resource: Resource, begins: datetime, now: datetime, values: Mapping[str, Value]) -> Resource:
    """What the resource can do until a downtime begins; `values` are the parameters of its queue.

    Its wall time ends then. Its CPU time is what a core does until then: as much as it states for its wall
    time, at least with the power of its queue.
    """
    left = max(0.0, (begins - now).total_seconds() // STEP * STEP)
    stated = resource.cpu_time / resource.wall_time if resource.wall_time else 0.0
    cpu_time = min(resource.cpu_time, left * max(stated, queue_offer.read_power(values)))
    bounded = replace(resource, cpu_time=cpu_time, wall_time=min(left, _find_wall_time(resource)))
    return resource if bounded == resource else bounded


def _find_wall_time(resource: Resource) -> float:
    """The wall time of a resource; of one that states none, as far as its CPU time goes."""
    if resource.wall_time is not None:
        return resource.wall_time
    return resource.cpu_time / resource.cpu_power_db12 if resource.cpu_power_db12 else math.inf


def is_enough(resource: Resource, asked: RequirementClass) -> bool:
    """Whether the job has the time that it asks for."""
    job = SingleItem(asked, COLUMNS)
    return all(each.select(job, resource) for each in _CONDITIONS)
