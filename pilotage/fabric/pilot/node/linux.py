"""Process control on Linux: prctl, and the processes below another one by /proc: list, measure, kill.

Without prctl its functions do nothing, and give no guarantee.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        return None
    return libc if hasattr(libc, "prctl") else None


#: Loaded at import: between fork and exec nothing may be loaded.
_LIBC = _libc()


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant, so that none gets lost (subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have this process killed when its parent ends for any reason."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def join_cgroup(members: str) -> None:
    """Add this process to the cgroup whose file of processes this is."""
    file = os.open(members, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, b"0")
    finally:
        os.close(file)


def keep_private() -> None:
    """Protect memory and environment of this process from other processes of the same user.

    A payload runs as the pilot's user; without this it could read the token from /proc.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def wipe_variable(name: str) -> None:
    """Remove a variable, also from the initial environment that /proc shows.

    Root, as which payloads run in many containers, can read that even of a protected process.
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
    """Addresses of the initial environment (fields 50 and 51 of /proc/self/stat)."""
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


_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Rounds of killing, and seconds between them: processes that fork faster survive.
_ROUNDS, _ROUND = 100, 0.02
_GONE = (OSError, ValueError, IndexError)


@dataclass(frozen=True)
class Usage:
    """Resource usage of all processes of a payload together."""

    processes: int
    cpu_seconds: float  #: including ended processes
    resident: int  #: bytes, with shared memory counted for each process


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, parents before children; includes zombies."""
    found: list[int] = []
    ahead = list(_children(pid))
    while ahead:
        child = ahead.pop(0)
        found.append(child)
        ahead.extend(_children(child))
    return found


def ancestors(pid: int) -> list[int]:
    """The processes above `pid`, the parent first."""
    found: list[int] = []
    with contextlib.suppress(*_GONE):
        while (pid := int(_stat(pid)[1])) > 0:
            found.append(pid)
    return found


def measure_usage(pid: int) -> Usage:
    """Measure the usage of everything below `pid`, with the CPU time of its ended children."""
    below = descendants(pid)
    own, ended = zip(*(_cpu(each) for each in (pid, *below)))
    return Usage(
        processes=len(below),
        cpu_seconds=sum(own[1:]) + sum(ended),
        resident=sum(_resident(each) for each in below),
    )


def measure_proportional(pid: int) -> int | None:
    """Bytes of everything below `pid` with shared memory counted once; None: not available."""
    shares = [_proportional(each) for each in descendants(pid)]
    known = [share for share in shares if share is not None]
    return sum(known) if known else None


def end_session(session: int) -> None:
    """Kill the processes of a session, wherever they are in the tree, including newly started ones."""
    for _ in range(_ROUNDS):
        left = _session_members(session)
        if not left:
            return
        send_signal(left, signal.SIGKILL)
        time.sleep(_ROUND)


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _session_members(session: int) -> list[int]:
    found = []
    for pid in _all_processes():
        with contextlib.suppress(*_GONE):
            state, _, _, its_session, *_ = _stat(pid)
            if int(its_session) == session and state != "Z":
                found.append(pid)
    return found


def _children(pid: int) -> Iterator[int]:
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return
    for thread in threads:
        try:
            text = (thread / "children").read_text()
        except FileNotFoundError:
            yield from _children_by_scan(pid) if _lists_no_children() else ()
            return
        except OSError:
            continue
        yield from map(int, text.split())


def _lists_no_children() -> bool:
    """Whether this kernel was built without lists of children."""
    return not (_PROC / "self" / "task" / str(os.getpid()) / "children").exists()


def _children_by_scan(pid: int) -> Iterator[int]:
    for each in _all_processes():
        with contextlib.suppress(*_GONE):
            if int(_stat(each)[1]) == pid:
                yield each


def _all_processes() -> Iterator[int]:
    return (int(path.name) for path in _PROC.iterdir() if path.name.isdigit())


def _stat(pid: int) -> list[str]:
    """Fields of `/proc/<pid>/stat` from the third on; the process name before may contain anything."""
    return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _cpu(pid: int) -> tuple[float, float]:
    """CPU seconds of the process itself, and of its reaped children."""
    try:
        user, system, ended_user, ended_system = map(int, _stat(pid)[11:15])
    except _GONE:
        return 0.0, 0.0
    return (user + system) / _TICKS, (ended_user + ended_system) / _TICKS


def _resident(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE
    except _GONE:
        return 0


def _proportional(pid: int) -> int | None:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    except (*_GONE, StopIteration):
        return None
