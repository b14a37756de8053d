"""Memory limits that the kernel enforces: cgroups (version 2) below ours, if the batch system delegates it.

A cgroup with processes of its own cannot limit its children, so the pilot moves itself, and the shell that
has started it, into a child first.

Source: cgroups(7); the kernel's Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pilotage.fabric.pilot.node import linux

_BASE = "sys/fs/cgroup"
#: Files that delegation makes writable for the account. Source: `Delegate=` of systemd.
_DELEGATED = ("", "cgroup.procs", "cgroup.subtree_control")
_PILOT = "pilotage-pilot"


class NotDelegated(Exception):
    """There is no cgroup of ours to limit memory in; the message is the reason."""


class MemoryGroup:
    """The cgroup of one payload."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def members(self) -> str:
        """File with its processes."""
        return str(self._directory / "cgroup.procs")

    @property
    def peak(self) -> int | None:
        """The largest number of bytes so far; None: the kernel does not tell it (before 5.19)."""
        text = _read(self._directory / "memory.peak").strip()
        return int(text) if text.isdecimal() else None

    @property
    def is_out_of_memory(self) -> bool:
        """Whether it has reached its limit, and the kernel ended its processes."""
        return self._count("oom_kill") > 0 and self._count("oom") > 0

    @property
    def is_victim(self) -> bool:
        """Whether the kernel ended its processes since the slot or the node had no memory left."""
        return self._count("oom_kill") > 0 and not self._count("oom")

    def remove(self) -> None:
        """Remove it with the cgroups that its processes, which have ended, made below it."""
        for directory, _, _ in os.walk(self._directory, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()

    def _count(self, event: str) -> int:
        lines = (line.split() for line in _read(self._directory / "memory.events").splitlines())
        return sum(int(words[1]) for words in lines if len(words) == 2 and words[0] == event)


class Delegation:
    """The cgroup of the slot, whose memory we divide."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def limit_memory(self, name: str, limit: int) -> MemoryGroup:
        """Create the cgroup of a payload, with its limit in bytes; OSError."""
        directory = self.top / name
        directory.mkdir()
        group = MemoryGroup(directory)
        try:
            (directory / "memory.max").write_text(f"{limit}\n")
            (directory / "memory.oom.group").write_text("1\n")
            if (swap := directory / "memory.swap.max").exists():
                swap.write_text("0\n")  # else a payload beyond its limit would only become slow
        except OSError:
            group.remove()
            raise
        return group


def take_delegated(root: Path = Path("/")) -> Delegation:
    """Prepare our cgroup for limits of payloads; raises `NotDelegated`."""
    top = _find_own(root)
    controllers = _read(top / "cgroup.controllers").split()
    if "memory" not in controllers:
        raise NotDelegated(f"{top}: the controllers are {', '.join(controllers) or 'none'}, without memory")
    closed = [name for name in _DELEGATED if not os.access(top / name, os.W_OK)]
    if closed:
        raise NotDelegated(f"{top / closed[0]} is not writable")
    members = [int(pid) for pid in _read(top / "cgroup.procs").split()]
    own = os.getpid()
    if strangers := set(members).difference({own, *linux.ancestors(own), *linux.descendants(own)}):
        raise NotDelegated(f"{top}: has processes of others, such as {min(strangers)}")
    try:
        _move(members, top / _PILOT)
        (top / "cgroup.subtree_control").write_text("+memory\n")
    except OSError as error:
        raise NotDelegated(f"{top}: {error.strerror}") from None
    return Delegation(top)


def _move(members: list[int], child: Path) -> None:
    child.mkdir(exist_ok=True)
    for pid in members:
        with suppress(ProcessLookupError):
            (child / "cgroup.procs").write_text(f"{pid}\n")


def _find_own(root: Path) -> Path:
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        if hierarchy == "0":
            return root / _BASE / rest.partition(":")[2].lstrip("/")
    raise NotDelegated("this host has no cgroups of version 2")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
