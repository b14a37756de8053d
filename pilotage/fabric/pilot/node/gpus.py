"""The GPUs that the slot may use: vendor, architecture, memory and runtime, as nvidia-smi prints them.

No library is needed: `nvidia-smi` comes with the driver. Only GPUs of the slot count: those that a batch
system names in the environment; nvidia-smi itself shows none that a container or cgroup hides.

Source: `nvidia-smi --help-query-gpu`; CUDA's rules for CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pilotage.fabric.pilot.allotment import DEVICES
from pilotage.fabric.pilot.node.commands import read_output

#: Fields of a query; drivers before 470 have no `compute_cap`, and fail for it.
_FIELDS = ("index", "uuid", "name", "memory.total")
_CAPABILITY = "compute_cap"
#: Seconds for each of at most three commands: a broken driver may hang.
_PATIENCE = 6.0
#: The CUDA version of the driver, in the header that nvidia-smi prints without arguments.
_RUNTIME = re.compile(r"CUDA(?: UMD)? Version:\s*(\d+(?:\.\d+)*)")
_CAPABILITY_FORM = re.compile(r"(\d+)\.(\d+)")
#: Contains a directory for each GPU where the driver is installed without nvidia-smi.
_OF_DRIVER = Path("/proc/driver/nvidia/gpus")
#: Variables that name the GPUs of a batch job; the first one that is set counts.
_ALLOTTED = (DEVICES, "SLURM_JOB_GPUS", "GPU_DEVICE_ORDINAL")
#: Values of `CUDA_VISIBLE_DEVICES` that name no GPU: 10000 is HTCondor's, NoDevFiles Slurm's. `all` is
#: NVIDIA_VISIBLE_DEVICES' word.
_NONE = frozenset({"", "-1", "10000", "nodevfiles", "none", "void"})


@dataclass(frozen=True)
class Gpu:
    """A GPU of the node."""

    index: str
    uuid: str
    model: str
    memory_mb: int | None = None
    capability: str | None = None  #: of its instruction set, such as `sm_89`


def measure_gpus(environment: Mapping[str, str], of_driver: Path = _OF_DRIVER) -> dict[str, object]:
    """Facts about the GPUs that the slot may use; empty if the node has none.

    `GPUs` counts them, 0 where the batch system gave the slot none. `GPURuntime` is the CUDA version of the
    driver. What is not the same for all is left out: `GPUModel`, `GPUMemory` (MB of each), `GPUVendor`,
    `GPUArchitecture` (`sm_89`).
    """
    command = shutil.which("nvidia-smi", path=environment.get("PATH"))
    found = _query(command, environment) if command else []
    installed = found or list(_list_of_driver(of_driver))
    if not installed:
        return {}
    gpus = _select(installed, environment)
    if not gpus:
        return {"GPUs": 0}
    said = {
        "GPUs": len(gpus),
        "GPUModel": _common(gpu.model for gpu in gpus),
        "GPUMemory": _common(gpu.memory_mb for gpu in gpus),
        "GPUVendor": "nvidia",
        "GPUArchitecture": _common(gpu.capability for gpu in gpus),
        "GPURuntime": _find_runtime(command, environment) if command and found else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _common(values: Iterable[object]) -> object:
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _query(command: str, environment: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that nvidia-smi shows; of an old driver without their capability."""
    for fields in ((*_FIELDS, _CAPABILITY), _FIELDS):
        words = (command, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        text = read_output(words, environment, _PATIENCE)
        rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
        if found := [_read(row) for row in rows if len(row) == len(fields)]:
            return found
    return []


def _read(row: list[str]) -> Gpu:
    index, uuid, model, memory, *rest = row
    model = "".join(filter(str.isprintable, model))[:100]
    capability = _CAPABILITY_FORM.fullmatch(rest[0]) if rest else None
    return Gpu(
        index=index,
        uuid=uuid,
        model=model,
        memory_mb=int(memory) if memory.isdecimal() and len(memory) < 10 else None,
        capability=f"sm_{capability[1]}{capability[2]}" if capability else None,
    )


def _find_runtime(command: str, environment: Mapping[str, str]) -> str | None:
    found = _RUNTIME.search(read_output((command,), environment, _PATIENCE))
    return found[1] if found else None


def are_allotted(environment: Mapping[str, str]) -> bool:
    """Whether the batch system says which GPUs the slot has."""
    return _list_allotted(environment) is not None


def are_withheld(environment: Mapping[str, str]) -> bool:
    """Whether the batch system says that the slot has no GPU."""
    return _list_allotted(environment) == []


def _list_allotted(environment: Mapping[str, str]) -> list[str] | None:
    """The names of the GPUs that the batch system gave the slot; None: it states nothing."""
    stated = next((environment[name] for name in _ALLOTTED if name in environment), None)
    if stated is None:
        return None
    names = [name.strip() for name in stated.split(",")]
    return [] if names[0].lower() in _NONE else names


def list_devices(environment: Mapping[str, str]) -> list[str]:
    """The names of the slot's GPUs for `CUDA_VISIBLE_DEVICES`; empty: the environment states none.

    Slurm's own variable has the numbers of the node, also where cgroups hide the others, and nvidia-smi and
    CUDA number what is left from 0.
    """
    names = [name for name in _list_allotted(environment) or [] if name]
    if not names or DEVICES in environment:
        return names
    command = shutil.which("nvidia-smi", path=environment.get("PATH"))
    shown = _query(command, environment) if command else []
    if not shown or all(any(_is_named(gpu, name) for gpu in shown) for name in names):
        return names
    return [gpu.index for gpu in shown[: len(names)]]


def _select(gpus: list[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that the environment allots to the slot; all, if it states none or names others.

    Slurm numbers those of `CUDA_VISIBLE_DEVICES` from 0 where cgroups hide the others, so numbers that are
    not among those shown say how many there are. Each instance of a GPU (MIG) counts; its part of the
    memory is unknown.
    """
    names = _list_allotted(environment)
    if names is None or names == ["all"]:
        return gpus
    if names and all(name.startswith("MIG-") for name in names):
        return [replace(gpus[number % len(gpus)], memory_mb=None) for number in range(len(names))]
    named = [gpu for gpu in gpus if any(_is_named(gpu, name) for name in names)]
    return named or gpus[: len(names)]


def _is_named(gpu: Gpu, name: str) -> bool:
    return name == gpu.index or (name.startswith("GPU-") and gpu.uuid.startswith(name))


def _list_of_driver(directory: Path) -> Iterator[Gpu]:
    for number, file in enumerate(sorted(directory.glob("*/information"))):
        with contextlib.suppress(OSError):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if model := said.get("Model"):
                yield Gpu(index=str(number), uuid=said.get("GPU UUID", ""), model=model)
