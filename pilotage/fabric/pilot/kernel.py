"""What Linux does for a process that asks (prctl); elsewhere nothing happens and less is promised."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return None
    return libc if hasattr(libc, "prctl") else None


#: Looked up at import: between fork and exec nothing may be loaded.
_LIBC = _libc()


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent has gone, so that none gets lost."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have this process killed when its parent ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def keep_private() -> None:
    """Keep memory and environment of this process from other processes of the same user.

    A payload runs under the user of the pilot; without this it could read the token from /proc.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def wipe_variable(name: str) -> None:
    """Remove a variable, also from what /proc shows of the environment that we were started with.

    Root, as which payloads run in many containers, may read that even of a private process.
    """
    os.environ.pop(name, None)
    block = _start_of_environment()
    if _LIBC is None or block is None:
        return
    start, end = block
    marker = name.encode() + b"="
    variables = ctypes.string_at(start, end - start).split(b"\0")
    at = start
    for variable in variables:
        if variable.startswith(marker):
            ctypes.memset(at + len(marker), ord("x"), len(variable) - len(marker))
        at += len(variable) + 1


def _start_of_environment() -> tuple[int, int] | None:
    """Addresses between which the kernel put our environment (fields 50 and 51 of /proc/self/stat)."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123 - no Path yet
            fields = stat.read().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])
    except (OSError, ValueError, IndexError):
        return None
    return (start, end) if 0 < start < end else None


def _prctl(option: int, value: int) -> None:
    if _LIBC is not None:
        _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0)
