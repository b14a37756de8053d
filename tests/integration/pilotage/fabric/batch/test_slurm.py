"""What Slurm does to its jobs beyond the checks that every batch system passes."""

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from examples.servers.slurm import Slurm as Cluster
from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Handle,
    JobReport,
    JobResources,
    State,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.dialect.dialect import shipped_dialect
from pilotage.fabric.batch.settings import Connections, SystemSettings, open_system
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.pilot.node import discovery

pytestmark = pytest.mark.debian("slurm")


def submit(system: DialectSystem, job: BatchJob) -> Handle:
    return Handle(stamp=job.stamp, reference=system.submit(job))


@pytest.fixture
def system(slurm: Cluster, tmp_path: Path) -> Iterator[DialectSystem]:
    shell = LocalShell(environment=slurm.environment)
    areas = WorkAreas(directory=str(tmp_path / "jobs"), shell=shell)
    yield DialectSystem(areas=areas, dialect=shipped_dialect("slurm"))
    slurm.end_jobs()


def job(script: str = "sleep 600", **asked: object) -> BatchJob:
    values = {"queue": "long", **asked}
    return BatchJob(stamp=f"test-{uuid.uuid4()}", script=f"#!/bin/sh\n{script}\n", **values)  # type: ignore[arg-type]


def until(look: Callable[[], JobReport], state: State) -> JobReport:
    deadline, report = time.monotonic() + 300, None
    while report is None or report.state is not state:
        assert time.monotonic() < deadline, report
        time.sleep(0.1)
        with suppress(BatchSystemAway):  # a busy controller does not answer in time
            report = look()
    return report


def test_cores_memory_and_time_are_asked_for(system: DialectSystem, slurm: Cluster) -> None:
    asked = JobResources(cores=3, memory=2500, wall_time=3601)
    reference = system.submit(job(resources=asked))
    shown = slurm.ask("scontrol", "show", "job", reference)
    assert "NumCPUs=3" in shown
    assert "MinMemoryNode=2500M" in shown
    assert "TimeLimit=01:01:00" in shown  # rounded up to minutes


def test_memory_that_flags_state_for_each_core_is_the_only_one(system: DialectSystem, slurm: Cluster) -> None:
    asked = JobResources(cores=3, memory=2500)
    reference = system.submit(job(resources=asked, flags=("--mem-per-cpu=100M",)))
    assert "MinMemoryCPU=100M" in slurm.ask("scontrol", "show", "job", reference)


