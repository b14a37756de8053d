"""What the pilot offers when it asks for work: what it was told, else what its queue is configured with.

Where a pilot is that was not told: a broker picked its batch queue, and the place itself says which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotage.fabric.pilot.allotment import WHOLE_NODE, Allotment
from pilotage.fabric.pilot.node import facts
from pilotage.fabric.pilot.payload.environment import DEVICES
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot

#: What is offered where nobody says how long the slot lasts: three days.
_CPU_TIME = 259_200
#: The time left is told in steps: what all pilots say alike the matcher remembers.
STEP = 300
#: Normalised seconds in a second; beyond that it is no power.
MOST_POWER = 1e6
#: The power where nobody says.
_UNSTATED = 1.0


@dataclass(frozen=True)
class Offer:
    """A slot as it is offered."""

    place: QueuePlace
    cpu_time: int  #: seconds of this host, not normalised
    lifetime: int | None  #: seconds, None: no end in sight
    max_ram: int | None  #: MB
    processors: int
    gpus: int  #: 0: none, or nobody knows
    whole_node: bool | None  #: whether a job may have the node for itself; None: nobody says
    tags: tuple[object, ...]
    rest: Mapping[str, object]  #: further names of the request, as they are
    cpu_power: float = _UNSTATED  #: normalised seconds in a second of this host

    def at(self, elapsed: float, free: Allotment | None = None) -> dict[str, object]:
        """The request for work.

        Args:
            elapsed: Seconds since the start of the pilot.
            free: What is left of the slot; None: all of it.
        """
        said: dict[str, object] = {
            "Site": self.place.site,
            "GridCE": self.place.ce,
            "Queue": self.place.queue,
            "CPUTime": self._cpu_time_left(elapsed),
            **self._room(free),
        }
        return {**{name: value for name, value in said.items() if value not in (None, [])}, **self.rest}

    def whole(self, environment: Mapping[str, str]) -> Allotment:
        """The slot; its GPUs have the names that our own environment gives them."""
        named = [name for name in environment.get(DEVICES, "").split(",") if name]
        known = named if len(named) >= self.gpus else [str(number) for number in range(self.gpus)]
        return Allotment(self.processors, self.max_ram, tuple(known[: self.gpus]))

    def _room(self, free: Allotment | None) -> dict[str, object]:
        """What jobs would share; a whole node is offered only as long as it is one."""
        if free is None or free.processors == self.processors:
            return {
                "NumberOfProcessors": self.processors,
                "MaxRAM": self.max_ram,
                "GPUs": self.gpus or None,
                "WholeNode": self.whole_node,
                "Tag": list(self.tags),
            }
        return {
            "NumberOfProcessors": free.processors,
            "MaxRAM": free.ram_mb,
            "GPUs": len(free.gpus) or None,
            "Tag": [tag for tag in self.tags if str(tag).lower() != WHOLE_NODE],
        }

    def seconds_left(self, elapsed: float) -> float | None:
        """Seconds until the slot ends; None: it does not."""
        return None if self.lifetime is None else max(0.0, self.lifetime - elapsed)

    def seconds_offered(self, seconds_left: float) -> int:
        """Seconds that are told to be left: in steps, so that the pilots of a queue look alike."""
        if self.lifetime is None or self.lifetime - seconds_left < STEP:
            return self.lifetime or 0
        return max(0, int(seconds_left) // STEP * STEP)

    def is_over(self, seconds_left: float) -> bool:
        """Whether so little is left of the slot that no job should begin."""
        return self.lifetime is not None and seconds_left < min(STEP, self.lifetime / 4)

    @property
    def measured_power(self) -> float | None:
        """Normalised seconds in a second of this host; None: nobody said, 1 is only a way to reckon."""
        return None if self.cpu_power == _UNSTATED else self.cpu_power

    def _cpu_time_left(self, elapsed: float) -> int:
        """Normalised seconds."""
        if self.lifetime is None:
            return self._normalised(self.cpu_time)
        return self._normalised(min(self.cpu_time, self.seconds_offered(self.lifetime - elapsed)))

    def _normalised(self, seconds: int) -> int:
        return int(seconds * self.cpu_power)


def make_offer(
    place: QueuePlace,
    slot: Slot,
    wishes: JobFilters,
    parameters: Mapping[str, Any],
    measured: Mapping[str, object] | None = None,
) -> Offer:
    """The offer of a slot.

    Args:
        place: Where it is.
        slot: What was told; it wins.
        wishes: Which jobs are wanted.
        parameters: Effective parameters of the queue, by name.
        measured: Facts about this node; those that were told win.
    """
    known = {name.lower(): value for name, value in parameters.items()}
    cpu_time = slot.cpu_time or _number(known, "cputime") or _number(known, "maxwallclocktime")
    lifetime = slot.lifetime or _number(known, "maxwallclocktime") or _number(known, "cputime")
    max_ram = slot.max_ram or _number(known, "maxram") or facts.machine_memory()
    rest: dict[str, object] = {
        "Platform": slot.platform or known.get("platform"),
        "RequiredTag": [*slot.required_tags, *_list(known.get("requiredtag"))],
        "VO": wishes.vo,
        "SubmitPool": list(wishes.pools),
        "OwnerGroup": list(wishes.owner_groups),
        "JobType": list(wishes.job_types),
        "PilotReference": wishes.reference,
        "NodeFacts": facts.reportable_facts(
            facts.merge_facts({"MaxRAM": max_ram}, measured or {}, slot.facts), known
        ),
    }
    return Offer(
        place=place,
        cpu_time=cpu_time or lifetime or _CPU_TIME,
        lifetime=lifetime,
        max_ram=max_ram,
        processors=slot.processors or _number(known, "numberofprocessors") or 1,
        gpus=slot.gpus or _number(known, "gpus") or 0,
        whole_node=slot.whole_node or _flag(known, "wholenode"),
        cpu_power=slot.cpu_power or _power(known),
        tags=(*slot.tags, *_list(known.get("tag"))),
        rest={name: value for name, value in rest.items() if value not in (None, [], (), {})},
    )


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


def _power(known: Mapping[str, Any]) -> float:
    """Of the queue's processors, 1 where nobody says.

    Source: DIRAC's CPUNormalizationFactor.
    """
    value = known.get("cpunormalizationfactor")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _UNSTATED
    return float(value) if 0 < value <= MOST_POWER else _UNSTATED


def _list(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


#: The variable by which a site says `Site/CE/Queue`; what it says goes before all else.
QUEUE_VARIABLE = "PILOTAGE_PLACE"
#: The file by which a node says so whose jobs all come through one queue.
QUEUE_FILE = Path("/etc/pilotage/place")
#: Variables by which batch systems tell their jobs the batch queue: Slurm, PBS, LSF, Grid Engine.
_BATCH_QUEUE = ("SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE", "QUEUE")
_PARTS = 3


def read_landings(file: str) -> Mapping[str, str]:
    """The queues of the resource tree by their batch queues, from a file that holds a JSON object.

    Raises:
        ValueError: It holds none.
    """
    try:
        said = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--landings: {error}") from None
    if not isinstance(said, dict) or not all(isinstance(each, str) for each in said.values()):
        raise ValueError(f"--landings: {file} does not hold queues by batch queue")
    return said


def find_place(
    landings: Mapping[str, str], environment: Mapping[str, str], file: Path = QUEUE_FILE
) -> QueuePlace:
    """The place, by what the site says, by the batch queue that we run in, or by what the node says.

    Args:
        landings: `Site/CE/Queue` by batch queue; there may be none.
        environment: The process environment.
        file: Of the node.

    Raises:
        ValueError: It cannot be found out; the message says what was looked at.
    """
    if said := environment.get(QUEUE_VARIABLE, "").strip():
        return _parse_place(said, QUEUE_VARIABLE)
    batch_queues = [queue for name in _BATCH_QUEUE if (queue := environment.get(name))]
    for queue in batch_queues:
        if queue in landings:
            return _parse_place(landings[queue], f"the landing for {queue}")
    if file.is_file():
        return _parse_place(file.read_text(encoding="utf-8").strip(), str(file))
    known = f", which is none of {', '.join(sorted(landings))}" if landings else ""
    where = f"in the batch queue {', '.join(batch_queues)}{known}" if batch_queues else "in no batch queue"
    raise ValueError(
        f"cannot tell where this is: {where}, and neither {QUEUE_VARIABLE} nor {file} says it;"
        " give --site, --ce and --queue"
    )


def _parse_place(said: str, by: str) -> QueuePlace:
    parts = said.split("/")
    if len(parts) != _PARTS or not all(parts):
        raise ValueError(f"{by}: {said!r:.200} is no address of a queue, which is Site/CE/Queue")
    return QueuePlace(*parts)
