"""Limits of the batch slot as its batch system and kernel enforce them: cores, memory and local disk.

A pilot offers no more, whatever it was told or its queue states: what exceeds the slot is shared by force, or
killed by the kernel. Only restrictions count: a slot that may use the whole machine shows nothing about what
it was given.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from pilotage.fabric.pilot.node import facts
from pilotage.fabric.pilot.node.batch_job import BatchResources, read_resources
from pilotage.fabric.pilot.settings import SlotLimits

#: Variables with the cores of a job on its node: Slurm, Grid Engine, PBS, LSF.
_CORES = ("SLURM_CPUS_ON_NODE", "NSLOTS", "PBS_NP", "NCPUS", "LSB_DJOB_NUMPROC")
#: Files with microseconds of processor time, and in how many. Source: kernel, scheduler/sched-bwc.
_QUOTA = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
_ROOT = Path("/")
#: Digits of a number; one with more is no amount of anything.
_DIGITS = 18


def measure_limits(
    environment: Mapping[str, str], root: Path = _ROOT, batch: BatchResources | None = None
) -> SlotLimits:
    """The smallest limits of the slot; `root` is the directory of /proc and /sys."""
    batch = read_resources(environment) if batch is None else batch
    cores = [*_cores_of_variables(environment), *_cores_of_kernel(root), *batch.cores]
    cores += read_feature(environment, "JOBFEATURES", "allocated_cpu")
    memory = [*_memory_of_variables(environment, cores), *_memory_of_kernel(root), *batch.ram_mb]
    memory += _megabytes_of_feature(environment, "mem_limit_bytes")
    scratch = [*batch.scratch_mb, *_megabytes_of_feature(environment, "scratch_limit_bytes")]
    return SlotLimits(
        processors=min(cores, default=None),
        max_ram=min(memory, default=None),
        scratch=min(scratch, default=None),
    )


def free_disk(directory: Path) -> int | None:
    """MB that this user can still write into a file system, which also shows the quotas of many."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize >> 20


def _megabytes_of_feature(environment: Mapping[str, str], name: str) -> list[int]:
    return [each >> 20 for each in read_feature(environment, "JOBFEATURES", name) if each >> 20]


def read_feature(environment: Mapping[str, str], variable: str, name: str) -> list[int]:
    """A number that the site states about the slot or its node; empty: none.

    The variable names a directory. Source: HSF-TN-2016-02, Machine/Job Features.
    """
    directory = environment.get(variable, "")
    return list(_positive(_read(Path(directory) / name).strip())) if directory.startswith("/") else []


def list_bound_cpus(processors: int) -> tuple[int, ...]:
    """The processors of the kernel that the slot is bound to; empty: to none, or to no multiple of its own.

    In a slot that is bound to none, others may run on each of them.
    """
    try:
        allowed = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return ()
    is_bound = len(allowed) < (os.cpu_count() or 0) and len(allowed) >= processors
    return tuple(allowed) if is_bound and len(allowed) % processors == 0 else ()


def _cores_of_variables(environment: Mapping[str, str]) -> Iterator[int]:
    for name in _CORES:
        yield from _positive(environment.get(name))


def _memory_of_variables(environment: Mapping[str, str], cores: list[int]) -> Iterator[int]:
    """Memory in MB from variables of the batch system; Slurm states it for the node or for each core."""
    yield from _positive(environment.get("SLURM_MEM_PER_NODE"))
    for each in _positive(environment.get("SLURM_MEM_PER_CPU")):
        if cores:
            yield each * min(cores)


def _cores_of_kernel(root: Path) -> Iterator[int]:
    """The cores that processes may run on if they are not all, and the share of time in the cgroups."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        allowed = 0
    if 0 < allowed < (os.cpu_count() or 0):
        yield allowed
    for cgroup in _cgroups(root):
        stated = _read(cgroup / "cpu.max") or " ".join(_read(cgroup / name).strip() for name in _QUOTA)
        quota, _, period = stated.strip().partition(" ")
        for part in _positive(quota):
            yield max(1, math.ceil(part / next(_positive(period), 100_000)))


def _memory_of_kernel(root: Path) -> Iterator[int]:
    """Memory limits in MB of the slot's cgroups and of a process, without those beyond the machine's memory.

    Grid Engine and PBS limit the address space of each process to the memory of the job.
    """
    machine = facts.machine_memory() or math.inf
    limits = [resource.getrlimit(resource.RLIMIT_AS)[0]]
    for cgroup in _cgroups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += _positive(_read(cgroup / name).strip())
    for limit in limits:
        if limit != resource.RLIM_INFINITY and limit >> 20 < machine:
            yield max(1, limit >> 20)


def _cgroups(root: Path) -> Iterator[Path]:
    """The directories of our cgroups, each with all above it. Source: cgroups(7), versions 2 and 1."""
    base = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers or {"cpu", "memory"}.intersection(controllers.split(",")):
            top = base / controllers
            own = top / name.lstrip("/")
            yield from (each for each in (own, *own.parents) if each == top or top in each.parents)


def _positive(text: str | None) -> Iterator[int]:
    if text and text.isascii() and text.isdecimal() and len(text) <= _DIGITS and int(text) > 0:
        yield int(text)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
