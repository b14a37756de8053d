"""The check of batch systems: each problem is told with its queue, and one system holds up no other."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from examples.servers.starting import wait_until
from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    ReliableSystem,
    SubmissionRefused,
    Survey,
)
from pilotage.fabric.director import system_check
from pilotage.fabric.director.system_check import check_systems
from pilotage.fabric.director.targets import QueueTarget

UP = Capacity(cores=8, free_cores=8, waiting=0, running=0)


@dataclass
class CheckedSystem:
    """A batch system with some queues, whose answers a test gives."""

    queues: Mapping[str, Capacity]
    writing: Callable[[], Any] = lambda: None
    refusal: str = ""

    def survey(self, handles: Sequence[Handle], _prefix: str) -> Survey:
        return Survey(reports={}, stamps=frozenset(handle.stamp for handle in handles))

    def capacity(self) -> Mapping[str, Capacity]:
        return self.queues

    def check_areas(self) -> None:
        self.writing()

    def dry_run(self, job: BatchJob) -> None:
        if self.refusal:
            raise SubmissionRefused(f"{self.refusal} ({job.queue})")


def check(batch_queue: str, *, seconds: float = 60, **system: Any) -> Mapping[str, str]:
    farm: Any = CheckedSystem(**{"queues": {"long": UP}, **system})
    queue = QueueTarget(queue="A/b/c", system="farm", batch_queue=batch_queue)
    good: Any = CheckedSystem({})
    systems = {"farm": ReliableSystem(name="farm", system=farm), "good": ReliableSystem(system=good)}
    found = check_systems(systems, [queue], seconds=seconds)
    assert found["good"] == ""
    return found


def raise_away() -> None:
    raise BatchSystemAway("/jobs: a file cannot be written: disk full")


@pytest.mark.parametrize(
    ("batch_queue", "system", "problem"),
    [
        ("long", {}, ""),
        ("long", {"queues": {}}, ""),  # none are known
        ("long@host7", {}, ""),
        ("lnog", {}, "A/b/c: no batch queue lnog, there are long"),
        (
            "long",
            {"queues": {"long": Capacity(cores=0, free_cores=0, waiting=0, running=0)}},
            "A/b/c: the batch",
        ),
        ("long", {"refusal": "bad account"}, "A/b/c: a job would be refused: bad account (long)"),
        ("long", {"writing": raise_away}, "/jobs: a file cannot be written: disk full"),
        ("long", {"writing": lambda: 1 / 0}, "farm: a fault of its adapter: ZeroDivisionError"),
    ],
)
def test_each_problem_is_told(batch_queue: str, system: dict[str, Any], problem: str) -> None:
    found = check(batch_queue, **system)["farm"]
    assert found.startswith(problem)
    assert bool(found) is bool(problem)


def test_storage_that_hangs_holds_up_no_other_system(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = threading.Event()

    def wait_for_others(tasks: Collection[Future[list[str]]], timeout: float) -> object:
        """However late their threads are."""
        wait_until(lambda: sum(not each.done() for each in tasks) == 1)
        return futures.wait(tasks, timeout=timeout)

    monkeypatch.setattr(system_check, "futures", SimpleNamespace(wait=wait_for_others))
    found = check("long", writing=frozen.wait, seconds=0.05)
    frozen.set()
    assert found["farm"] == "farm: a command or its file system hangs for 0 s"
