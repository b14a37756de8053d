"""What the pilot offers when it asks for work: what it was told, else what its queue is configured with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotage.fabric.pilot import facts
from pilotage.fabric.pilot.environment import DEVICES
from pilotage.fabric.pilot.settings import Place, Slot, Wishes
from pilotage.fabric.pilot.share import WHOLE_NODE, Share

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

    place: Place
    cpu_time: int  #: seconds of this host, not normalised
    lifetime: int | None  #: seconds, None: no end in sight
    max_ram: int | None  #: MB
    processors: int
    gpus: int  #: 0: none, or nobody knows
    whole_node: bool | None  #: whether a job may have the node for itself; None: nobody says
    tags: tuple[object, ...]
    rest: Mapping[str, object]  #: further names of the request, as they are
    cpu_power: float = _UNSTATED  #: normalised seconds in a second of this host

    def at(self, elapsed: float, free: Share | None = None) -> dict[str, object]:
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

    def whole(self, environment: Mapping[str, str]) -> Share:
        """The slot; its GPUs have the names that our own environment gives them."""
        named = [name for name in environment.get(DEVICES, "").split(",") if name]
        known = named if len(named) >= self.gpus else [str(number) for number in range(self.gpus)]
        return Share(self.processors, self.max_ram, tuple(known[: self.gpus]))

    def _room(self, free: Share | None) -> dict[str, object]:
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


def make(
    place: Place,
    slot: Slot,
    wishes: Wishes,
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
    max_ram = slot.max_ram or _number(known, "maxram") or facts.memory()
    rest: dict[str, object] = {
        "Platform": slot.platform or known.get("platform"),
        "RequiredTag": [*slot.required_tags, *_list(known.get("requiredtag"))],
        "VO": wishes.vo,
        "SubmitPool": list(wishes.pools),
        "OwnerGroup": list(wishes.owner_groups),
        "JobType": list(wishes.job_types),
        "PilotReference": wishes.reference,
        "NodeFacts": facts.told(facts.merged({"MaxRAM": max_ram}, measured or {}, slot.facts), known),
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
