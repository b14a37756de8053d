"""`pilotage director` as a process of its own on a real Slurm, killed again and again."""

import platform
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from examples.servers.slurm import Slurm
from examples.servers.starting import free_port, wait_until
from tests.support.directors_on_slurm import Field
from tests.support.service import running_on_sqlite

pytestmark = pytest.mark.debian("slurm")

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms, dune]
      CPUTime: 3600
      MaxRAM: 300
      CEs:
        slurm:
          Queues:
            short: {MaxTotalJobs: 30, MaxWaitingJobs: 30}
            long:
              MaxTotalJobs: 30
              MaxWaitingJobs: 30
              NodeAttributes: {Architecture: [HERE, other]}
              Forwarding:
                Vocabulary: Slurm
                Attributes: {Architecture: {features: {HERE: avx512, other: intel}}}
Registry:
  VO: {cms: {}, dune: {}}
  Groups:
    cms_user: {VO: cms}
    dune_user: {VO: dune}
Operations:
  Defaults:
    JobScheduling: {RescheduleDelays: [0]}
"""
HERE = platform.machine()  # pilots measure it
VOS = ("cms", "dune")


@pytest.fixture
def field(sqlite_template: Path, slurm: Slurm, tmp_path: Path) -> Iterator[Field]:
    with running_on_sqlite(sqlite_template, tmp_path, CONFIG.replace("HERE", HERE)) as service:
        field = Field(service, slurm, tmp_path, vos=VOS)
        field.tell({f"LCG.A.org/slurm/{name}": name for name in ("short", "long")})
        yield field
        slurm.end_jobs()


def test_jobs_of_two_vos_are_done_once_by_pilots_of_a_director_that_is_killed_again_and_again(
    field: Field,
) -> None:
    chance = random.Random(7)
    for vo in VOS:
        field.submit(vo, 10)
        field.submit(vo, 2, Requirements={"Architecture": HERE})
    with field.director() as director:
        for _ in range(5):
            time.sleep(chance.uniform(1.0, 2.2))
            director.kill()
            director.start()
        field.wait_until_done(director)

    batch_jobs, pilots = field.batch_jobs(), {pilot["stamp"]: pilot for pilot in field.pilots()}
    names = Counter(stamp for _, stamp, _ in batch_jobs)
    assert names
    assert max(names.values()) == 1, "no stamp twice"
    assert names.keys() <= pilots.keys(), "no batch job without its intent"
    known = {stamp: pilot["reference"] for stamp, pilot in pilots.items() if pilot["reference"]}
    assert all(known.get(stamp, number) == number for number, stamp, _ in batch_jobs)
    assert known.keys() <= names.keys()
    assert {pilot["vo"] for pilot in pilots.values() if pilot["jobs"]} == set(VOS)
    assert {partition for _, stamp, partition in batch_jobs if ".any." not in stamp} == {"long"}


@contextmanager
def _cancel(slurm: Slurm, number: str) -> Iterator[None]:
    slurm.ask("scancel", number)
    yield


@contextmanager
def _limit_time(slurm: Slurm, number: str) -> Iterator[None]:
    slurm.ask("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    yield


@contextmanager
def _preempt(slurm: Slurm, number: str) -> Iterator[None]:
    """Submit an urgent job for the whole node of another one."""
    node = slurm.ask("squeue", "--noheader", f"--jobs={number}", "--format=%N").strip()
    slurm.ask("scontrol", "create", "PartitionName=urgent", f"Nodes={node}", "PriorityTier=10", "State=UP")
    try:
        urgent = ("--partition=urgent", "--exclusive", "--output=/dev/null", "--job-name=urgent")
        slurm.ask("sbatch", *urgent, "--wrap=sleep 600")
        yield
    finally:
        slurm.ask("scancel", "--name=urgent")
        wait_until(lambda: not slurm.ask("squeue", "--noheader", "--name=urgent"))
        slurm.ask("scontrol", "delete", "PartitionName=urgent")


@pytest.mark.parametrize("end", [_cancel, _limit_time, _preempt])
def test_a_job_on_several_cores_whose_slot_is_ended_by_slurm_is_given_back_and_runs_again(
    field: Field, tmp_path: Path, end: Callable[[Slurm, str], AbstractContextManager[None]]
) -> None:
    """Slurm signals every process of the slot: payloads are gone before their pilot can end them."""
    field.tell({"LCG.A.org/slurm/long": "long"}, "--processors=4", cores=4)
    begun = tmp_path / "begun"
    script = f"[ -e {begun} ] && exit; for n in 1 2 3 4; do sleep 600 & done; touch {begun}; wait"
    [job_id] = field.submit("cms", 1, Executable="/bin/sh", Arguments=["-c", script], NumberOfProcessors=4)
    assert field.once()["submitted"] == 1
    wait_until(begun.exists)

    [(number, _, _)] = field.batch_jobs()
    with end(field.slurm, number):
        wait_until(lambda: field.statuses(job_id)[-1] != "Running")
        with field.director() as director:
            field.wait_until_done(director)
    way = ["Waiting", "Matched", "Running"]
    assert field.statuses(job_id) == ["Received", *way, "Rescheduled", *way, "Done"]


def test_a_controller_that_is_killed_is_named_and_costs_no_work(field: Field, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.2; done"
    [job_id] = field.submit("cms", 1, Executable="/bin/sh", Arguments=["-c", script])
    with field.director() as director:
        wait_until(begun.exists)
        [(number, _, _)] = field.batch_jobs()
        # What is not in its state, a controller that dies forgets; it may write late what it read before.
        for comment in ("running", "written"):
            (mark := tmp_path / comment).touch()
            field.slurm.ask("scontrol", "update", f"JobId={number}", f"Comment={comment}")
            wait_until(lambda since=mark: _is_kept_since(field.slurm, since))  # type: ignore[misc]
        field.slurm.kill_controller()
        try:
            wait_until(lambda: "farm: squeue: " in director.log.read_text())
        finally:
            field.slurm.start_controller()
            field.slurm.wait_until_up()
        go.touch()
        field.wait_until_done(director)
    assert field.statuses(job_id) == ["Received", "Waiting", "Matched", "Running", "Done"]


def _is_kept_since(slurm: Slurm, file: Path) -> bool:
    """Whether the controller has stored its jobs after a file was written; it replaces its own."""
    with suppress(FileNotFoundError):
        return (slurm.directory / "state" / "job_state").stat().st_mtime > file.stat().st_mtime
    return False


def test_a_node_whose_daemon_is_killed_costs_no_work_and_doubles_none(field: Field, tmp_path: Path) -> None:
    """Slurm takes the batch job for ended, while the pilot and its payload live."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"echo >>{begun}; while [ ! -e {go} ]; do sleep 0.2; done"
    [job_id] = field.submit("cms", 1, Executable="/bin/sh", Arguments=["-c", script])
    director = field.director()
    director.start()
    node = ""
    try:
        wait_until(begun.exists)
        node = field.slurm.ask("squeue", "--noheader", "--me", "--states=R", "--format=%N").strip()
        field.slurm.kill_node(node)
        wait_until(lambda: any(each["status"] == "Failed" for each in field.pilots()))
        go.touch()
        field.wait_until_done(director)
    finally:
        go.touch()
        director.stop()
        if node:
            field.slurm.start_node(node)
            field.slurm.wait_until_up()
    [pilot] = field.pilots()
    assert pilot["status_reason"].startswith("\nNODE_FAIL: NodeDown")
    assert begun.read_text() == "\n", "it ran once"
    statuses = field.statuses(job_id)
    assert (statuses[-1], "Rescheduled" in statuses) == ("Done", False)


