"""What a pilot finds out about the GPUs of its slot, from the real formats of nvidia-smi."""

import time
from pathlib import Path

import pytest

from matcher.request import match_request
from pilotage.fabric.pilot import offer
from pilotage.fabric.pilot.node import discovery, gpus
from pilotage.fabric.pilot.settings import JobFilters, QueuePlace, Slot

PLACE = QueuePlace("A.B.ch", "ce", "gpu")
HEADER = """\
Sun Nov 29 08:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
"""
ROWS = """\
0, GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77, NVIDIA L40S, 46068, 8.9
1, GPU-c6dc1d3a-09fa-4e4c-8c2f-5f0b8a6c4f11, NVIDIA L40S, 46068, 8.9
"""
ALL_FIELDS = "--query-gpu=index,uuid,name,memory.total,compute_cap"


def fake(
    directory: Path, *, rows: str = ROWS, header: str = HEADER, fields: str = ALL_FIELDS
) -> dict[str, str]:
    """An environment with a program that prints what nvidia-smi does, for these fields only."""
    (directory / "rows").write_text(rows)
    (directory / "header").write_text(header)
    (directory / "nvidia-smi").write_text(
        f"""#!/bin/sh
case "$*" in
    "") cat {directory}/header ;;
    "{fields} --format=csv,noheader,nounits") cat {directory}/rows ;;
    *) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
esac
"""
    )
    (directory / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


def test_gpus_have_vendor_architecture_memory_and_runtime(tmp_path: Path) -> None:
    assert gpus.measure_gpus(fake(tmp_path), tmp_path) == {
        "GPUs": 2,
        "GPUModel": "NVIDIA L40S",
        "GPUMemory": 46068,
        "GPUVendor": "nvidia",
        "GPUArchitecture": "sm_89",
        "GPURuntime": "12.4",
    }


def test_what_is_not_the_same_for_all_is_left_out(tmp_path: Path) -> None:
    rows = "0, GPU-a, NVIDIA A100, 40960, 8.0\n1, GPU-b, Tesla V100, [N/A], 7.0\n"
    found = gpus.measure_gpus(fake(tmp_path, rows=rows, header="no version"), tmp_path)
    assert found == {"GPUs": 2, "GPUVendor": "nvidia"}


def test_a_driver_without_capabilities_states_the_rest(tmp_path: Path) -> None:
    rows = "0, GPU-a, Tesla K80, 11441\n"
    environment = fake(tmp_path, rows=rows, fields="--query-gpu=index,uuid,name,memory.total")
    found = gpus.measure_gpus(environment, tmp_path)
    assert (found["GPUModel"], found["GPUMemory"]) == ("Tesla K80", 11441)
    assert "GPUArchitecture" not in found


@pytest.mark.parametrize(
    ("allotted", "count"),
    [
        ({}, 2),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "GPU-c6dc1d3a"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "10000"}, 0),  # HTCondor's word for none
        ({"SLURM_JOB_GPUS": "1"}, 1),
        ({"SLURM_JOB_GPUS": "5"}, 1),  # its cgroup shows the two as 0 and 1
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0,1"}, 1),
    ],
)
def test_only_gpus_of_the_slot_count(tmp_path: Path, allotted: dict[str, str], count: int) -> None:
    assert gpus.measure_gpus({**fake(tmp_path), **allotted}, tmp_path)["GPUs"] == count


@pytest.mark.parametrize(
    ("allotted", "devices"),
    [
        ({}, ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, ("1", "0")),
        ({"CUDA_VISIBLE_DEVICES": "3,4"}, ("3", "4")),  # CUDA's own names are never changed
        ({"SLURM_JOB_GPUS": "2,3"}, ("2", "3")),
        ({"SLURM_JOB_GPUS": "0,5"}, ("0", "1")),  # a cgroup hides the others
        ({"GPU_DEVICE_ORDINAL": "3,2"}, ("3", "2")),
    ],
)
def test_payloads_get_the_gpus_of_the_slot(
    tmp_path: Path, allotted: dict[str, str], devices: tuple[str, ...]
) -> None:
    numbers = range(2) if "0" in str(allotted) and "ORDINAL" not in str(allotted) else range(4)
    rows = "".join(f"{number}, GPU-{number}, NVIDIA L40S, 46068, 8.9\n" for number in numbers)
    made = offer.make_offer(PLACE, Slot(gpus=2), JobFilters(), {})
    assert made.whole({**fake(tmp_path, rows=rows), **allotted}).gpus == devices


