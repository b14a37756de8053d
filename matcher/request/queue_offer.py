"""The offer of a pilot in a queue, computed from the queue's parameters.

A pilot without other settings offers exactly this (`pilotage.fabric.pilot.offer`; a test holds the two
equal), so that explanations match real requests. Measurements of nodes are not included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cs_config.tree import cpu_time
from matcher.request import match_request
from matcher.request.node_keywords import UNSTATED
from requirements.diracx.specification import MEASURED_TAGS
from requirements.quantities import DETAILS, QUANTITIES, SlotQuantity
from requirements.resource import Resource
from requirements.values import Value, fold

Number = TypeVar("Number", int | None, float | None)


#: Parameters from which an offer is computed; queues with equal values have equal offers.
READ = (
    *("cputime", "maxcputime", "maxwallclocktime", "cpunormalizationfactor", "si00"),
    *("maxram", "maxrampercore", "numberofprocessors"),
    *(fold(name) for each in QUANTITIES for name in each.parameters),
    *("platform", "tag", "requiredtag", "wholenode", "jobtype", "architecture", "maxscratch", "cpupowerdb12"),
    *(fold(each.keyword) for each in DETAILS),
)


def build_resource(values: Mapping[str, Value], managed_types: frozenset[str] = frozenset()) -> Resource:
    """The resource that a queue with these effective parameters offers, without site and CE.

    `managed_types` are the VO's job types that only job managers handle; those in the queue's `JobType` are
    removed. A queue without `JobType` leaves open whether a gateway there requests such jobs.
    """
    known = {fold(name): value for name, value in values.items()}
    declared = _read_texts(known, "jobtype")
    missing = managed_types.difference(map(fold, declared)) if declared else frozenset[str]()
    required = _read_texts(known, "requiredtag")
    stated = {
        "CPUTime": cpu_time.find_offered(known),
        "MaxRAM": _read_ram(known),
        "NumberOfProcessors": cpu_time.read_number(known, "numberofprocessors") or 1,
        **{each.keyword: _read_quantity(known, each) for each in QUANTITIES},
        "Platform": _read_texts(known, "platform"),
        # A required tag is also offered.
        "Tag": [*_read_texts(known, "tag"), *required],
        "RequiredTag": required,
        "WholeNode": known.get("wholenode") is True,
        "WallTime": cpu_time.read_number(known, "maxwallclocktime") or cpu_time.read_limit(known),
        "MaxScratch": cpu_time.read_number(known, "maxscratch"),
        "Architecture": known.get("architecture"),
        "CPUPowerDB12": cpu_time.read_real(known, "cpupowerdb12"),
        **{each.keyword: known.get(fold(each.keyword)) for each in DETAILS},
    }
    resource = match_request.read_resource(
        {name: value for name, value in stated.items() if value not in (None, [])}
    ).resource
    resource = leave_open(resource, is_normalised=cpu_time.read_power(known) != 1)
    return replace(resource, managed_types=frozenset({(None, missing)})) if missing else resource


#: Attributes of a resource that its node has, whatever the queue leaves out.
_OF_NODES = ("architecture", "cpu_features", *(each.name for each in DETAILS))


#: DB12 power of a core that no node exceeds; larger than that of any processor today.
_MOST_POWER = 100.0


def leave_open(resource: Resource, *, is_normalised: bool = False) -> Resource:
    """The offer of a queue, of which the nodes decide what is not stated.

    Tags with a prefix of which the queue states one are stated; so is the power where its CPU time is
    normalised.
    """
    unstated: dict[str, Any] = {name: None for name in _OF_NODES if not getattr(resource, name)}
    if resource.cpu_power_db12 is None and not is_normalised:
        unstated["cpu_power_db12"] = _MOST_POWER
    stated = resource.literal_tags or frozenset()
    open_tags = (each for each in MEASURED_TAGS if not any(tag.startswith(each) for tag in stated))
    return replace(resource, open_tags=tuple(open_tags), **unstated)


#: Conditions that nodes decide where their queue leaves them open.
LEFT_TO_NODES = frozenset({"cpu_work", "tag_expression", "image", *_OF_NODES})


def reopen(resource: Resource, offered: Resource) -> Resource:
    """What a pilot states, but for what its queue, which offers `offered`, leaves to the nodes."""
    left: dict[str, Any] = {name: None for name in _OF_NODES if getattr(offered, name) is None}
    return replace(resource, open_tags=offered.open_tags, **left)


def close(resource: Resource) -> Resource:
    """The offer of a queue as far as it is stated: nodes that are no better than that."""
    stated = {name: getattr(resource, name) or UNSTATED[name] for name in _OF_NODES}
    power = None if resource.cpu_power_db12 == _MOST_POWER else resource.cpu_power_db12
    return replace(resource, open_tags=(), cpu_power_db12=power, **stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBounds:
    """Upper bounds of the slots of a queue; None: the queue does not state it."""

    processors: int | None = None
    max_ram: int | None = None  #: MB
    quantities: Mapping[str, int | None] = field(default_factory=dict)  #: of `QUANTITIES`, by name

    def bound(self, resource: Resource) -> Resource:
        """The resource of a pilot without what no slot of the queue has, whatever the pilot states."""
        processors = _bound(resource.processors, self.processors)
        tags = resource.tags
        if tags is not None and processors != resource.processors:
            stated, has = (
                match_request.core_tags(number or 0, whole_node=resource.whole_node)
                for number in (resource.processors, processors)
            )
            tags -= stated - has
        return replace(
            resource,
            processors=processors,
            tags=tags,
            max_ram=_bound(resource.max_ram, self.max_ram),
            **{name: _bound(getattr(resource, name), most) for name, most in self.quantities.items()},
        )


def read_bounds(values: Mapping[str, Value]) -> SlotBounds:
    """The bounds of a queue with these effective parameters; none if its slots are whole nodes."""
    known = {fold(name): value for name, value in values.items()}
    if known.get("wholenode") is True:
        return SlotBounds()
    return SlotBounds(
        processors=cpu_time.read_number(known, "numberofprocessors"),
        max_ram=_read_ram(known),
        quantities={each.name: _read_quantity(known, each) for each in QUANTITIES},
    )


def _bound(stated: Number, most: int | None) -> Number:
    return stated if stated is None or most is None else min(stated, most)


def read_power(values: Mapping[str, Value]) -> float:
    """Normalised seconds per second of the processors of a queue with these effective parameters."""
    return cpu_time.read_power({fold(name): value for name, value in values.items()})


def _read_ram(known: Mapping[str, Value]) -> int | None:
    """MB of a slot: `MaxRAM`, else `MaxRAMPerCore` of all its processors."""
    per_core = cpu_time.read_number(known, "maxrampercore")
    cores = cpu_time.read_number(known, "numberofprocessors") or 1
    return cpu_time.read_number(known, "maxram") or (per_core * cores if per_core else None)


def _read_quantity(known: Mapping[str, Value], quantity: SlotQuantity) -> int | None:
    stated = (cpu_time.read_number(known, fold(name)) for name in quantity.parameters)
    return next(filter(None, stated), None)


def _read_texts(known: Mapping[str, Value], name: str) -> list[str]:
    value = known.get(name)
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, tuple) else [str(value)]
