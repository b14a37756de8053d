"""The loop of a pilot without jobs: it measures the power of its processors, and states it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.allotment import SlotRoom
from pilotage.fabric.pilot.attempt import AttemptContext
from pilotage.fabric.pilot.job_agent import Benchmark, JobAgent, PilotControl
from pilotage.fabric.pilot.payload.monitor import SlotMemory
from pilotage.fabric.pilot.service.service_client import Work
from pilotage.fabric.pilot.settings import (
    JobFilters,
    PayloadOptions,
    QueuePlace,
    Slot,
    StopConditions,
)


@dataclass
class EmptyService:
    """Has no job, and keeps the power that each request states."""

    powers: list[object] = field(default_factory=list)

    def request_job(self, offer: dict[str, Any], **_: object) -> Work:
        self.powers.append(offer.get("NodeFacts", {}).get("CPUPowerDB12"))
        return Work((), "no_task_queue", 20.0)


def run(tmp_path: Path, benchmark: Benchmark | None, *, requests: int) -> list[object]:
    service, control = EmptyService(), PilotControl()
    offered = offer.make_offer(QueuePlace("A.B.ch", "ce", "long"), Slot(), JobFilters(), {})
    options = PayloadOptions(work_dir=tmp_path, least_space=0)
    context = AttemptContext(
        cast(Any, service), cast(Any, None), options, offered, SlotMemory(None), control.stop
    )
    agent = JobAgent(
        context,
        SlotRoom(offered.whole({})),
        StopConditions(max_empty=requests),
        control,
        lambda: "",
        began=time.monotonic(),
        benchmark=benchmark,
    )
    agent.run()
    return service.powers


def test_after_an_answer_without_a_job_the_power_is_measured_and_stated_at_once(tmp_path: Path) -> None:
    assert run(tmp_path, lambda _: 21.5, requests=2) == [None, 21.5]


def test_a_pilot_that_ends_measures_nothing(tmp_path: Path) -> None:
    def fail(_: Callable[[], bool]) -> float:
        pytest.fail("there is no next request")

    before = set(threading.enumerate())  # those of other tests may end meanwhile
    assert run(tmp_path, fail, requests=1) == [None]
    assert set(threading.enumerate()) <= before
