"""How the end of a payload is judged when the slot may have been ended at the same time."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from pilotage.fabric.pilot.node.cgroup import MemoryGroup
from pilotage.fabric.pilot.node.linux import Usage
from pilotage.fabric.pilot.payload import monitor
from pilotage.fabric.pilot.payload.monitor import (
    Excess,
    Limit,
    Limits,
    MonitoredEnd,
    PayloadMonitor,
    SlotMemory,
)
from pilotage.fabric.pilot.payload.payload import Payload, PayloadEnd
from pilotage.fabric.pilot.payload.work_area import WorkArea
from pilotage.fabric.pilot.service.heartbeat import Heartbeat
from pilotage.fabric.pilot.service.service_client import LeaseAnswer

UNLIMITED = Limits(wall_time=None, memory=None)
LIMITED = Limits(wall_time=None, memory=Limit(3072 << 20, "512 + 256 × 10 cores"))
KILLED = PayloadEnd(137, 9)


class Ended:
    """A payload that has ended by the time it is looked at."""

    def __init__(self, end: PayloadEnd) -> None:
        self._end = end

    def wait(self, _timeout: float) -> PayloadEnd:
        return self._end


class Stop(threading.Event):
    """Set while somebody waits for it, or not at all."""

    def __init__(self, *, comes: bool) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._comes = comes

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if self._comes:
            self.set()
        return self.is_set()


class Silent:
    """A service that wants nothing."""

    def heartbeat(self, *_: object) -> LeaseAnswer:
        return LeaseAnswer(commands=(), heartbeat_seconds=None)


def watched(
    end: PayloadEnd,
    stop: Stop,
    limits: Limits = UNLIMITED,
    group: Path | None = None,
    payload: Ended | None = None,
) -> MonitoredEnd:
    account, nowhere = SlotMemory(None).account(None), Path("/nonexistent")
    area = WorkArea(top=nowhere, home=nowhere, scratch=nowhere)
    cgroup = None if group is None else MemoryGroup(group)
    watch = PayloadMonitor(cast(Payload, payload or Ended(end)), limits, account, area, {}, cgroup)
    heartbeat = Heartbeat(Silent(), "lease", every=1.0, news=dict)
    return watch.until_end(heartbeat, stop, grace=1.0)


FAILURES = [PayloadEnd(143, 15), PayloadEnd(137, 9), PayloadEnd(143, None), PayloadEnd(1, None)]


@pytest.mark.parametrize("end", FAILURES)
def test_a_failure_with_our_own_order_to_end_right_after_it_is_the_end_of_the_slot(end: PayloadEnd) -> None:
    assert watched(end, Stop(comes=True)) == MonitoredEnd(end, monitor.STOPPED)


@pytest.mark.parametrize("end", FAILURES)
def test_a_failure_without_such_an_order_is_the_payloads_own(end: PayloadEnd) -> None:
    stop = Stop(comes=False)

    assert watched(end, stop) == MonitoredEnd(end, None)
    assert stop.waits == [2.0]


def test_an_exit_status_of_0_counts_at_once() -> None:
    stop = Stop(comes=False)

    assert watched(PayloadEnd(0, None), stop) == MonitoredEnd(PayloadEnd(0, None), None)
    assert stop.waits == [0.0]


def test_an_exit_status_of_0_after_our_own_order_to_end_may_be_of_a_payload_that_broke_off() -> None:
    stop = Stop(comes=False)
    stop.set()

    assert watched(PayloadEnd(0, None), stop) == MonitoredEnd(PayloadEnd(0, None), monitor.STOPPED)


@pytest.mark.parametrize(
    ("oom", "why"),
    [
        (1, Excess(monitor.OUT_OF_MEMORY, "memory limit 3072 MB of 512 + 256 × 10 cores: peak 3080 MB")),
        (
            0,
            Excess(monitor.OUT_OF_MEMORY, "the slot or its node had no memory left, and the kernel ended it"),
        ),
    ],
)
def test_a_payload_that_the_kernel_ends_is_told_with_the_limit(tmp_path: Path, oom: int, why: Excess) -> None:
    (tmp_path / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom {oom}\noom_kill 3\n")
    (tmp_path / "memory.peak").write_text(f"{3080 << 20}\n")

    assert watched(KILLED, Stop(comes=True), LIMITED, tmp_path) == MonitoredEnd(KILLED, why)


class Growing(Ended):
    """A payload beyond its limit, which takes more until it is ended."""

    ended = False

    def wait(self, timeout: float) -> PayloadEnd | None:  # type: ignore[override]
        return super().wait(timeout) if self.ended else None

    def usage(self) -> Usage:
        return Usage(processes=1, cpu_seconds=1.0, resident=3100 << 20)

    def proportional_memory(self) -> int | None:
        return None

    def end(self, _grace: float) -> None:
        self.ended = True


def test_the_end_names_the_peak_until_then_and_not_that_at_which_it_was_noticed() -> None:
    end = replace(KILLED, resident=3500 << 20)

    why = watched(end, Stop(comes=False), LIMITED, payload=Growing(end)).why

    assert isinstance(why, Excess)
    assert why.detail == "memory limit 3072 MB of 512 + 256 × 10 cores: peak 3500 MB"


def test_a_payload_that_lost_a_part_and_succeeded_was_not_ended_by_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n")
    done = PayloadEnd(0, None)

    assert watched(done, Stop(comes=False), LIMITED, tmp_path) == MonitoredEnd(done, None)


def test_another_end_in_a_cgroup_is_the_payloads_own(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n")

    assert watched(KILLED, Stop(comes=False), LIMITED, tmp_path) == MonitoredEnd(KILLED, None)