def _take_accounting_away(field: Field) -> None:
    """Have the commands of the director look for a `slurmdbd` where none listens."""
    own = field.directory / "slurm.conf"
    told = (field.slurm.directory / "slurm.conf").read_text()
    dead = (
        f"accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\nAccountingStoragePort={free_port()}"
    )
    own.write_text(told.replace("accounting_storage/none", dead))
    file = yaml.safe_load(field.file.read_text())
    file["systems"]["farm"]["environment"] = {"SLURM_CONF": str(own)}
    field.file.write_text(yaml.safe_dump(file))


def test_pilots_that_slurm_forgot_while_its_accounting_is_away_keep_no_job_waiting(
    field: Field, tmp_path: Path
) -> None:
    """One was cancelled before it began, one ended well; nothing but the marks of the second is left."""
    # One node has 8 cores: the second pilot waits.
    field.tell({"LCG.A.org/slurm/long": "long"}, "--max-jobs=1", cores=8)
    _take_accounting_away(field)
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"echo >>{begun}; while [ ! -e {go} ]; do sleep 0.2; done"
    [first] = field.submit("cms", 1, Executable="/bin/sh", Arguments=["-c", script], NumberOfProcessors=8)
    with field.director() as director:
        wait_until(begun.exists)
        [second] = field.submit("cms", 1, NumberOfProcessors=8)
        wait_until(lambda: len(field.batch_jobs()) == 2)
        wait_until(lambda: all(each["reference"] for each in field.pilots()))
        director.stop()
        pending = ("squeue", "--noheader", "--me", "--states=PENDING", "--format=%i|%j")
        number, waiting = field.slurm.ask(*pending).strip().split("|")
        field.slurm.ask("scancel", number)
        go.touch()
        wait_until(lambda: field.statuses(first)[-1] == "Done")
        wait_until(lambda: not field.slurm.ask("squeue", "--noheader", "--me"))
        field.slurm.forget_jobs()
        director.start()
        field.wait_until_done(director)
    assert begun.read_text() == "\n", "it ran once"
    assert field.statuses(second) == ["Received", "Waiting", "Matched", "Running", "Done"]
    told = director.log.read_text()
    assert f"{field.directory}/jobs: the accounting does not answer: sacct: sacct: error: " in told
    ended = {each["stamp"]: each["status"] for each in field.pilots()}  # Slurm may use the numbers again
    assert ended[waiting] == "Aborted", ended


