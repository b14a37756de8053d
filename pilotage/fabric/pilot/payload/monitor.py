"""Execution of a prepared job: its limits, and the monitor that ends it when it exceeds one or has to end.

Payloads may use memory that others leave free. When all together use more than the slot has, the one that
exceeds its own part most is ended. The parts add up to no more than the slot, so a payload that keeps to its
part is safe. Where the kernel limits memory as well (`node/cgroup`), payloads are watched all the same: it is
theirs to change the limit, since they have the pilot's account.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Callable

from pilotage.fabric.pilot.node.cgroup import Delegation, MemoryGroup
from pilotage.fabric.pilot.node.linux import Usage
from pilotage.fabric.pilot.payload import payload as payloads
from pilotage.fabric.pilot.payload import work_area
from pilotage.fabric.pilot.payload.description import PayloadDescription
from pilotage.fabric.pilot.payload.disk_use import DiskUse
from pilotage.fabric.pilot.payload.payload import Payload, PayloadEnd, PayloadUse
from pilotage.fabric.pilot.payload.preparation import Prepared
from pilotage.fabric.pilot.payload.supervisor import SupervisorOrder
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.service.heartbeat import Heartbeat

log = logging.getLogger(__name__)

#: Seconds before the end of the slot at which the payload is ended, so that its output can still be sent.
MARGIN = 120.0

OUT_OF_TIME = "Job has exceeded maximum wall clock time"
OUT_OF_MEMORY = "Job has exceeded its memory limit"
OUT_OF_SCRATCH = "Job has exceeded its scratch space limit"
_MB = 1 << 20


def _to_mb(amount: int) -> int:
    """Bytes as MB, rounded up: a peak beyond a limit is never shown as the limit."""
    return -(-amount // _MB)


@dataclass(frozen=True)
class Excess:
    """An exceeded limit."""

    minor_status: str
    detail: str  #: the limit and the usage
    limit: Limit | None = None  #: of memory or scratch space, which has a peak


@dataclass(frozen=True)
class Limit:
    """A limit of memory or scratch space."""

    most: int  #: bytes
    origin: str  #: where it comes from, for people

    def describe(self, what: str, peak: int | None) -> str:
        """The limit with the peak, as the detail of an end."""
        shown = "unknown" if peak is None else f"{_to_mb(peak)} MB"
        return f"{what} limit {self.most // _MB} MB of {self.origin}: peak {shown}"


@dataclass(frozen=True)
class Limits:
    """Limits of one payload."""

    wall_time: float | None  #: seconds; None: no limit
    memory: Limit | None  #: of all of its processes; None: no limit
    scratch: Limit | None = None  #: of its directories

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
        if self.memory is None or resident <= self.memory.most:
            return None
        used = proportional()
        used = resident if used is None else used
        if used <= self.memory.most:
            return None
        return Excess(OUT_OF_MEMORY, self.memory.describe("memory", used), self.memory)

    def passed_by_scratch(self, used: int | None) -> Excess | None:
        """The excess if the directories have more bytes."""
        if self.scratch is None or used is None or used <= self.scratch.most:
            return None
        return Excess(OUT_OF_SCRATCH, self.scratch.describe("scratch", used), self.scratch)


def seconds_missing(
    description: PayloadDescription, *, seconds_left: float | None, cpu_power: float
) -> float:
    """Seconds by which the slot is too short for the CPU time that a job requests; 0: it fits."""
    if seconds_left is None or description.cpu_time is None:
        return 0.0
    return max(0.0, description.cpu_time / cpu_power - seconds_left)


@dataclass(frozen=True)
class SlotShare:
    """What a job may use of its slot; None: unknown."""

    seconds_left: float | None = None
    max_ram: int | None = None  #: MB of the slot
    cores: int = 1  #: of the job
    scratch: int | None = None  #: MB of the slot


def job_limits(description: PayloadDescription, share: SlotShare) -> Limits:
    """The smaller of a job's own limits and those of the slot."""
    left = share.seconds_left
    left = None if left is None else max(1.0, left - min(MARGIN, left / 10))
    times = [float(time) for time in (description.wall_time, left) if time is not None]
    memory = {"MaxRAM": description.max_ram, "the slot": share.max_ram}
    if description.memory_limit is not None:
        overhead, per_core = description.memory_limit
        cores = f"{share.cores} core{'' if share.cores == 1 else 's'}"
        memory[f"{overhead} + {per_core} × {cores}"] = overhead + per_core * share.cores
    scratch = {"the slot": share.scratch} if description.scratch is None else {"the job": description.scratch}
    return Limits(min(times, default=None), _smallest(memory), _smallest(scratch))


