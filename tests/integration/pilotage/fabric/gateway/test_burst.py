"""A burst of grid jobs before a slow batch system: throttles hold, whatever the order of what happens.

The service, the gateway and the manager are real; the steps of their threads come in a random order, answers
get lost and the gateway is ended and started again in between.
"""

import contextlib
import logging
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from pilotage.cli.processes import gateway as processes_gateway
from pilotage.fabric.batch.batch_system import (
    BatchJob,
    Capacity,
    Handle,
    JobReport,
    Output,
    ReliableSystem,
    State,
    SubmissionUncertain,
)
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.gateway import leases
from pilotage.fabric.gateway.gateway import Gateway
from pilotage.fabric.gateway.permits import is_gathering
from pilotage.fabric.manager import manager
from pilotage.fabric.manager.grid_job import ManagerPhase
from pilotage.fabric.manager.shared_area import SharedBatchSystem
from pilotage.fabric.pilot.service.transport import Away
from pilotage.service.services import utc_now
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.schema.tables import jobs
from tests.support.gateway import Ground
from tests.support.service import running

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      Throttle: {throttle}
      CEs:
        ce1:
          CPUTime: 100000
          MaxRAM: 4000
          Queues: {{long: {{}}}}
Registry:
  VO: {{cms: {{}}}}
  Groups: {{cms_user: {{VO: cms}}}}
"""
LOCAL_JOBS = 3
MATCHED = select(jobs.c.job_id).where(jobs.c.status == JobStatus.MATCHED)


@dataclass
class SlowFarm:
    """A batch system in memory whose answers get lost at times; it is asked for one submission a round."""

    chance: random.Random
    jobs: dict[str, int] = field(default_factory=dict)  #: looks at each so far, by stamp

    def submit(self, job: BatchJob) -> str:
        self.jobs[job.stamp] = 0
        if self.chance.random() < 0.2:
            raise SubmissionUncertain("taken, but nobody is told, on purpose")
        return job.stamp

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        return {each.stamp: self._report(each.stamp) for each in handles}

    def _report(self, stamp: str) -> JobReport:
        if stamp not in self.jobs:
            return JobReport(state=State.MISSING)
        self.jobs[stamp] += 1
        return JobReport(state=State.RUNNING if self.jobs[stamp] < 3 else State.DONE, exit_code=0)

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        return {stamp: (stamp,) for stamp in stamps if stamp in self.jobs}

    def kill(self, handles: Sequence[Handle]) -> None:
        pass

    def output(self, _handle: Handle) -> Output:
        return Output(stdout=b"", stderr=b"")

    def forget(self, handles: Sequence[Handle]) -> None:
        for each in handles:
            self.jobs.pop(each.stamp, None)

    def capacity(self) -> Mapping[str, Capacity]:
        return {}


class _Record(logging.Handler):
    """What the log says of who came."""

    def __init__(self, came: list[str]) -> None:
        super().__init__()
        self._came = came

    def emit(self, record: logging.LogRecord) -> None:
        if "taken for" in record.getMessage():
            self._came.append(record.getMessage())


@dataclass
class Burst:
    """The gateway under load, and what is true of it."""

    ground: Ground
    chance: random.Random
    came: list[str] = field(default_factory=list)  #: lines of the log
    most: Counter[str] = field(default_factory=Counter)

    def watch(self, gateway: Gateway) -> None:
        """Look at the manager's record, and at what is on its way to it."""
        grid_jobs = gateway.manager.grid_jobs()
        known = {each.taken.job_id for each in grid_jobs}
        on_the_way = len(set(self._matched()) - known)
        submitting = sum(each.phase is ManagerPhase.SUBMITTING for each in grid_jobs) + on_the_way
        gathering = sum(map(is_gathering, grid_jobs))
        now = {
            "submitting": submitting,
            "gathering": gathering,
            "submitting and gathering": submitting + gathering,
            "all": len(grid_jobs) + on_the_way,
        }
        self.most |= Counter(now)

    def _matched(self) -> list[int]:
        with database.reading(self.ground.service.engine) as conn:
            return list(conn.scalars(MATCHED))

    def step(self, gateway: Gateway) -> None:
        assert self.ground.line is not None
        self.ground.line.loses = self.chance.choice([None] * 6 + ["requestJob", "/start", "/advertisement"])
        which = self.chance.choice(["talk", "work", "work", "deliver"])
        with contextlib.suppress(Away):
            if which == "talk":
                gateway.talk(utc_now())
            elif which == "work":
                gateway.manager.advance()
            else:
                gateway.leases.deliver()


@pytest.mark.parametrize(
    ("throttle", "number", "limits"),
    [
        ("{Policy: level0, MaxSubmittingJobs: 2}", 10, {"submitting": 2}),
        (
            "{Policy: level1, MaxSubmittingAndOutputGatheringJobs: 2}",
            6,
            {"submitting and gathering": 2},
        ),
        (
            "{Policy: level2, MaxJobs: 4, MaxSubmittingAndOutputGatheringJobs: 3}",
            6,
            {"submitting and gathering": 3, "all": 4},
        ),
        ("{Policy: brokering, MaxJobs: 3, MaxSubmittingJobs: 2}", 6, {"submitting": 2, "all": 3}),
    ],
    ids=["level0", "level1", "level2", "brokering"],
)
def test_a_burst_of_grid_jobs_never_exceeds_what_the_site_takes(
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    throttle: str,
    number: int,
    limits: dict[str, int],
) -> None:
    chance = random.Random(throttle)
    farm = SlowFarm(chance=chance)
    shared = SharedBatchSystem(
        system=ReliableSystem(system=farm),
        shell=LocalShell(),
        directory=str(tmp_path / "shared"),
    )
    monkeypatch.setattr(processes_gateway, "_open_batch_system", lambda *_: shared)
    for module in (leases, manager):
        monkeypatch.setattr(module, "random", chance)
    with running(engine, tmp_path, CONFIG.format(throttle=throttle)) as service:
        burst = Burst(ground=Ground(service, tmp_path / "gateway", monkeypatch), chance=chance)
        record = _Record(burst.came)
        logger = logging.getLogger("pilotage.fabric.gateway.pulling")
        caplog.set_level(logging.INFO, logger.name)
        monkeypatch.setattr(logger, "handlers", [*logger.handlers, record])
        job_ids = burst.ground.submit(number, LocalJobs=LOCAL_JOBS)
        _run_until_all_ended(burst, number)
    assert len(burst.came) >= number
    assert {line.split()[1] for line in burst.came} == set(map(str, job_ids))
    assert all(burst.most[what] <= limit for what, limit in limits.items()), burst.most
    first = next(iter(limits))
    assert burst.most[first] == limits[first]  # as many as may be were there at some time


def _run_until_all_ended(burst: Burst, number: int) -> None:
    """Over many lives of the gateway."""
    for _ in range(60):
        queues = burst.ground.told().model_dump(mode="json")["queues"]
        queues[0]["max_grid_jobs"] = 100
        with burst.ground.gateway(max_jobs_per_cycle=1, retries={"tries": 1}, queues=queues) as gateway:
            for _ in range(burst.chance.randrange(5, 30)):
                burst.step(gateway)
                burst.watch(gateway)
            ended = burst.ground.statuses()
        if ended.get("Done", 0) + ended.get("Failed", 0) == number:
            return
    raise AssertionError(burst.ground.statuses())
