"""The offer of a pilot in a queue, computed from the queue's parameters.

A pilot without other settings offers exactly this (`pilotage.fabric.pilot.offer`; a test holds the two
equal), so that explanations match real requests. Measurements of nodes are not included.
"""

from collections.abc import Mapping
from dataclasses import replace

from cs_config.options import bounds
from matcher.request import match_request
from matcher.request.resource import Resource
from requirements.values import Value, fold

#: Default CPU time in seconds: three days.
CPU_TIME = 259_200


#: Parameters from which an offer is computed; queues with equal values have equal offers.
READ = (
    *("cputime", "maxwallclocktime", "cpunormalizationfactor", "maxram", "numberofprocessors", "gpus"),
    *("platform", "tag", "requiredtag", "wholenode", "jobtype"),
)


def build_resource(values: Mapping[str, Value], managed_types: frozenset[str] = frozenset()) -> Resource:
    """The resource that a queue with these effective parameters offers, without site and CE.

    `managed_types` are the VO's job types that only job managers handle; those in the queue's `JobType` are
    removed.

    Raises:
        InvalidResource: Contradictory parameters, such as `RequiredTag` where `Tag` is any.
    """
    known = {fold(name): value for name, value in values.items()}
    missing = managed_types.difference(map(fold, _read_texts(known, "jobtype")))
    resource = _cached_resource(
        cpu_time=_cpu_time(known),
        max_ram=_read_number(known, "maxram"),
        processors=_read_number(known, "numberofprocessors") or 1,
        gpus=_read_number(known, "gpus"),
        platform=_read_texts(known, "platform"),
        tag=_read_texts(known, "tag"),
        required_tag=_read_texts(known, "requiredtag"),
        whole_node=known.get("wholenode") is True,
    )
    return replace(resource, managed_types=frozenset({("", missing)})) if missing else resource


def _cached_resource(
    *,
    cpu_time: int,
    max_ram: int | None,
    processors: int,
    gpus: int | None,
    platform: tuple[str, ...],
    tag: tuple[str, ...],
    required_tag: tuple[str, ...],
    whole_node: bool,
) -> Resource:
    stated = {
        "CPUTime": cpu_time,
        "MaxRAM": max_ram,
        "NumberOfProcessors": processors,
        "GPUs": gpus,
        "Platform": list(platform),
        # A required tag is also offered.
        "Tag": [*tag, *required_tag],
        "RequiredTag": list(required_tag),
        "WholeNode": whole_node,
    }
    return match_request.read_resource(
        {name: value for name, value in stated.items() if value not in (None, [])}
    ).resource


def _cpu_time(known: Mapping[str, Value]) -> int:
    limits = [_read_number(known, name) for name in ("cputime", "maxwallclocktime")]
    return int(min((limit for limit in limits if limit), default=CPU_TIME) * _cpu_power(known))


def _cpu_power(known: Mapping[str, Value]) -> float:
    """Normalised seconds per second of the queue's processors, 1 by default."""
    value = known.get("cpunormalizationfactor")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1.0
    return float(value) if 0 < value <= bounds.POWER else 1.0


def _read_number(known: Mapping[str, Value], name: str) -> int | None:
    value = known.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(float(value))
    except (ValueError, OverflowError):
        return None
    return number if number > 0 else None


def _read_texts(known: Mapping[str, Value], name: str) -> tuple[str, ...]:
    value = known.get(name)
    if value is None:
        return ()
    return tuple(str(item) for item in value) if isinstance(value, tuple) else (str(value),)
