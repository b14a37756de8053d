"""The GPUs of a node."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
#: Seconds; a driver in trouble answers never.
_PATIENCE = 20
#: A directory for each GPU, where the driver is there and its tool is not.
_OF_DRIVER = Path("/proc/driver/nvidia/gpus")


def measured(of_driver: Path = _OF_DRIVER) -> dict[str, object]:
    """`GPUs`, and if all are the same `GPUModel` and `GPUMemory` (MB); nothing where there are none."""
    found = _asked() or _listed(of_driver)
    if not found:
        return {}
    models, memories = ({each[part] for each in found} for part in (0, 1))
    said = {
        "GPUs": len(found),
        "GPUModel": models.pop() if len(models) == 1 else None,
        "GPUMemory": memories.pop() if len(memories) == 1 else None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _asked() -> list[tuple[str, int | None]]:
    """Model and memory of each, as nvidia-smi says."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run([tool, *_QUERY], capture_output=True, text=True, timeout=_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    lines = [line.rpartition(",") for line in done.stdout.splitlines() if "," in line]
    return [(name.strip(), _number(memory)) for name, _, memory in lines]


def _listed(directory: Path) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    for file in sorted(directory.glob("*/information")):
        with contextlib.suppress(OSError):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            models = [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
            found += [(model, None) for model in models]
    return found


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