def test_a_bad_node_of_two_does_not_stop_its_queue(field: Field) -> None:
    """One node of the partition does not have the shared directory: each pilot there ends at once."""
    jobs = field.directory / "jobs"
    jobs.mkdir()
    daemon = (field.slurm.directory / "slurmd.n1.pid").read_text().strip()
    on_n1 = ("nsenter", f"--target={daemon}", "--mount")
    field.slurm.ask("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    director = field.director()
    try:
        subprocess.run([*on_n1, "mount", "-t", "tmpfs", "tmpfs", jobs], check=True)
        field.tell({"LCG.A.org/slurm/short": "short"})
        job_ids = field.submit("cms", 6)
        director.start()
        wait_until(lambda: "n1" in _list_bad_nodes(field))
        broken = {each["stamp"] for each in field.pilots()}
        field.slurm.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
        field.wait_until_done(director)
    finally:
        director.stop()
        with suppress(RuntimeError):  # it is not drained any more
            field.slurm.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
        subprocess.run([*on_n1, "umount", "--lazy", jobs], check=True)
    later = [each for each in field.pilots() if each["stamp"] not in broken]
    assert not [each for each in later if each["status"] == "Aborted"], "others avoid the node"
    assert {each["node"] for each in field.pilots() if each["status"] == "Aborted"} == {"n1"}
    assert all(field.statuses(each)[-1] == "Done" for each in job_ids)


def _list_bad_nodes(field: Field) -> list[str]:
    rows = field.service.operator().get("/api/v1/site-processes").json()["processes"]
    return [node for row in rows for queue in row["queues"] or () for node in queue["bad_nodes"]]


def test_jobs_are_not_stuck_in_front_of_a_full_partition_beside_an_idle_one(field: Field) -> None:
    fill = ("sbatch", "--partition=short", "--nodes=2", "--exclusive", "--wrap", "sleep 600")
    field.slurm.ask(*fill, "--output=/dev/null", "--job-name=others")
    wait_until(lambda: field.slurm.ask("squeue", "--noheader", "--states=R", "--name=others"))
    job_ids = field.submit("cms", 2)
    with field.director() as director:
        field.wait_until_done(director)
    assert all(field.statuses(each)[-1] == "Done" for each in job_ids)
    assert "long" in {partition for _, _, partition in field.batch_jobs()}
