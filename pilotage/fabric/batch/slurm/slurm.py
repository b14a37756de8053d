"""Slurm, through its commands.

Slurm reuses job numbers after its controller was killed, and can lose jobs that are running: every job has
its stamp as name and is identified by it. Commands hang while the controller is away: each has a timeout. The
accounting is used where available; it lags behind the listing. Of an option given twice sbatch uses the last
one only, so flags and resources are merged into one.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pilotage.fabric.batch.batch_system import BatchJob, BatchSystemAway, Capacity, JobResources, State
from pilotage.fabric.batch.command_line import CommandLineSystem, larger
from pilotage.fabric.batch.shell import Completed
from pilotage.fabric.batch.work_area import ListedJob


def merge_options(arguments: Iterable[str]) -> list[str]:
    """The arguments, each option that has a meaning for both times it is given at its first place."""
    found: dict[str, str] = {}
    for number, argument in enumerate(arguments):
        option, sign, value = argument.partition("=")
        if not sign or option not in _BOTH:
            found[f"{number}"] = argument
        elif option in found:
            before = found[option].removeprefix(f"{option}=")
            found[option] = f"{option}={_BOTH[option](before, value)}"
        else:
            found[option] = argument
    return list(found.values())


def _all_features(before: str, after: str) -> str:
    return before if before == after else f"{_closed(before)}&{_closed(after)}"


def _closed(expression: str) -> str:
    return f"({expression})" if "|" in expression and "(" not in expression else expression


def _all_items(before: str, after: str) -> str:
    counts: dict[str, str] = {}
    for item in f"{before},{after}".split(","):
        name, _, count = item.rpartition(":")
        if not count.isdecimal():
            name, count = item, "1"
        counts[name] = larger(counts.get(name, count), count)
    return ",".join(f"{name}:{count}" for name, count in counts.items())


_BOTH: Final[Mapping[str, Callable[[str, str], str]]] = {
    **dict.fromkeys(("--mem", "--tmp", "--time", "--mincpus"), larger),
    "--constraint": _all_features,
    "--gres": _all_items,
}

#: Source: Slurm, squeue(1), job state codes. What is not named here is on its way.
_STATES = {
    "PENDING": State.WAITING,
    "CONFIGURING": State.WAITING,
    "REQUEUED": State.WAITING,
    "REQUEUE_HOLD": State.WAITING,
    "REQUEUE_FED": State.WAITING,
    "SPECIAL_EXIT": State.WAITING,
    "RESV_DEL_HOLD": State.WAITING,
    "COMPLETED": State.DONE,
    "CANCELLED": State.KILLED,
    "PREEMPTED": State.KILLED,
    "REVOKED": State.KILLED,
    "FAILED": State.FAILED,
    "TIMEOUT": State.FAILED,
    "NODE_FAIL": State.FAILED,
    "OUT_OF_MEMORY": State.FAILED,
    "BOOT_FAIL": State.FAILED,
    "DEADLINE": State.FAILED,
}
_FIELDS = 4
#: Words with which a controller that is away is told from one that refuses.
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes")
_LISTING = ("squeue", "--noheader", "--me", "--states=all", "--array", "--format=%i|%j|%T|%r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm(CommandLineSystem):
    """One Slurm cluster, used as one account."""

    def _submission(self, job: BatchJob) -> list[str]:
        script = self.areas.prepare(job)
        return [
            *("sbatch", "--parsable", "--no-requeue", f"--job-name={job.stamp}"),
            *(f"--partition={job.queue}", f"--chdir={self.areas.path(job.stamp)}"),
            *("--output=/dev/null", "--open-mode=append", "--export=NONE"),
            *merge_options((*_resource_options(job.resources), *self.flags, *job.flags)),
            script,
        ]

    def _reference(self, said: str) -> str | None:
        reference = said.strip().partition(";")[0]
        return reference if reference.isdecimal() else None

    def _is_away(self, done: Completed) -> bool:
        return any(words in done.stderr for words in _AWAY)

    def _listing(self) -> Iterator[ListedJob]:
        return _rows(self._run(_LISTING))

    def _accounted(self, stamps: Collection[str]) -> Iterable[ListedJob]:
        """What accounting knows; nothing where there is none."""
        done = self._shell.run(
            [
                *("sacct", "--noheader", "--allocations", "--parsable2", "--starttime=now-7days"),
                *(f"--name={','.join(sorted(stamps))}", "--format=JobID,JobName,State,Reason"),
            ]
        )
        return _rows(done.stdout) if done.status == 0 else ()

    def _end(self, references: Sequence[str]) -> None:
        self._run(["scancel", *references], unless=["Invalid job id"])

    def capacity(self) -> Mapping[str, Capacity]:
        """What the partitions have."""
        jobs = self._run(["squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%P|%T"])
        counted = Counter(
            (name, state)
            for line in jobs.splitlines()
            for names, _, state in [line.partition("|")]
            for name in names.split(",")  # a job may be in several partitions
        )
        found = {}
        for line in self._run(["sinfo", "--noheader", "--summarize", "--format=%R|%C|%a"]).splitlines():
            name, cores, up = line.split("|")
            allocated, idle, _, _ = map(int, cores.split("/"))
            usable = up.strip() == "up"
            found[name] = Capacity(
                cores=(allocated + idle) * usable,
                free_cores=idle * usable,
                waiting=counted[name, "PENDING"],
                running=counted[name, "RUNNING"],
            )
        return found


def _resource_options(resources: JobResources) -> list[str]:
    asked = [f"--cpus-per-task={resources.cores}", "--ntasks=1"]
    if resources.memory is not None:
        asked.append(f"--mem={resources.memory}M")
    if resources.wall_time is not None:
        asked.append(f"--time={math.ceil(resources.wall_time / 60)}")  # minutes
    if resources.gpus:
        asked.append(f"--gres=gpu:{resources.gpus}")
    if resources.whole_node:
        asked.append("--exclusive")
    return asked


def _rows(listing: str) -> Iterator[ListedJob]:
    for line in listing.splitlines():
        parts = line.split("|", _FIELDS - 1)
        if len(parts) < _FIELDS:
            raise BatchSystemAway(f"the listing breaks off at {line[:80]!r}")
        reference, stamp, state, reason = (part.strip() for part in parts)
        word = state.split()[0] if state else ""
        yield ListedJob(
            stamp=stamp,
            reference=reference,
            state=_STATES.get(word, State.RUNNING),
            message=word if reason in ("None", "") else f"{word}: {reason}",
        )
