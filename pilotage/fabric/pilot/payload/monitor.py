"""Execution of a prepared job: its limits, and the monitor that ends it when it exceeds one or has to end.

Payloads may use memory that others leave free. When all together use more than the slot has, the one that
exceeds its own part most is ended. The parts add up to no more than the slot, so a payload that keeps to its
part is safe.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Callable

from pilotage.fabric.pilot.node.linux import Usage
from pilotage.fabric.pilot.payload import payload as payloads
from pilotage.fabric.pilot.payload import work_area
from pilotage.fabric.pilot.payload.description import PayloadDescription
from pilotage.fabric.pilot.payload.payload import Payload, PayloadEnd
from pilotage.fabric.pilot.payload.preparation import Prepared
from pilotage.fabric.pilot.payload.supervisor import SupervisorOrder
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.service.heartbeat import Heartbeat

#: Seconds before the end of the slot at which the payload is ended, so that its output can still be sent.
MARGIN = 120.0

OUT_OF_TIME = "Job has exceeded maximum wall clock time"
OUT_OF_MEMORY = "Job has exceeded its memory limit"
_MB = 1 << 20


@dataclass(frozen=True)
class Excess:
    """An exceeded limit."""

    minor_status: str
    detail: str  #: the limit and the usage


@dataclass(frozen=True)
class Limits:
    """Limits of one payload."""

    wall_time: float | None  #: seconds; None: no limit
    memory: int | None  #: bytes of all of its processes; None: no limit

    def passed_by_time(self, elapsed: float) -> Excess | None:
        """The excess if the elapsed seconds exceed the limit."""
        if self.wall_time is None or elapsed <= self.wall_time:
            return None
        return Excess(OUT_OF_TIME, f"allowed {self.wall_time:.0f} s")

    def passed_by_memory(self, resident: int, proportional: Callable[[], int | None]) -> Excess | None:
        """The excess if the memory exceeds the limit.

        `resident` bytes count shared pages for each process. `proportional` returns the exact sum, None where
        not available; it is slow, and called only if needed.
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
    """Seconds by which the slot is too short for the CPU time that a job requests; 0: it fits."""
    if seconds_left is None or description.cpu_time is None:
        return 0.0
    return max(0.0, description.cpu_time / cpu_power - seconds_left)


def job_limits(description: PayloadDescription, *, seconds_left: float | None, max_ram: int | None) -> Limits:
    """The smaller of a job's own limits and those of the slot."""
    left = None if seconds_left is None else max(1.0, seconds_left - min(MARGIN, seconds_left / 10))
    times = [float(time) for time in (description.wall_time, left) if time is not None]
    memories = [memory * _MB for memory in (description.max_ram, max_ram) if memory is not None]
    return Limits(wall_time=min(times, default=None), memory=min(memories, default=None))


class SlotMemory:
    """Memory use of the slot's payloads, each as last measured; thread-safe."""

    def __init__(self, capacity_mb: int | None) -> None:
        """Create it with the slot's memory; None: unknown, so there is no limit."""
        self._capacity = None if capacity_mb is None else capacity_mb * _MB
        self._accounts: dict[MemoryAccount, int] = {}
        self._lock = threading.Lock()

    def account(self, part_mb: int | None) -> MemoryAccount:
        """Open the account of a starting payload, with its part of the memory."""
        return MemoryAccount(self, (part_mb or 0) * _MB)

    def is_crowded(self, account: MemoryAccount, used: int) -> bool:
        """Note a payload's use; return whether all together now use more than the slot has."""
        with self._lock:
            self._accounts[account] = used
            return self._capacity is not None and sum(self._accounts.values()) > self._capacity

    def is_furthest(self, account: MemoryAccount) -> bool:
        """Whether no other payload exceeds its part by more."""
        with self._lock:
            return account is max(self._accounts, key=lambda each: self._accounts[each] - each.part)

    def forget(self, account: MemoryAccount) -> None:
        """Remove an ended payload."""
        with self._lock:
            self._accounts.pop(account, None)


class MemoryAccount:
    """One payload's account in `SlotMemory`."""

    def __init__(self, memory: SlotMemory, part: int) -> None:
        self.part = part  #: bytes allotted to it
        self._memory = memory

    def passed(self, resident: int, proportional: Callable[[], int | None]) -> Excess | None:
        """The excess if the slot's memory is exhausted and this payload exceeds its part most.

        The arguments are those of `Limits.passed_by_memory`.
        """
        if not self._memory.is_crowded(self, resident):
            return None
        used = proportional()
        used = resident if used is None else used
        if not self._memory.is_crowded(self, used) or not self._memory.is_furthest(self):
            return None
        detail = f"allotted {self.part // _MB} MB, used {used // _MB} MB, and the slot has no more"
        return Excess(OUT_OF_MEMORY, detail)

    def close(self) -> None:
        """Remove the ended payload."""
        self._memory.forget(self)


