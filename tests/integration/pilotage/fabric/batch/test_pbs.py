"""What is asked of PBS, as Slurm takes it by its wrappers of the commands."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.servers.slurm import Slurm
from pilotage.fabric.batch.batch_system import BatchJob, JobResources, SubmissionUncertain
from pilotage.fabric.batch.dialect import dialect
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from tests import torque

pytestmark = pytest.mark.debian("torque")


@pytest.fixture
def system(slurm: Slurm, tmp_path: Path) -> Iterator[DialectSystem]:
    shell = LocalShell(environment=torque.environment(slurm, tmp_path / "bin"))
    areas = WorkAreas(directory=str(tmp_path / "jobs"), shell=shell)
    yield DialectSystem(areas=areas, dialect=dialect.shipped_dialect("pbs"))
    slurm.end_jobs()


def job(**asked: object) -> BatchJob:
    values = {"queue": "long", **asked}
    return BatchJob(stamp=f"test-{uuid.uuid4()}", script="#!/bin/sh\nsleep 600\n", **values)  # type: ignore[arg-type]


def test_cores_memory_and_time_arrive_together_with_flags(system: DialectSystem, slurm: Slurm) -> None:
    asked = JobResources(cores=3, memory=2500, wall_time=3601)

    reference = system.submit(job(resources=asked, flags=("-l", "proc=avx512")))

    shown = slurm.ask("scontrol", "show", "job", reference)
    assert "NumCPUs=3 NumTasks=3" in shown
    assert "MinMemoryNode=2500M" in shown
    assert "TimeLimit=01:01:00" in shown  # rounded up to minutes
    assert "Features=avx512" in shown


def test_without_its_server_a_submission_is_uncertain(system: DialectSystem, slurm: Slurm) -> None:
    slurm.kill_controller()
    try:
        with pytest.raises(SubmissionUncertain, match="Unable to contact"):
            system.submit(job())
    finally:
        slurm.start_controller()
        slurm.wait_until_up()
