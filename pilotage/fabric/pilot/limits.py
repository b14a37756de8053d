"""What a payload may use, and which limit it has passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from pilotage.fabric.pilot.description import Description

#: Seconds before the end of the slot at which the payload is ended, so that its output still gets out.
MARGIN = 120.0

OUT_OF_TIME = "Job has exceeded maximum wall clock time"
OUT_OF_MEMORY = "Job has exceeded its memory limit"
_MB = 1 << 20


@dataclass(frozen=True)
class Excess:
    """A limit that was passed."""

    minor_status: str
    detail: str  #: how much was allowed and how much was used


@dataclass(frozen=True)
class Limits:
    """What one payload may use."""

    wall_time: float | None  #: seconds; None: no limit
    memory: int | None  #: bytes of all of its processes; None: no limit

    def passed_by_time(self, elapsed: float) -> Excess | None:
        """The excess if so many seconds are too many."""
        if self.wall_time is None or elapsed <= self.wall_time:
            return None
        return Excess(OUT_OF_TIME, f"allowed {self.wall_time:.0f} s")

    def passed_by_memory(self, resident: int, proportional: Callable[[], int | None]) -> Excess | None:
        """The excess if so much memory is too much.

        Args:
            resident: Bytes, where memory that several processes share counts for each.
            proportional: Tells the true sum, None where the host does not; asked only if it matters.
        """
        if self.memory is None or resident <= self.memory:
            return None
        used = proportional()
        used = resident if used is None else used
        if used <= self.memory:
            return None
        return Excess(OUT_OF_MEMORY, f"allowed {self.memory // _MB} MB, used {used // _MB} MB")


def seconds_missing(description: Description, *, seconds_left: float | None, cpu_power: float) -> float:
    """Seconds by which the slot is too short for what a job says it needs; 0: it can finish.

    Args:
        description: Of the job.
        seconds_left: Until the slot ends; None: it does not.
        cpu_power: Normalised seconds in a second of this host.
    """
    if seconds_left is None or description.cpu_time is None:
        return 0.0
    return max(0.0, description.cpu_time / cpu_power - seconds_left)


def for_job(description: Description, *, seconds_left: float | None, max_ram: int | None) -> Limits:
    """The limits of a job: its own and those of the slot, whichever are smaller.

    Args:
        description: Of the job.
        seconds_left: Until the slot ends; None: it does not.
        max_ram: MB that the slot offers; None: unknown.
    """
    left = None if seconds_left is None else max(1.0, seconds_left - min(MARGIN, seconds_left / 10))
    times = [float(time) for time in (description.wall_time, left) if time is not None]
    memories = [memory * _MB for memory in (description.max_ram, max_ram) if memory is not None]
    return Limits(wall_time=min(times, default=None), memory=min(memories, default=None))