def test_without_the_tool_payloads_get_the_gpus_that_slurm_names() -> None:
    made = offer.make_offer(PLACE, Slot(gpus=2), JobFilters(), {})
    assert made.whole({"SLURM_JOB_GPUS": "2,3", "PATH": "/nowhere"}).gpus == ("2", "3")


def test_instances_of_a_gpu_count_each_and_have_less_memory(tmp_path: Path) -> None:
    rows = "0, GPU-a, NVIDIA A100-SXM4-80GB, 81920, 8.0\n"
    environment = {**fake(tmp_path, rows=rows), "CUDA_VISIBLE_DEVICES": "MIG-5d5ba0d6,MIG-c6dc1d3a"}
    found = gpus.measure_gpus(environment, tmp_path)
    assert (found["GPUs"], found["GPUArchitecture"]) == (2, "sm_80")
    assert "GPUMemory" not in found


def test_a_tool_that_prints_nonsense_states_nothing_that_services_refuse(tmp_path: Path) -> None:
    rows = f"0, GPU-a, A\0100 \x07{'x' * 5000}, {'9' * 5000}, \u00b2.0\nno, row\n"
    found = request({**fake(tmp_path, rows=rows), "CUDA_VISIBLE_DEVICES": "0"}, Slot(), {})
    assert not match_request.read_resource(found).warnings
    assert found["GPUs"] == 1


@pytest.mark.parametrize(
    "script", ["echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9", "exec sleep 60"]
)
def test_a_tool_that_fails_or_hangs_shows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(gpus, "_PATIENCE", 0.1)
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert gpus.measure_gpus({"PATH": f"{tmp_path}:/usr/bin:/bin"}, tmp_path) == {}


def test_without_the_tool_the_driver_tells_of_gpus(tmp_path: Path) -> None:
    environment = {"PATH": "/nowhere"}
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0/information").write_text("Model: \t Tesla V100\nIRQ:\t 42\n")
    found = gpus.measure_gpus(environment, tmp_path)
    assert found == {"GPUs": 1, "GPUModel": "Tesla V100", "GPUVendor": "nvidia"}
    assert gpus.measure_gpus(environment, tmp_path / "none") == {}


def request(environment: dict[str, str], slot: Slot, queue: dict[str, object]) -> dict[str, object]:
    found = gpus.measure_gpus(environment, Path("/nonexistent"))
    whole = discovery.complete_slot(slot, environment, now=time.time(), measured=found)
    return offer.make_offer(PLACE, whole, JobFilters(), queue).at(0)


def test_the_service_reads_what_was_measured(tmp_path: Path) -> None:
    environment = {**fake(tmp_path), "CUDA_VISIBLE_DEVICES": "1"}
    read = match_request.read_resource(request(environment, Slot(), {}))
    has = read.resource
    assert (has.gpus, has.gpu_vendor, has.gpu_architecture) == (1, "nvidia", 89)
    assert (has.gpu_memory_mb, has.gpu_runtime) == (
        46068,
        match_request.read_resource({"CPUTime": 1, "GPUs": 1, "GPURuntime": "12.4"}).resource.gpu_runtime,
    )
    assert not read.warnings


def test_no_more_gpus_are_offered_than_the_slot_was_given(tmp_path: Path) -> None:
    environment = fake(tmp_path)
    assert "GPUs" not in request(environment, Slot(), {}), "nobody gave them to the slot"
    assert request(environment, Slot(), {"GPUs": 8})["GPUs"] == 2
    assert request({**environment, "CUDA_VISIBLE_DEVICES": "0"}, Slot(gpus=2), {})["GPUs"] == 1
    assert "GPUs" not in request({**environment, "CUDA_VISIBLE_DEVICES": ""}, Slot(), {"GPUs": 2})
