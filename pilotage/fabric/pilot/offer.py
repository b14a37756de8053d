"""The offer of a pilot's slot: its own settings, else the parameters of its queue.

Also finds the queue of a pilot that was not given one, because a broker picked its batch queue.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pilotage.fabric.pilot.allotment import WHOLE_NODE, Allotment
from pilotage.fabric.pilot.node import facts, slot_limits
from pilotage.fabric.pilot.node.gpus import list_devices
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot

#: CPU time offered if the length of the slot is unknown: three days.
_CPU_TIME = 259_200
#: Step of the offered time left: equal offers share one cached result in the matcher.
STEP = 300
#: Maximum normalised seconds per second; more is an error.
MOST_POWER = 1e6
#: The speed `SI00` of the processor for which `maxCPUTime` is stated without normalisation. Source: DIRAC.
REFERENCE_SI00 = 250
#: The fact with the DB12 power of a core.
POWER = "CPUPowerDB12"
#: Parameters of queues with the names of facts: the DB12 power, and what all its GPUs have.
_OF_NODES = (POWER, "GPUVendor", "GPUArchitecture", "GPUMemory", "GPURuntime")
#: The power if it is unknown.
_UNSTATED = 1.0


@dataclass(frozen=True)
class Offer:
    """The resources of a slot as they are offered."""

    place: QueuePlace
    cpu_time: int  #: seconds of this host, not normalised
    lifetime: int | None  #: seconds; None: no end
    max_ram: int | None  #: MB
    processors: int
    gpus: int  #: 0: none, or unknown
    whole_node: bool | None  #: whether a job may have the node for itself; None: unknown
    tags: tuple[object, ...]
    rest: Mapping[str, object]  #: further fields of the request
    scratch: int | None = None  #: MB of local disk; None: unknown
    granted_scratch: int | None = None  #: the same, if the batch system or the queue states it
    cpu_power: float = _UNSTATED  #: normalised seconds per second of this host

    def at(self, elapsed: float, free: Allotment | None = None) -> dict[str, object]:
        """Make the request for jobs, `elapsed` seconds after the pilot's start; `free` None: all is free."""
        cpu_time, wall_time = self.cpu_time, None
        if self.lifetime is not None:
            wall_time = self.seconds_offered(self.lifetime - elapsed)
            cpu_time = min(cpu_time, wall_time)
        said: dict[str, object] = {
            "Site": self.place.site,
            "GridCE": self.place.ce,
            "Queue": self.place.queue,
            "CPUTime": int(cpu_time * self.cpu_power),
            "WallTime": wall_time,
            **self._room(free),
        }
        return {**{name: value for name, value in said.items() if value not in (None, [])}, **self.rest}

    def whole(self, environment: Mapping[str, str]) -> Allotment:
        """The whole slot as an allotment; GPUs are named as the batch system names them."""
        named = list_devices(environment) if self.gpus else []
        known = named if len(named) >= self.gpus else [str(number) for number in range(self.gpus)]
        cpus = slot_limits.list_bound_cpus(self.processors)
        return Allotment(
            self.processors, self.max_ram, tuple(known[: self.gpus]), cpus=cpus, scratch_mb=self.scratch
        )

    def _room(self, free: Allotment | None) -> dict[str, object]:
        """The free resources; a whole node is offered only while it is all free."""
        if free is None or free.processors == self.processors:
            return {
                "NumberOfProcessors": self.processors,
                "MaxRAM": self.max_ram,
                "MaxScratch": self.scratch,
                "GPUs": self.gpus or None,
                "WholeNode": self.whole_node,
                "Tag": list(self.tags),
            }
        return {
            "NumberOfProcessors": free.processors,
            "MaxRAM": free.ram_mb,
            "MaxScratch": free.scratch_mb,
            "GPUs": len(free.gpus) or None,
            "Tag": [tag for tag in self.tags if str(tag).lower() != WHOLE_NODE],
        }

    def seconds_left(self, elapsed: float) -> float | None:
        """Seconds until the slot ends; None: no end."""
        return None if self.lifetime is None else max(0.0, self.lifetime - elapsed)

    def seconds_offered(self, seconds_left: float) -> int:
        """Time left as offered: in steps, so that the pilots of a queue make equal offers."""
        if self.lifetime is None or self.lifetime - seconds_left < STEP:
            return self.lifetime or 0
        return max(0, int(seconds_left) // STEP * STEP)

    def is_over(self, seconds_left: float) -> bool:
        """Whether too little time is left to start a job."""
        return self.lifetime is not None and seconds_left < min(STEP, self.lifetime / 4)

    @property
    def states_db12(self) -> bool:
        """Whether the service knows the DB12 power of a core."""
        found = self.rest.get("NodeFacts")
        has_fact = isinstance(found, Mapping) and POWER.lower() in map(str.lower, found)
        return has_fact or self.measured_power is not None

    def with_db12(self, power: float) -> Offer:
        """The offer with a measured DB12 power."""
        found = self.rest.get("NodeFacts")
        measured = {**(found if isinstance(found, Mapping) else {}), POWER: power}
        return replace(self, rest={**self.rest, "NodeFacts": measured})

    @property
    def measured_power(self) -> float | None:
        """Normalised seconds per second of this host; None: unknown, 1 is only assumed."""
        return None if self.cpu_power == _UNSTATED else self.cpu_power


def make_offer(
    place: QueuePlace,
    slot: Slot,
    job_filters: JobFilters,
    parameters: Mapping[str, Any],
    measured: Mapping[str, object] | None = None,
) -> Offer:
    """Make the offer of a slot from its settings, and from the effective parameters of its queue otherwise.

    Facts in `slot` take precedence over `measured` ones, too.
    """
    known = {name.lower(): value for name, value in parameters.items()}
    cpu_limit, wall_limit = read_cpu_limit(known), _number(known, "maxwallclocktime")
    cpu_time = slot.cpu_time or cpu_limit or wall_limit
    lifetime = slot.lifetime or wall_limit or cpu_limit
    processors = _least(slot.processors or _number(known, "numberofprocessors") or 1, slot.limits.processors)
    max_ram = slot.max_ram or read_ram(known, processors) or _share_of_memory(slot, processors)
    max_ram = _least(max_ram, slot.limits.max_ram)
    gpus = (_number(known, "gpus") or _number(known, "numberofgpus") or 0) if slot.gpus is None else slot.gpus
    stated = {"MaxRAM": max_ram, **read_node_parameters(known)}
    required = [*slot.required_tags, *_list(known.get("requiredtag"))]
    reported = facts.reportable_facts(facts.merge_facts(stated, measured or {}, slot.facts), known)
    rest: dict[str, object] = {
        "Architecture": None if "Architecture" in reported else known.get("architecture"),
        "Platform": slot.platform or known.get("platform"),
        "RequiredTag": required,
        "VO": job_filters.vo,
        "SubmitPool": list(job_filters.pools),
        "OwnerGroup": list(job_filters.owner_groups),
        "JobType": list(job_filters.job_types),
        "PilotReference": job_filters.reference,
        "NodeFacts": reported,
    }
    return Offer(
        place=place,
        cpu_time=cpu_time or lifetime or _CPU_TIME,
        lifetime=lifetime,
        max_ram=max_ram,
        processors=processors,
        gpus=_least(gpus, slot.limits.gpus),
        whole_node=slot.whole_node or _is_whole_by_queue(slot, known),
        scratch=_scratch(slot, known, processors),
        granted_scratch=_granted_scratch(slot, known),
        cpu_power=slot.cpu_power or _power(known),
        # A required tag is also offered, as the queue's own offer in the index has it.
        tags=(*slot.tags, *_list(known.get("tag")), *required),
        rest={name: value for name, value in rest.items() if value not in (None, [], (), {})},
    )


_Amount = TypeVar("_Amount", int, "int | None")


def _least(amount: _Amount, limit: int | None) -> _Amount:
    """An amount within the limit of the slot."""
    return amount if limit is None or amount is None else min(amount, limit)


def _share_of_memory(slot: Slot, processors: int) -> int | None:
    """Memory of a slot whose size nobody states: the part of the machine that goes with its processors."""
    machine, cores = facts.machine_memory(), os.cpu_count() or 1
    if machine is None or slot.whole_node or slot.limits.max_ram is not None:
        return machine
    return machine * min(processors, cores) // cores


def _granted_scratch(slot: Slot, known: Mapping[str, Any]) -> int | None:
    """Local disk that the batch system and the queue state."""
    stated, limit = _number(known, "maxscratch"), slot.limits.scratch
    return limit if stated is None else _least(stated, limit)


def _scratch(slot: Slot, known: Mapping[str, Any], processors: int) -> int | None:
    """Local disk: what the batch system and the queue state, else the part of the free disk.

    A part is in steps, because equal offers share one cached result in the matcher.
    """
    if (granted := _granted_scratch(slot, known)) is not None:
        return granted
    if slot.free_disk is None:
        return None
    cores = os.cpu_count() or 1
    part = slot.free_disk if slot.whole_node else slot.free_disk * min(processors, cores) // cores
    step: int = 10 ** max(0, len(str(part)) - 2)
    return part // step * step


def _is_whole_by_queue(slot: Slot, known: Mapping[str, Any]) -> bool | None:
    """Whether the queue states whole nodes, unless the slot was made smaller than its queue states."""
    stated, processors = _flag(known, "wholenode"), _number(known, "numberofprocessors")
    is_smaller = slot.processors is not None and processors is not None and slot.processors < processors
    return False if stated and is_smaller else stated


def _number(known: Mapping[str, Any], name: str) -> int | None:
    value = known.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = int(float(value))
    except (ValueError, OverflowError):
        return None
    return number if number > 0 else None


def _flag(known: Mapping[str, Any], name: str) -> bool | None:
    value = known.get(name)
    return value if isinstance(value, bool) else None


def read_cpu_limit(known: Mapping[str, Any]) -> int | None:
    """CPU seconds of a job by the parameters of its queue: `CPUTime`, else the minutes of `maxCPUTime`.

    Args:
        known: Parameters by lower-case names.
    """
    minutes = _number(known, "maxcputime")
    return _number(known, "cputime") or (60 * minutes if minutes else None)


def read_ram(known: Mapping[str, Any], processors: int) -> int | None:
    """MB of a slot by the parameters of its queue: `MaxRAM`, else `MaxRAMPerCore` of all its processors."""
    per_core = _number(known, "maxrampercore")
    return _number(known, "maxram") or (per_core * processors if per_core else None)


def read_node_parameters(parameters: Mapping[str, Any]) -> dict[str, object]:
    """What a queue states of its nodes that a pilot there measures otherwise, by fact."""
    known = {name.lower(): value for name, value in parameters.items()}
    return {name: known[name.lower()] for name in _OF_NODES if known.get(name.lower()) is not None}


def _power(known: Mapping[str, Any]) -> float:
    """CPU power of the queue's processors; where `maxCPUTime` is the limit, `SI00` has it as well.

    Source: DIRAC's CPUNormalizationFactor, and its CPUNormalization.
    """
    power = _real(known.get("cpunormalizationfactor"))
    if power is None and _number(known, "cputime") is None and _number(known, "maxcputime") is not None:
        power = _real(known.get("si00"), divided_by=REFERENCE_SI00)
    return power if power is not None and 0 < power <= MOST_POWER else _UNSTATED


def _real(value: Any, *, divided_by: int = 1) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) / divided_by if is_number else None


