"""A pilot offers no more than its slot has, whatever it was told or its queue states."""

from pathlib import Path

import pytest

from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.allotment import Allotment, JobNeed, SlotRoom
from pilotage.fabric.pilot.node import discovery, facts, slot_limits
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot, SlotLimits

PLACE = QueuePlace("A.B.ch", "ce", "long")
QUEUE = {"NumberOfProcessors": 8, "MaxRAM": 16_000, "WholeNode": True, "GPUs": 2}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 processors whose kernel shows no limits."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "processors", "max_ram"),
    [
        ({}, None, None),
        ({"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "2000"}, 4, 2000),
        ({"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "500"}, 4, 2000),
        ({"SLURM_MEM_PER_NODE": "0"}, None, None),
        ({"NSLOTS": "2"}, 2, None),
        ({"PBS_NP": "3", "NCPUS": "2"}, 2, None),
        ({"LSB_DJOB_NUMPROC": "many"}, None, None),
    ],
)
def test_a_batch_system_states_what_a_slot_has(
    root: Path, environment: dict[str, str], processors: int | None, max_ram: int | None
) -> None:

    found = slot_limits.measure_limits(environment, root)

    assert (found.processors, found.max_ram) == (processors, max_ram)


def test_htcondor_states_it_in_the_ad_of_the_slot(root: Path, tmp_path: Path) -> None:
    ad = tmp_path / "machine.ad"
    ad.write_text('Name = "slot1_1"\nCpus = 1\nMemory = 1024\nTotalMemory = 64000\n')

    found = slot_limits.measure_limits({"_CONDOR_MACHINE_AD": str(ad)}, root)

    assert (found.processors, found.max_ram) == (1, 1024)


def test_processors_that_are_kept_from_the_slot_are_not_offered(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {4, 5})

    assert slot_limits.measure_limits({}, root).processors == 2


@pytest.mark.parametrize(
    ("line", "directory", "name"),
    [
        ("0::/system.slice/slurmd/job_7/step_0\n", "system.slice/slurmd/job_7", "memory.max"),
        ("4:memory:/slurm/job_7\n0::/\n", "memory/slurm/job_7", "memory.limit_in_bytes"),
    ],
)
def test_the_smallest_limit_of_the_cgroups_counts(root: Path, line: str, directory: str, name: str) -> None:
    (root / "proc/self/cgroup").write_text(line)
    cgroup = root / "sys/fs/cgroup" / directory
    cgroup.mkdir(parents=True)
    (cgroup / name).write_text(f"{300 << 20}\n")
    (cgroup.parent / name).write_text("max\n")

    assert slot_limits.measure_limits({}, root).max_ram == 300


@pytest.mark.parametrize(
    ("said", "directory", "files"),
    [
        ("0::/job\n", "job", {"cpu.max": "250000 100000"}),
        (
            "3:cpu,cpuacct:/job\n0::/\n",
            "cpu,cpuacct/job",
            {"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"},
        ),
        # In a container that sees its own cgroups only, whatever their names are outside.
        (
            "3:cpu,cpuacct:/docker/7\n",
            "cpu,cpuacct",
            {"cpu.cfs_quota_us": "125000", "cpu.cfs_period_us": "50000"},
        ),
    ],
)
def test_a_quota_of_the_processors_time_counts_as_so_many(
    root: Path, said: str, directory: str, files: dict[str, str]
) -> None:
    (root / "proc/self/cgroup").write_text(said)
    cgroup = root / "sys/fs/cgroup" / directory
    cgroup.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (cgroup / name).write_text(f"{text}\n")

    assert slot_limits.measure_limits({}, root).processors == 3


def test_a_cgroup_without_a_quota_limits_nothing(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("3:cpu,cpuacct:/\n0::/\n")
    (root / "sys/fs/cgroup/cpu,cpuacct").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us").write_text("-1\n")
    (root / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")

    assert slot_limits.measure_limits({}, root).processors is None


def offered(slot: Slot, parameters: dict[str, object]) -> dict[str, object]:
    return offer.make_offer(PLACE, slot, JobFilters(), parameters).at(0)


def test_neither_the_queue_nor_the_director_makes_a_slot_larger_than_it_is() -> None:
    limits = SlotLimits(processors=1, max_ram=256)

    by_queue = offered(Slot(limits=limits), QUEUE)
    by_director = offered(Slot(processors=4, max_ram=8000, limits=limits), {})

    assert (by_queue["NumberOfProcessors"], by_queue["MaxRAM"]) == (1, 256)
    assert (by_director["NumberOfProcessors"], by_director["MaxRAM"]) == (1, 256)


def test_a_slot_that_was_made_smaller_than_its_queue_states_is_no_whole_node_and_has_no_gpus() -> None:
    small = offered(Slot(processors=1, gpus=0), QUEUE)

    assert small["WholeNode"] is False
    assert "GPUs" not in small
    assert offered(Slot(processors=8), QUEUE)["WholeNode"] is True


def test_a_slot_of_unknown_memory_offers_its_part_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "machine_memory", lambda: 256_000)
    monkeypatch.setattr("os.cpu_count", lambda: 64)

    assert offered(Slot(), {})["MaxRAM"] == 4000
    assert offered(Slot(processors=16), {})["MaxRAM"] == 64_000
    assert offered(Slot(whole_node=True), {})["MaxRAM"] == 256_000


def test_a_site_states_what_a_slot_has_by_machine_job_features(root: Path, tmp_path: Path) -> None:
    features = tmp_path / "features"
    features.mkdir()
    for name, value in {"allocated_cpu": 1, "mem_limit_bytes": 1500 << 20, "wall_limit_secs": 7200}.items():
        (features / name).write_text(f"{value}\n")
    (features / "jobstart_secs").write_text("1000")
    environment = {"JOBFEATURES": str(features), "MACHINEFEATURES": "https://features.example.org"}

    found = slot_limits.measure_limits(environment, root)

    assert (found.processors, found.max_ram) == (1, 1500)
    assert discovery.slot_seconds_left(environment, 2000.0) == 6200
    (features / "shutdowntime").write_text("2500")
    assert discovery.slot_seconds_left({**environment, "MACHINEFEATURES": str(features)}, 2000.0) == 500


@pytest.mark.parametrize(
    ("allowed", "processors", "bound"),
    [({4, 5, 6, 7}, 4, (4, 5, 6, 7)), ({4, 5, 6, 7}, 2, (4, 5, 6, 7)), ({4, 5, 6}, 2, ()), ({4}, 2, ())],
)
def test_payloads_are_bound_to_processors_where_their_slot_is(
    monkeypatch: pytest.MonkeyPatch, allowed: set[int], processors: int, bound: tuple[int, ...]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr("os.cpu_count", lambda: 64)

    assert slot_limits.list_bound_cpus(processors) == bound
    room = SlotRoom(Allotment(processors, cpus=bound))
    first, second = room.take({"a": JobNeed(), "b": JobNeed()}).values()
    assert not set(first.cpus) & set(second.cpus)
    room.give_back(first)
    assert len(room.free.cpus) == len(bound) - len(second.cpus)