def _smallest(limits: Mapping[str, int | None]) -> Limit | None:
    """The smallest limit in MB, by its origin."""
    known = [Limit(most * _MB, origin) for origin, most in limits.items() if most is not None]
    return min(known, key=lambda each: each.most, default=None)


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
#: By which part the memory has to grow until shared pages are told apart again, to find the peak.
_GROWTH = 1 / 64
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
        group: MemoryGroup | None = None,
    ) -> None:
        """Create it; `files` are the descriptors of its standard files, by name.

        Its memory is limited by the `group` as well, if there is one.
        """
        self.usage = Usage(processes=0, cpu_seconds=0.0, resident=0)  #: as last measured
        self._disk = DiskUse(area.top)
        self._group = group
        self._highest = 0  #: resident bytes at which the peak was measured
        self._peak: int | None = None  #: bytes of memory
        self._cpu_seconds: float | None = None
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

    @property
    def used(self) -> PayloadUse:
        """The largest use so far."""
        memory, scratch = (None if peak is None else _to_mb(peak) for peak in (self._peak, self._disk.peak))
        return PayloadUse(memory_mb=memory, scratch_mb=scratch, cpu_seconds=self._cpu_seconds)

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
        self._raise_peak(end.resident)
        if end.cpu_seconds is not None:
            self._cpu_seconds = end.cpu_seconds
        self._disk.measure_end()
        if isinstance(why, Excess):
            why = self._with_peak(why)
        if end.exit_code:  # else the kernel ended nothing but a part of it, in a cgroup that it made itself
            why = why or self._ended_by_kernel()
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
        self._disk.measure_step()
        if excess := self._limits.passed_by_scratch(self._disk.peak):
            return excess
        if time.monotonic() < self._measure_at:
            return None
        self._measure_at = time.monotonic() + _MEASURE
        return self._measure_memory()

    def _measure_memory(self) -> Excess | None:
        """Measure the processes; the excess if they use too much memory."""
        self.usage = self._payload.usage()
        self._cpu_seconds = max(self._cpu_seconds or 0.0, self.usage.cpu_seconds)
        resident = self.usage.resident
        proportional = cache(self._payload.proportional_memory)  # it is slow
        excess = self._limits.passed_by_memory(resident, proportional)
        excess = excess or self._memory.passed(resident, proportional)
        if excess or resident > self._highest * (1 + _GROWTH):
            self._highest = resident
            exact = proportional()
            self._raise_peak(resident if exact is None else exact)
        return excess

    def _raise_peak(self, memory: int | None) -> None:
        if memory is not None:
            self._peak = max(self._peak or 0, memory)

    def _with_peak(self, excess: Excess) -> Excess:
        """An excess with the peak at the end, which may be above that at which it was noticed."""
        if excess.limit is None:
            return excess
        is_memory = excess.minor_status == OUT_OF_MEMORY
        what, peak = ("memory", self._peak) if is_memory else ("scratch", self._disk.peak)
        return replace(excess, detail=excess.limit.describe(what, peak))

    def _ended_by_kernel(self) -> Excess | None:
        group, limit = self._group, self._limits.memory
        if group is None or limit is None:
            return None
        if group.is_out_of_memory:
            self._raise_peak(group.peak)
            return Excess(OUT_OF_MEMORY, limit.describe("memory", self._peak))
        if group.is_victim:
            return Excess(OUT_OF_MEMORY, "the slot or its node had no memory left, and the kernel ended it")
        return None

    def news(self) -> dict[str, object]:
        """The content of a heartbeat."""
        usage, elapsed = self.usage, self.elapsed
        measured = f"{elapsed:.0f} s, CPU {usage.cpu_seconds:.0f} s, {usage.resident >> 20} MB"
        progress = payloads.last_line(payloads.tail_of_path(self._area.progress)) or measured
        return {
            "progress": payloads.printable(progress, _LONGEST),
            "output_tail": payloads.tail_of_files(self._files),
            "wall_seconds": round(elapsed, 1),
            **self.used.as_json(),
            "processes": usage.processes,
        }


@contextmanager
def run_payload(
    ready: Prepared,
    area: WorkArea,
    limits: Limits,
    memory: MemoryAccount,
    delegation: Delegation | None = None,
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
        with _limit_memory(delegation, area, limits) as group:
            order = replace(order, members=group.members if group else "")
            with closing(Payload(order)) as payload:
                yield PayloadMonitor(payload, limits, memory, area, files, group)
    finally:
        for descriptor in files.values():
            os.close(descriptor)


@contextmanager
def _limit_memory(
    delegation: Delegation | None, area: WorkArea, limits: Limits
) -> Iterator[MemoryGroup | None]:
    """A cgroup for the payload while in a `with` block; None: its memory is only watched."""
    group = None
    if delegation is not None and limits.memory is not None:
        try:
            group = delegation.limit_memory(area.top.name, limits.memory.most)
        except OSError as error:
            log.warning("the memory of %s is only watched: %s", area.top.name, error)
    try:
        yield group
    finally:
        if group is not None:
            group.remove()