def _list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


#: Variable with which a site sets `Site/CE/Queue`; takes precedence over everything else.
QUEUE_VARIABLE = "PILOTAGE_PLACE"
#: File with the queue on a node all of whose jobs come through one queue.
QUEUE_FILE = Path("/etc/pilotage/place")
#: Variables with the batch queue of a job: Slurm, PBS, LSF, Grid Engine.
_BATCH_QUEUE = ("SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE", "QUEUE")
_PARTS = 3


def read_possible_queues(file: str) -> Mapping[str, str]:
    """Read a JSON file that maps batch queues to queues of the resource tree; raises ValueError."""
    try:
        said = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--possible-queues: {error}") from None
    if not isinstance(said, dict) or not all(isinstance(each, str) for each in said.values()):
        raise ValueError(f"--possible-queues: {file} does not map batch queues to queues")
    return said


def find_place(
    possible_queues: Mapping[str, str], environment: Mapping[str, str], file: Path = QUEUE_FILE
) -> QueuePlace:
    """Find the queue by the site's variable, the batch queue, or the node's file, in this order.

    Raises:
        ValueError: None of them names the queue.
    """
    if said := environment.get(QUEUE_VARIABLE, "").strip():
        return _parse_place(said, QUEUE_VARIABLE)
    batch_queues = [queue for name in _BATCH_QUEUE if (queue := environment.get(name))]
    for queue in batch_queues:
        if queue in possible_queues:
            return _parse_place(possible_queues[queue], f"the queue for the batch queue {queue}")
    if file.is_file():
        return _parse_place(file.read_text(encoding="utf-8").strip(), str(file))
    known = f", which is none of {', '.join(sorted(possible_queues))}" if possible_queues else ""
    where = f"in the batch queue {', '.join(batch_queues)}{known}" if batch_queues else "in no batch queue"
    raise ValueError(
        f"cannot determine the queue: {where}, and neither {QUEUE_VARIABLE} nor {file} names it;"
        " give --site, --ce and --queue"
    )


def _parse_place(said: str, by: str) -> QueuePlace:
    parts = said.split("/")
    if len(parts) != _PARTS or not all(parts):
        raise ValueError(f"{by}: {said!r:.200} is not an address of a queue, Site/CE/Queue")
    return QueuePlace(*parts)
