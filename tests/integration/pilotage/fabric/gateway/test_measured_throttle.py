"""A simulated host whose load grows with submissions, before a real service: only its own load bounds it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pilotage.cli.processes import gateway as processes_gateway
from pilotage.fabric.batch.batch_system import (
    BatchJob,
    Capacity,
    Handle,
    JobReport,
    Output,
    ReliableSystem,
    State,
    SubmissionRefused,
)
from pilotage.fabric.batch.measurements import Measurements
from pilotage.fabric.batch.shell import Completed, LocalShell
from pilotage.fabric.gateway.gateway import Gateway
from pilotage.fabric.manager.shared_area import SharedBatchSystem
from pilotage.service.services import utc_now
from tests.support.gateway import SITE, Ground
from tests.support.service import Service

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      Throttle: {{Policy: expression, Requirements: '{requirements}'}}
      CEs:
        ce1:
          CPUTime: 100000
          MaxRAM: 4000
          Queues: {{long: {{}}}}
Registry:
  VO: {{cms: {{}}}}
  Groups: {{cms_user: {{VO: cms}}}}
"""
CORES = 2
ROUNDS = 15
LOCAL_JOBS = 3
AT_ONCE = 4  #: grid jobs
WITH_LOAD = f"CurMatches < {AT_ONCE} && Load < 10"
WITHOUT_LOAD = f"CurMatches < {AT_ONCE}"


@dataclass
class LoadedHost:
    """A batch system whose jobs end at once, while each submission leaves a load that goes away slowly."""

    load: float = 0.0  #: per core
    seconds: float = 0.0  #: of its clock
    refuses: bool = False
    highest: float = 0.0
    ended: set[str] = field(default_factory=set)

    def submit(self, job: BatchJob) -> str:
        self.seconds += 2 * self.load  # the more it has to do, the slower it is
        if self.refuses:
            raise SubmissionRefused("full, on purpose")
        self.load += 1
        self.highest = max(self.highest, self.load)
        self.ended.add(job.stamp)
        return job.stamp

    def pass_time(self) -> None:
        self.seconds += 20
        self.load *= 0.9

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        return {each.stamp: JobReport(state=State.DONE, exit_code=0) for each in handles}

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        return {stamp: (stamp,) for stamp in stamps if stamp in self.ended}

    def kill(self, handles: Sequence[Handle]) -> None:
        pass

    def output(self, _handle: Handle) -> Output:
        return Output(stdout=b"", stderr=b"")

    def forget(self, handles: Sequence[Handle]) -> None:
        pass

    def capacity(self) -> Mapping[str, Capacity]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOfLoadedHost(LocalShell):
    """The shell of that host."""

    host: LoadedHost

    def run(self, command: Sequence[str], **more: Any) -> Completed:
        if "/proc/loadavg" not in command[-1]:
            return LocalShell.run(self, command, **more)
        text = f"{self.host.load * CORES:.2f} 0.00 0.00 1/100 4711\n{CORES}\n"
        return Completed(status=0, stdout=text, stderr="")


def throttled(requirements: str) -> pytest.MarkDecorator:
    """With a throttle at the site that requires this."""
    return pytest.mark.config(CONFIG.format(requirements=requirements))


@pytest.fixture
def ground(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(service, tmp_path / "gateway", monkeypatch)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedHost:
    host = LoadedHost()
    system: Any = host
    shared = SharedBatchSystem(
        system=ReliableSystem(system=system),
        shell=ShellOfLoadedHost(host=host),
        directory=str(tmp_path / "shared"),
        measured=Measurements(clock=lambda: host.seconds),
    )
    monkeypatch.setattr(processes_gateway, "_open_batch_system", lambda *_: shared)
    return host


def advance(gateway: Gateway) -> None:
    gateway.talk(utc_now())
    gateway.manager.advance()
    gateway.leases.deliver()


def run_rounds(ground: Ground, host: LoadedHost) -> None:
    ground.submit(ROUNDS * AT_ONCE, LocalJobs=LOCAL_JOBS)
    queues = ground.told().model_dump(mode="json")["queues"]
    queues[0]["max_grid_jobs"] = 100
    with ground.gateway(retries={"tries": 1}, queues=queues) as gateway:
        for _ in range(ROUNDS):
            advance(gateway)
            host.pass_time()


@pytest.mark.parametrize(
    "is_bounded",
    [
        pytest.param(True, marks=throttled(WITH_LOAD), id="with"),
        pytest.param(False, marks=throttled(WITHOUT_LOAD), id="without"),
    ],
)
def test_a_throttle_that_reads_the_load_bounds_it(ground: Ground, host: LoadedHost, is_bounded: bool) -> None:
    run_rounds(ground, host)
    # The last ones are matched below 10, and all that is matched by one advertisement is submitted.
    bound = 10 + AT_ONCE * LOCAL_JOBS
    assert host.highest > 10, "the load reaches where the throttle closes"
    assert (host.highest < bound) == is_bounded, host.highest


@throttled(WITH_LOAD)
def test_why_it_is_closed_names_what_was_measured(ground: Ground, host: LoadedHost) -> None:
    host.load = 20
    with ground.gateway() as gateway:
        advance(gateway)
        assert ground.throttle()["why"] == "Load < 10 is not true: Load is absent"
        gateway.talk(utc_now())
    assert ground.throttle()["why"] == "Load < 10 is not true: Load = 20"


@throttled(WITH_LOAD)
def test_a_single_cycle_measures_the_load_before_it_advertises(ground: Ground, host: LoadedHost) -> None:
    ground.submit()
    with ground.gateway() as gateway:
        assert gateway.run_once(utc_now()).taken == 1
    assert host.ended, "a local job was submitted"


@throttled("SubmitErrors < 1 && SubmitSeconds < 30")
def test_failed_and_slow_submissions_close_it_and_are_forgotten(ground: Ground, host: LoadedHost) -> None:
    ground.submit()
    host.load, host.refuses = 20, True
    with ground.gateway(retries={"tries": 1}) as gateway:
        gateway.talk(utc_now())
        advance(gateway)
        gateway.talk(utc_now())
        why = ground.throttle()["why"]
        assert why == (
            "SubmitErrors < 1 is not true: SubmitErrors = 1; "
            "SubmitSeconds < 30 is not true: SubmitSeconds = 40"
        )
        host.seconds += 900
        gateway.talk(utc_now())
        assert ground.throttle()["open"]
    found = ground.operator.get(f"/api/v1/sites/{SITE}").json()["advertised"]
    values = {each["name"]: each["value"] for each in found if each["scope"] == SITE}
    assert (values["SubmitErrors"], values["SubmitSeconds"]) == (0, 0)
