"""What batch systems state about a pilot's job where no variable has it."""

from pathlib import Path

import pytest

from pilotage.fabric.pilot import allotment, offer
from pilotage.fabric.pilot.allotment import SlotRoom
from pilotage.fabric.pilot.node import batch_job, commands, discovery, facts, slot_limits
from pilotage.fabric.pilot.node.batch_job import BatchResources
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot, SlotLimits

PLACE = QueuePlace("A.B.ch", "ce", "long")
GRID_ENGINE = """\
==============================================================
job_number:                 17
hard resource_list:         h_rt=7200,h_vmem=2G,arch=lx-amd64
mail_list:                  u@example.org
"""
PBS = """\
Job Id: 17.server
    Job_Name = pilot
    Resource_List.mem = 4194304kb
    Resource_List.ncpus = 4
    Resource_List.walltime = 01:30:00
    resources_used.mem = 10kb
"""


def program(directory: Path, arguments: str, text: str) -> dict[str, str]:
    (directory / "text").write_text(text)
    (directory / "qstat").write_text(f'#!/bin/sh\n[ "$*" = "{arguments}" ] || exit 2\ncat {directory}/text\n')
    (directory / "qstat").chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


def test_grid_engine_limits_memory_by_core_and_time(tmp_path: Path) -> None:
    environment = {
        **program(tmp_path, "-j 17", GRID_ENGINE),
        "SGE_ROOT": "/sge",
        "JOB_ID": "17",
        "NSLOTS": "4",
    }
    assert batch_job.read_resources(environment) == BatchResources(ram_mb=(8192,), seconds=(7200,))
    assert slot_limits.measure_limits(environment, tmp_path).max_ram == 8192
    assert discovery.slot_seconds_left(environment, now=0) == 7200


def test_pbs_states_memory_and_time(tmp_path: Path) -> None:
    environment = {**program(tmp_path, "-f 17.server", PBS), "PBS_JOBID": "17.server"}
    assert batch_job.read_resources(environment) == BatchResources(ram_mb=(4096,), seconds=(5400,))
    assert discovery.slot_seconds_left({**environment, "PBS_WALLTIME": "3600"}, now=0) == 3600


def test_htcondor_states_memory_disk_and_the_end_in_its_ads(tmp_path: Path) -> None:
    slot, job = tmp_path / "machine", tmp_path / "job"
    slot.write_text("Cpus = 2\nMemory = 4096\nDisk = 20480000\nGLIDEIN_ToDie = 90000\n")
    job.write_text(
        "MemoryProvisioned = 3000\nDiskProvisioned = 10240000\nRequestMemory = ifThenElse(true, 1, 2)\n"
        "RequestDisk = 10240000\n"
        "JobCurrentStartDate = 1000\nAllowedJobDuration = 7200\n"
    )
    environment = {"_CONDOR_MACHINE_AD": str(slot), "_CONDOR_JOB_AD": str(job)}
    found = slot_limits.measure_limits(environment, tmp_path)
    assert (found.max_ram, found.scratch) == (3000, 10_000)
    assert discovery.slot_seconds_left(environment, now=2000) == 6200


def test_the_disk_of_a_condor_job_that_asked_for_none_is_no_limit(tmp_path: Path) -> None:
    slot, job = tmp_path / "machine", tmp_path / "job"
    slot.write_text("Cpus = 2\nDisk = 4096\n")
    job.write_text("DiskProvisioned = 4096\nRequestDisk = DiskUsage\n")
    environment = {"_CONDOR_MACHINE_AD": str(slot), "_CONDOR_JOB_AD": str(job)}
    assert slot_limits.measure_limits(environment, tmp_path).scratch is None


LONG = "9" * 5000


@pytest.mark.parametrize("text", [pytest.param(LONG, id="long"), "\u00b2", "-1", "nan", "1e3"])
@pytest.mark.parametrize(
    "name", ["NSLOTS", "SLURM_CPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_JOB_END_TIME", "PBS_WALLTIME"]
)
def test_nonsense_in_a_variable_limits_nothing(tmp_path: Path, name: str, text: str) -> None:
    environment = {name: text}
    assert slot_limits.measure_limits(environment, tmp_path) == slot_limits.measure_limits({}, tmp_path)
    assert discovery.slot_seconds_left(environment, now=0) is None


def test_nonsense_in_ads_limits_nothing(tmp_path: Path) -> None:
    (tmp_path / "ad").write_text(f"Cpus = {LONG}\nMemory = 4096 MB\nDisk = {LONG}\nRequestDisk = 1\n")
    environment = {"_CONDOR_MACHINE_AD": str(tmp_path / "ad"), "_CONDOR_JOB_AD": str(tmp_path)}
    assert batch_job.read_resources(environment) == BatchResources()


@pytest.mark.parametrize("quota", ["50000 0", "50000 x", "50000"])
def test_a_quota_without_a_period_is_of_the_usual_one(tmp_path: Path, quota: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota)
    assert slot_limits.measure_limits({}, tmp_path).processors == 1


def test_without_a_place_for_temporary_files_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    assert commands.read_output(("echo", "x"), {"PATH": "/usr/bin:/bin"}, 5.0) == ""


@pytest.mark.parametrize("name", ["PBS_JOBID", "JOB_ID"])
def test_a_batch_system_that_does_not_answer_limits_nothing(tmp_path: Path, name: str) -> None:
    environment = {"PATH": str(tmp_path), "SGE_ROOT": "/sge", name: "17"}
    assert batch_job.read_resources(environment) == BatchResources()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4gb", [4096]),
        ("1.5G", [1536]),
        ("2097152", [2]),
        ("0", []),
        ("lots", []),
        pytest.param("9" * 400, [], id="long"),
        ("", []),
    ],
)
def test_sizes_have_the_units_of_batch_systems(text: str, size: list[int]) -> None:
    assert list(batch_job.read_size(text)) == size


def test_the_address_space_of_a_process_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "machine_memory", lambda: 64_000)
    monkeypatch.setattr("resource.getrlimit", lambda _: (2048 << 20, 2048 << 20))
    assert slot_limits.measure_limits({}, tmp_path).max_ram == 2048


def offered(slot: Slot, queue: dict[str, object]) -> offer.Offer:
    return offer.make_offer(PLACE, slot, JobFilters(), queue)


def test_local_disk_is_what_the_slot_is_entitled_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    free = Slot(free_disk=1_000_000)
    assert offered(free, {"MaxScratch": 20_000}).scratch == 20_000
    small = Slot(free_disk=1_000_000, limits=SlotLimits(scratch=9_000))
    assert offered(small, {"MaxScratch": 20_000}).scratch == 9_000
    assert offered(small, {}).scratch == 9_000
    assert offered(free, {}).scratch == 15_000, "its part of what is free, in steps"
    assert offered(Slot(), {}).scratch is None


def test_jobs_that_run_leave_less_local_disk() -> None:
    slot = offered(Slot(processors=4), {"MaxScratch": 20_000})
    room = SlotRoom(slot.whole({}))
    document = {"requirements": {"io": {"scratch_mb": 12_000}}}
    needs = {
        name: allotment.job_need(description, processors=1, ram_mb=None, gpus=None)
        for name, description in {"a": document, "b": {"MinScratch": 5000}, "c": {}}.items()
    }
    given = room.take(needs)
    assert slot.at(0, room.free)["MaxScratch"] == 3000
    room.give_back(given["a"])
    assert slot.at(0, room.free)["MaxScratch"] == 15_000
    room.give_back(given["b"])
    room.give_back(given["c"])
    assert slot.at(0, room.free)["MaxScratch"] == 20_000
