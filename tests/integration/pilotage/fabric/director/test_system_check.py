"""`--check` of directors and gateways at a real Slurm: what would be refused does not pass."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.servers.slurm import Slurm
from pilotage.fabric.batch.batch_system import JobResources, ReliableSystem
from pilotage.fabric.batch.dialect.command import DialectSystem
from pilotage.fabric.batch.dialect.dialect import shipped_dialect
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.batch.work_area import WorkAreas
from pilotage.fabric.director.system_check import check_systems
from pilotage.fabric.director.targets import QueueTarget

pytestmark = pytest.mark.debian("slurm")
PLACE = "LCG.A.org/ce1/long"


def check(slurm: Slurm, directory: Path, batch_queue: str = "long", **target: object) -> str:
    areas = WorkAreas(directory=str(directory), shell=LocalShell(environment=slurm.environment))
    system = DialectSystem(areas=areas, dialect=shipped_dialect("slurm"))
    queue = QueueTarget(queue=PLACE, system="farm", batch_queue=batch_queue, **target)  # type: ignore[arg-type]
    return check_systems({"farm": ReliableSystem(name="farm", system=system)}, [queue], seconds=60)["farm"]


def test_a_queue_that_takes_jobs_passes_and_no_job_and_no_file_is_left(slurm: Slurm, tmp_path: Path) -> None:
    before = slurm.ask("squeue", "--noheader", "--states=all", "--format=%i")

    assert check(slurm, tmp_path / "jobs", resources=JobResources(memory=300, wall_time=600)) == ""

    assert slurm.ask("squeue", "--noheader", "--states=all", "--format=%i") == before
    assert list((tmp_path / "jobs").iterdir()) == []


@pytest.mark.parametrize(
    ("batch_queue", "target", "problem"),
    [
        ("nosuch", {}, f"{PLACE}: no batch queue nosuch, there are "),
        ("long,nosuch", {}, f"{PLACE}: no batch queue nosuch, there are "),
        ("long", {"flags": ("--foo",)}, f"{PLACE}: a job with --foo would be refused: sbatch: "),
        (
            "long",
            {"resources": JobResources(gpus=1), "flags": ("--gres=gpu:h100:1",)},
            f"{PLACE}: a job with --gres=gpu:h100:1 would be refused: sbatch: ",
        ),
        (
            "long",
            {"resources": JobResources(memory=900_000_000)},
            f"{PLACE}: a job would be refused: sbatch: ",
        ),
        (
            "long",
            {"flags": ("--constraint=nosuch",)},
            f"{PLACE}: a job with --constraint=nosuch would be refused: sbatch: ",
        ),
        # What sbatch itself takes, also with --test-only, and makes no single job that starts.
        (
            "long",
            {"flags": ("--array=1-9",)},
            f"{PLACE}: a job with --array=1-9 would be refused: --array=1-9: a submission has to make one",
        ),
        (
            "long",
            {"flags": ("-W",)},
            f"{PLACE}: a job with -W would be refused: -W: the submission would last",
        ),
        ("long", {"flags": ("-H",)}, f"{PLACE}: a job with -H would be refused: -H: the job would not start"),
    ],
)
def test_what_slurm_would_refuse_does_not_pass(
    slurm: Slurm, tmp_path: Path, batch_queue: str, target: dict[str, object], problem: str
) -> None:
    assert check(slurm, tmp_path / "jobs", batch_queue, **target).startswith(problem)


@pytest.fixture
def closed(slurm: Slurm) -> Iterator[str]:
    """A partition that is down."""
    slurm.ask("scontrol", "update", "PartitionName=short", "State=DOWN")
    yield "short"
    slurm.ask("scontrol", "update", "PartitionName=short", "State=UP")


def test_a_partition_that_is_down_does_not_pass(slurm: Slurm, tmp_path: Path, closed: str) -> None:
    problem = f"{PLACE}: the batch queue short is closed, or no node of it is up"
    assert check(slurm, tmp_path / "jobs", closed).startswith(problem)