def test_variables_of_the_environment_do_not_change_what_is_submitted_listed_and_ended(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in shipped_dialect("slurm").unset:
        monkeypatch.setenv(name, "1")
    told = SystemSettings.model_validate(
        {"kind": "slurm", "directory": tmp_path / "jobs", "environment": slurm.environment}
    )
    with ExitStack() as stack:
        system = open_system(told, Connections(stack=stack))
        assert isinstance(system, DialectSystem)
        handle = submit(system, job())
        until(lambda: system.status([handle])[handle.stamp], State.RUNNING)
        assert "long" in system.capacity()
        assert system.count_jobs(["long"]).running == 1
        system.kill([handle])
        until(lambda: system.status([handle])[handle.stamp], State.KILLED)


def test_administrators_see_what_a_job_is_for(system: DialectSystem, slurm: Cluster) -> None:
    about = {"VO": "cms", "Owner": "ada; $(touch x) --mem=9 'q", "Job": "17"}
    reference = system.submit(job(about=about))
    shown = slurm.ask("squeue", "--noheader", "--format=%k", "--jobs", reference)
    assert shown.strip() == "VO=cms;Owner=ada____touch_x__--mem_9__q;Job=17"


def test_a_pilot_in_a_job_knows_when_its_slot_ends(system: DialectSystem) -> None:
    ask = (
        "import os; from pilotage.fabric.pilot.node import discovery; "
        "print(discovery.slot_seconds_left(os.environ, 0))"
    )
    root = Path(discovery.__file__).parents[3]
    script = f"PYTHONPATH={root} {sys.executable} -c '{ask}'"
    handle = submit(system, job(script, resources=JobResources(wall_time=3600)))
    until(lambda: system.status([handle])[handle.stamp], State.DONE)
    assert 3000 < int(system.output(handle).stdout) <= 3600


def test_a_flag_reaches_the_node_that_has_the_feature(system: DialectSystem) -> None:
    handle = submit(system, job("echo $SLURMD_NODENAME", flags=("--constraint=avx512",)))
    until(lambda: system.status([handle])[handle.stamp], State.DONE)
    assert system.output(handle).stdout == b"n3\n"


def test_flags_add_to_what_a_slot_has_and_never_take_from_it(system: DialectSystem, slurm: Cluster) -> None:
    slot = JobResources(memory=2500, wall_time=3600)
    flags = ("--constraint=amd", "--mem=100M", "--time=90", "--constraint=avx512|intel")
    shown = slurm.ask("scontrol", "show", "job", system.submit(job(resources=slot, flags=flags)))
    assert "MinMemoryNode=2500M" in shown
    assert "TimeLimit=01:30:00" in shown
    assert "Features=amd&(avx512|intel) " in shown


@pytest.mark.parametrize(("flags", "node"), [(("--gres=gpu:a100:1",), "n2"), (("--gres=gpu:l40s:1",), "n3")])
def test_a_kind_of_gpu_is_asked_for_as_often_as_the_slot_has_gpus(
    system: DialectSystem, slurm: Cluster, flags: tuple[str, ...], node: str
) -> None:
    asked = job("echo $SLURMD_NODENAME", resources=JobResources(gpus=2), flags=flags)
    handle = submit(system, asked)
    until(lambda: system.status([handle])[handle.stamp], State.DONE)
    assert system.output(handle).stdout.decode().strip() == node
    shown = slurm.ask("scontrol", "show", "job", handle.reference or "")
    assert f"TresPerNode=gres:{flags[0].removeprefix('--gres=').removesuffix(':1')}:2\n" in shown


def test_local_disk_that_jobs_need_leaves_out_the_nodes_with_less(system: DialectSystem) -> None:
    handle = submit(system, job("echo $SLURMD_NODENAME", flags=("--tmp=50000M",)))
    until(lambda: system.status([handle])[handle.stamp], State.DONE)
    assert system.output(handle).stdout == b"n3\n"


@pytest.mark.parametrize(
    "asked",
    [
        {"queue": "nowhere"},
        {"resources": JobResources(gpus=1), "flags": ("--gres=gpu:h100:1",)},
        {"flags": ("--tmp=900000M",)},
        {"resources": JobResources(memory=10**6)},
        {"resources": JobResources(wall_time=10**8)},
        {"flags": ("--constraint=nosuch",)},
    ],
)
def test_what_can_never_run_is_refused(system: DialectSystem, asked: dict[str, object]) -> None:
    refused = job(**asked)
    with pytest.raises(SubmissionRefused, match=f"{refused.stamp}: sbatch: "):
        system.submit(refused)
    # Slurm may keep a record of it, but nothing that could run.
    report = system.status([Handle(stamp=refused.stamp)])[refused.stamp]
    assert report.state in (State.MISSING, State.FAILED)


def test_a_job_that_the_controller_forgot_is_known_by_what_it_left(
    system: DialectSystem, slurm: Cluster
) -> None:
    handle = submit(system, job("exit 3"))
    until(lambda: system.status([handle])[handle.stamp], State.FAILED)
    forgetful = replace(system)
    slurm.kill_controller()
    for file in slurm.directory.glob("state/*"):
        if file.is_file():
            file.unlink()
    slurm.start_controller()
    slurm.wait_until_up()
    assert forgetful.find([handle.stamp]) == {}
    report = forgetful.status([handle])[handle.stamp]
    assert (report.state, report.exit_code) == (State.FAILED, 3)


def test_without_its_controller_nothing_is_concluded(system: DialectSystem, slurm: Cluster) -> None:
    handle = submit(system, job())
    slurm.kill_controller()
    try:
        with pytest.raises(BatchSystemAway):
            system.status([handle])
        with pytest.raises(SubmissionUncertain):
            system.submit(job())
    finally:
        slurm.start_controller()
        slurm.wait_until_up()
