"""What is asked of PBS, as Slurm takes it by its wrappers of the commands; and which jobs are listed."""

import getpass
import os
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
from tests.support.servers import torque

of_torque = pytest.mark.debian("torque")


@pytest.fixture
def system(slurm: Slurm, tmp_path: Path) -> Iterator[DialectSystem]:
    shell = LocalShell(environment=torque.environment(slurm, tmp_path / "bin"))
    areas = WorkAreas(directory=str(tmp_path / "jobs"), shell=shell)
    yield DialectSystem(areas=areas, dialect=dialect.shipped_dialect("pbs"))
    slurm.end_jobs()


def job(**asked: object) -> BatchJob:
    values = {"queue": "long", **asked}
    return BatchJob(stamp=f"test-{uuid.uuid4()}", script="#!/bin/sh\nsleep 600\n", **values)  # type: ignore[arg-type]


@of_torque
def test_cores_memory_and_time_arrive_together_with_flags(system: DialectSystem, slurm: Slurm) -> None:
    asked = JobResources(cores=3, memory=2500, wall_time=3601)

    reference = system.submit(job(resources=asked, flags=("-l", "proc=avx512")))

    shown = slurm.ask("scontrol", "show", "job", reference)
    assert "NumCPUs=3 NumTasks=3" in shown
    assert "MinMemoryNode=2500M" in shown
    assert "TimeLimit=01:01:00" in shown  # rounded up to minutes
    assert "Features=avx512" in shown


@of_torque
def test_without_its_server_a_submission_is_uncertain(system: DialectSystem, slurm: Slurm) -> None:
    slurm.kill_controller()
    try:
        with pytest.raises(SubmissionUncertain, match="Unable to contact"):
            system.submit(job())
    finally:
        slurm.start_controller()
        slurm.wait_until_up()


#: `qstat -f` as Torque answers it, of the jobs that are named or of all: 1 and 2 are ours.
QSTAT = """\
#!/bin/sh
test "$1" = -f || exit 2
shift
for job in ${@:-1.head 2.head 3.head}; do
    case $job in
        9.head) echo "qstat: Unknown Job Id 9.head" >&2; status=153;;
        *) printf 'Job Id: %s\\n    Job_Name = p.s-%s\\n    job_state = R\\n\\n' $job ${job%.head};;
    esac
done
exit ${status:-0}
"""


@pytest.mark.parametrize(
    ("selected", "listed"),
    [
        ("echo 1.head; echo 2.head", {"s-1", "s-2"}),
        ("true", set()),
        ("echo 1.head; echo 9.head", {"s-1", "s-2", "s-3"}),  # one of them ended meanwhile
        ("exit 1", {"s-1", "s-2", "s-3"}),
        (None, {"s-1", "s-2", "s-3"}),  # there is none, as with Slurm's wrappers
    ],
)
def test_jobs_of_the_own_account_are_listed_where_they_can_be_selected(
    tmp_path: Path, selected: str | None, listed: set[str]
) -> None:
    commands = {"qstat": QSTAT}
    if selected is not None:
        user = getpass.getuser()
        commands["qselect"] = f'#!/bin/sh\ntest "$*" = "-u {user}" || exit 2\n{selected}\n'
    for name in ("sh", "id", "test"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    areas = WorkAreas(
        directory=str(tmp_path / "jobs"), shell=LocalShell(environment={**os.environ, "PATH": str(tmp_path)})
    )
    system = DialectSystem(areas=areas, dialect=dialect.shipped_dialect("pbs"))

    assert system.survey([], "s-").stamps == listed
