"""Tags that the host deserves: what its kernel allows (`hostfeat:…`) and repositories of CVMFS (`cvmfs:…`).

Each probe is short and leaves nothing behind. What it finds holds for the pilot's own account; isolation may
keep it from jobs.

Source: the match-making specification of DiracX, v0.2, reserved prefixes of tags.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Callable

from pilotage.fabric.pilot.node import containers
from pilotage.fabric.pilot.node.commands import read_output

#: Timeout of a probe in seconds.
_PATIENCE = 5.0
#: Calls io_uring_setup, which has this number on all architectures of Linux, without a place for its answer:
#: how it fails shows whether it is allowed.
_IO_URING = (
    "import ctypes; libc = ctypes.CDLL(None, use_errno=True);"
    "libc.syscall(ctypes.c_long(425), ctypes.c_uint(1), None); print(ctypes.get_errno())"
)
_CAP_NET_ADMIN = 12
#: A process that lets its parent trace it: nothing happens to it, unless that is forbidden.
_TRACED = "import ctypes; print(ctypes.CDLL(None).ptrace(0, 0, None, None))"
_MOST_REPOSITORIES = 50
_REPOSITORY = re.compile(r"/cvmfs/([A-Za-z0-9][A-Za-z0-9_.-]*)")
_ROOT = Path("/")


def measure_tags(environment: Mapping[str, str], root: Path = _ROOT) -> tuple[str, ...]:
    """The tags of this host, sorted; `root` is the directory of /proc and /dev."""
    features = (f"hostfeat:{name}" for name, has in _FEATURES.items() if has(environment, root))
    return tuple(sorted((*features, *_list_repositories(root))))


def _has_fuse_overlayfs(environment: Mapping[str, str], root: Path) -> bool:
    is_installed = shutil.which("fuse-overlayfs", path=environment.get("PATH")) is not None
    return is_installed and os.access(root / "dev/fuse", os.R_OK | os.W_OK)


def _has_io_uring(environment: Mapping[str, str], _: Path) -> bool:
    return _run_python(_IO_URING, environment) == str(errno.EFAULT)


def _has_ptrace(environment: Mapping[str, str], _: Path) -> bool:
    return _run_python(_TRACED, environment) == "0"


def _run_python(program: str, environment: Mapping[str, str]) -> str:
    """What a program prints, in a process of its own: a host may end those that make forbidden calls."""
    return read_output((sys.executable, "-I", "-S", "-c", program), environment, _PATIENCE).strip()


def _has_net_admin(_: Mapping[str, str], root: Path) -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(root / "proc/self/status"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> _CAP_NET_ADMIN & 1)


def _has_nested_userns(environment: Mapping[str, str], _: Path) -> bool:
    words = ("unshare", "--user", "--map-root-user")
    return read_output((*words, *words, "echo", "nested"), environment, _PATIENCE).strip() == "nested"


def _has_apptainer(environment: Mapping[str, str], _: Path) -> bool:
    return containers.find_runtime(environment) is not None


_FEATURES: Mapping[str, Callable[[Mapping[str, str], Path], bool]] = {
    "fuse_overlayfs": _has_fuse_overlayfs,
    "io_uring": _has_io_uring,
    "ptrace": _has_ptrace,
    "net_admin": _has_net_admin,
    "nested_userns": _has_nested_userns,
    "apptainer": _has_apptainer,  # ours: jobs with an image need it
}


def _list_repositories(root: Path) -> Iterator[str]:
    """Repositories that are mounted: no directory is opened, which might mount it, or hang."""
    lines = [line.split() for line in _read(root / "proc/self/mounts").splitlines()]
    names = {
        found[1]
        for device, place, kind in (line[:3] for line in lines if len(line) > 2)
        if (device == "cvmfs2" or kind.startswith("fuse")) and (found := _REPOSITORY.fullmatch(place))
    }
    for name in sorted(names)[:_MOST_REPOSITORIES]:
        yield f"cvmfs:{name}"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