#: Seconds between two checks of orders.
_TICK = 0.25
#: Seconds between two measurements of the payload.
_MEASURE = 1.0
#: Maximum seconds by which the pilot's own signal may come after the payload's.
_ORDERED_TOGETHER = 2.0

#: Characters of progress that are sent.
_LONGEST = 500

#: Reasons to end a payload, besides an `Excess`.
KILL_WANTED, STALE, STOPPED, UNANSWERED = "killed", "stale", "stopped", "unanswered"


@dataclass(frozen=True)
class MonitoredEnd:
    """How a payload ended, and the reason if the pilot ended it."""

    end: PayloadEnd
    why: str | Excess | None


class PayloadMonitor:
    """Monitors one payload."""

    def __init__(
        self,
        payload: Payload,
        limits: Limits,
        memory: MemoryAccount,
        area: WorkArea,
        files: dict[str, int],
    ) -> None:
        """Create it; `files` are the descriptors of its standard files, by name."""
        self.usage = Usage(processes=0, cpu_seconds=0.0, resident=0)  #: as last measured
        self._payload = payload
        self._limits = limits
        self._memory = memory
        self._area = area
        self._files = files
        self._began = self._measure_at = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the payload."""
        return time.monotonic() - self._began

    def until_end(self, heartbeat: Heartbeat, stop: threading.Event, *, grace: float) -> MonitoredEnd:
        """Wait for the end of the payload; end it for a reason, with `grace` seconds between TERM and KILL.

        A batch system that ends a slot signals every process of it, and the payload may end before the
        pilot's own signal comes: a failure counts as the payload's own only if no signal follows shortly.
        """
        why: str | Excess | None = None
        try:
            while (end := self._payload.wait(_TICK)) is None:
                if why is None and (why := self._why_end(heartbeat, stop)) is not None:
                    self._payload.end(grace)
        finally:
            self._memory.close()
        if why is None and stop.wait(_ORDERED_TOGETHER if end.exit_code else 0.0):
            why = STOPPED
        return MonitoredEnd(end, why)

    def _why_end(self, heartbeat: Heartbeat, stop: threading.Event) -> str | Excess | None:
        if heartbeat.stale.is_set():
            return STALE
        if heartbeat.killed.is_set():
            return KILL_WANTED
        if stop.is_set():
            return STOPPED
        if heartbeat.silence is not None:
            return UNANSWERED
        if excess := self._limits.passed_by_time(self.elapsed):
            return excess
        if time.monotonic() < self._measure_at:
            return None
        self._measure_at = time.monotonic() + _MEASURE
        self.usage = self._payload.usage()
        resident, proportional = self.usage.resident, self._payload.proportional_memory
        return self._limits.passed_by_memory(resident, proportional) or self._memory.passed(
            resident, proportional
        )

    def news(self) -> dict[str, object]:
        """The content of a heartbeat."""
        usage, elapsed = self.usage, self.elapsed
        measured = f"{elapsed:.0f} s, CPU {usage.cpu_seconds:.0f} s, {usage.resident >> 20} MB"
        progress = payloads.last_line(payloads.tail_of_path(self._area.progress)) or measured
        return {
            "progress": payloads.printable(progress, _LONGEST),
            "output_tail": payloads.tail_of_files(self._files),
            "cpu_seconds": round(usage.cpu_seconds, 1),
            "wall_seconds": round(elapsed, 1),
            "memory_mb": usage.resident >> 20,
            "processes": usage.processes,
        }


@contextmanager
def run_payload(
    ready: Prepared, area: WorkArea, limits: Limits, memory: MemoryAccount
) -> Iterator[PayloadMonitor]:
    """Start a payload, and end it and close its files after the `with` block.

    Raises `UnfitDescription`, `NotStarted` or `HostTrouble` if it cannot be started.
    """
    output, error = ready.description.std_output, ready.description.std_error
    files = work_area.make_standard_files(area.home, output=output, error=error)
    order = SupervisorOrder(
        words=ready.words,
        directory=str(area.home),
        environment=ready.environment,
        output=files[output],
        error=files[error],
        area=str(area.top),
        cpus=ready.cpus,
    )
    try:
        with closing(Payload(order)) as payload:
            yield PayloadMonitor(payload, limits, memory, area, files)
    finally:
        for descriptor in files.values():
            os.close(descriptor)
