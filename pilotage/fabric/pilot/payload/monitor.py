"""What a payload may use, and which limit it has passed.

The memory of a slot while several payloads live on it.

A payload may use what others leave. When all together use more than the slot has, the one that is furthest
beyond its own part is ended. The parts are never more than the slot, so whoever keeps to its part is safe.

Watching a payload until it ends, and ending it when it has to.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Callable

from pilotage.fabric.pilot.node.linux import Usage
from pilotage.fabric.pilot.payload.description import PayloadDescription
from pilotage.fabric.pilot.payload.payload import Payload, PayloadEnd
from pilotage.fabric.pilot.service.heartbeat import Heartbeat

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


def seconds_missing(
    description: PayloadDescription, *, seconds_left: float | None, cpu_power: float
) -> float:
    """Seconds by which the slot is too short for what a job says it needs; 0: it can finish.

    Args:
        description: Of the job.
        seconds_left: Until the slot ends; None: it does not.
        cpu_power: Normalised seconds in a second of this host.
    """
    if seconds_left is None or description.cpu_time is None:
        return 0.0
    return max(0.0, description.cpu_time / cpu_power - seconds_left)


def job_limits(description: PayloadDescription, *, seconds_left: float | None, max_ram: int | None) -> Limits:
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


class SlotMemory:
    """What payloads use of the slot's memory, as each was measured last; safe to use from several threads."""

    def __init__(self, capacity_mb: int | None) -> None:
        """Make it; None: nobody knows how much there is, so nobody uses too much."""
        self._capacity = None if capacity_mb is None else capacity_mb * _MB
        self._accounts: dict[MemoryAccount, int] = {}
        self._lock = threading.Lock()

    def account(self, part_mb: int | None) -> MemoryAccount:
        """A payload that begins now, with its own part."""
        return MemoryAccount(self, (part_mb or 0) * _MB)

    def is_crowded(self, account: MemoryAccount, used: int) -> bool:
        """Whether all together use more than there is, now that this payload uses so many bytes."""
        with self._lock:
            self._accounts[account] = used
            return self._capacity is not None and sum(self._accounts.values()) > self._capacity

    def is_furthest(self, account: MemoryAccount) -> bool:
        """Whether no other payload is further beyond its part."""
        with self._lock:
            return account is max(self._accounts, key=lambda each: self._accounts[each] - each.part)

    def forget(self, account: MemoryAccount) -> None:
        """The payload has ended."""
        with self._lock:
            self._accounts.pop(account, None)


class MemoryAccount:
    """One payload's side of it."""

    def __init__(self, memory: SlotMemory, part: int) -> None:
        self.part = part  #: bytes that are its own
        self._memory = memory

    def passed(self, resident: int, proportional: Callable[[], int | None]) -> Excess | None:
        """The excess if the slot has too little for all and this payload is to blame.

        Args:
            resident: Bytes that it uses, where memory that several processes share counts for each.
            proportional: Tells the true sum, None where the host does not; asked only if it matters.
        """
        if not self._memory.is_crowded(self, resident):
            return None
        used = proportional()
        used = resident if used is None else used
        if not self._memory.is_crowded(self, used) or not self._memory.is_furthest(self):
            return None
        detail = f"kept for it {self.part // _MB} MB, used {used // _MB} MB, and the slot has no more"
        return Excess(OUT_OF_MEMORY, detail)

    def close(self) -> None:
        """The payload has ended."""
        self._memory.forget(self)


#: Seconds between two looks at what others want.
_TICK = 0.25
#: Seconds between two looks at what the payload uses.
_MEASURE = 1.0
#: Seconds that our own order to end may come later than that of the payload.
_ORDERED_TOGETHER = 2.0

#: Why it was ended, if not for an `Excess`.
KILL_WANTED, STALE, STOPPED = "killed", "stale", "stopped"


@dataclass(frozen=True)
class MonitoredEnd:
    """How a payload ended, and why we ended it, if we did."""

    end: PayloadEnd
    why: str | Excess | None


class PayloadMonitor:
    """Looks after one payload."""

    def __init__(
        self,
        payload: Payload,
        limits: Limits,
        memory: MemoryAccount,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.usage = Usage(processes=0, cpu_seconds=0.0, resident=0)  #: as measured last
        self._payload = payload
        self._limits = limits
        self._memory = memory
        self._clock = clock
        self._began = clock()
        self._measure_at = self._began

    @property
    def elapsed(self) -> float:
        """Seconds since the payload began."""
        return self._clock() - self._began

    def until_end(self, heart: Heartbeat, stop: threading.Event, *, grace: float) -> MonitoredEnd:
        """Wait for the end of the payload.

        A batch system that ends a slot signals every process of it, and the payload may be gone before our
        own signal comes: a failure counts as the payload's own only when none comes for a moment.

        Args:
            heart: Hears when the job was killed or the attempt closed.
            stop: Set when the pilot itself has to end.
            grace: Seconds between TERM and KILL.
        """
        why: str | Excess | None = None
        try:
            while (end := self._payload.wait(_TICK)) is None:
                if why is None and (why := self._why_end(heart, stop)) is not None:
                    self._payload.end(grace)
        finally:
            self._memory.close()
        if why is None and stop.wait(_ORDERED_TOGETHER if end.exit_code else 0.0):
            why = STOPPED
        return MonitoredEnd(end, why)

    def _why_end(self, heart: Heartbeat, stop: threading.Event) -> str | Excess | None:
        if heart.stale.is_set():
            return STALE
        if heart.killed.is_set():
            return KILL_WANTED
        if stop.is_set():
            return STOPPED
        return self._limits.passed_by_time(self.elapsed) or self._excess_of_memory()

    def _excess_of_memory(self) -> Excess | None:
        if self._clock() < self._measure_at:
            return None
        self._measure_at = self._clock() + _MEASURE
        self.usage = self._payload.usage()
        resident, proportional = self.usage.resident, self._payload.proportional_memory
        return self._limits.passed_by_memory(resident, proportional) or self._memory.passed(
            resident, proportional
        )
