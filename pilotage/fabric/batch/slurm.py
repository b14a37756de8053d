"""Slurm, by its commands.

Slurm gives job numbers out again after its controller was killed, and forgets jobs that it runs: every job
bears its stamp as name, and is known by it. Its commands hang while the controller is away: each has a time
limit. Accounting is asked where there is any; it lags behind the listing.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    Capacity,
    Handle,
    Output,
    Report,
    Resources,
    State,
)
from pilotage.fabric.batch.errors import BatchSystemAway, SubmissionRefused, SubmissionUncertain
from pilotage.fabric.batch.shell import Completed, NoAnswer, Shell
from pilotage.fabric.batch.work_area import Marks, WorkAreas

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
class _Row:
    reference: str
    state: State
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """One Slurm cluster as one user of it."""

    areas: WorkAreas
    flags: tuple[str, ...] = field(default=())  #: arguments of every submission

    def submit(self, job: BatchJob) -> str:
        """Put a job into its partition."""
        script = self.areas.prepare(job)
        command = [
            *("sbatch", "--parsable", "--no-requeue", f"--job-name={job.stamp}"),
            *(f"--partition={job.queue}", f"--chdir={self.areas.path(job.stamp)}"),
            *("--output=/dev/null", "--open-mode=append", "--export=NONE"),
            *_asked(job.resources),
            *self.flags,
            *job.flags,
            script,
        ]
        try:
            done = self._shell.run(command)
        except NoAnswer as error:
            raise SubmissionUncertain(f"{job.stamp}: {error}") from error
        if done.status == 0 and (reference := done.stdout.strip().partition(";")[0]).isdecimal():
            return reference
        if done.status == 0 or _is_away(done):
            # The controller may have taken it before the line broke.
            raise SubmissionUncertain(f"{job.stamp}: sbatch: {done.said}")
        raise SubmissionRefused(f"{job.stamp}: sbatch: {done.said}")

    def status(self, handles: Sequence[Handle]) -> Mapping[str, Report]:
        """How jobs stand: by the listing, else by accounting, else by what the job itself left."""
        asked = {handle.stamp: handle for handle in handles}
        listed = {stamp: _the_one(rows, asked[stamp]) for stamp, rows in self._listed(asked).items()}
        over = [stamp for stamp in asked if stamp not in listed or listed[stamp].state in ENDED]
        marks = self.areas.marks(over)
        lost = [stamp for stamp in over if stamp not in listed and not marks[stamp].ended]
        accounted = self._accounted(lost) if lost else {}
        found = {**listed, **{stamp: _the_one(rows, asked[stamp]) for stamp, rows in accounted.items()}}
        return {stamp: _report(found.get(stamp), marks.get(stamp, Marks()), asked[stamp]) for stamp in asked}

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The references of the jobs that bear one of the stamps."""
        return {stamp: tuple(row.reference for row in rows) for stamp, rows in self._listed(stamps).items()}

    def stamps(self, prefix: str) -> frozenset[str]:
        """The stamps of our jobs that have not ended."""
        found = _rows(self._run(_LISTING), lambda stamp: stamp.startswith(prefix))
        return frozenset(
            stamp for stamp, rows in found.items() if any(row.state not in ENDED for row in rows)
        )

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs wherever they are."""
        listed = self._listed([handle.stamp for handle in handles])
        alive = [row.reference for rows in listed.values() for row in rows if row.state not in ENDED]
        if alive:
            self.areas.mark_killed(listed)
            self._run(["scancel", *alive], unless="Invalid job id")

    def output(self, handle: Handle) -> Output:
        """What the job wrote so far."""
        return self.areas.output(handle.stamp)

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove the work areas of jobs that ended."""
        self.areas.remove(handle.stamp for handle in handles)

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

    @property
    def _shell(self) -> Shell:
        return self.areas.shell

    def _listed(self, stamps: Collection[str]) -> Mapping[str, list[_Row]]:
        return _rows(self._run(_LISTING), stamps.__contains__)

    def _accounted(self, stamps: Collection[str]) -> Mapping[str, list[_Row]]:
        """What accounting knows; nothing where there is none."""
        done = self._shell.run(
            [
                *("sacct", "--noheader", "--allocations", "--parsable2", "--starttime=now-7days"),
                *(f"--name={','.join(sorted(stamps))}", "--format=JobID,JobName,State,Reason"),
            ]
        )
        return _rows(done.stdout, stamps.__contains__) if done.status == 0 else {}

    def _run(self, command: Sequence[str], *, unless: str | None = None) -> str:
        done = self._shell.run(command)
        if done.status != 0 and (unless is None or unless not in done.stderr):
            raise BatchSystemAway(f"{command[0]}: {done.said}")
        return done.stdout


def _asked(resources: Resources) -> list[str]:
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


def _rows(listing: str, is_wanted: Callable[[str], bool]) -> dict[str, list[_Row]]:
    """The jobs whose stamps are wanted, each once however often it is listed."""
    found: dict[str, dict[str, _Row]] = {}
    for line in listing.splitlines():
        parts = line.split("|", _FIELDS - 1)
        if len(parts) < _FIELDS:
            raise BatchSystemAway(f"the listing breaks off at {line[:80]!r}")
        reference, stamp, state, reason = (part.strip() for part in parts)
        if is_wanted(stamp):
            word = state.split()[0] if state else ""
            row = _Row(
                reference=reference,
                state=_STATES.get(word, State.RUNNING),
                message=word if reason in ("None", "") else f"{word}: {reason}",
            )
            found.setdefault(stamp, {})[reference] = row
    return {stamp: list(rows.values()) for stamp, rows in found.items()}


def _the_one(rows: Iterable[_Row], handle: Handle) -> _Row:
    """Of several jobs of one stamp the one that is meant, else one that lives: it must not be forgotten."""
    return min(rows, key=lambda row: (row.state in ENDED, row.reference != handle.reference))


def _report(row: _Row | None, marks: Marks, handle: Handle) -> Report:
    if row is not None and row.state not in ENDED:
        return Report(state=row.state, reference=row.reference, message=row.message)
    reference = row.reference if row else handle.reference
    if marks.ended:
        # The script came to its end; whatever the batch system says of it came after.
        killed = row is not None and row.state is State.KILLED
        return Report(
            state=State.KILLED if killed else marks.state,
            reference=reference,
            exit_code=marks.exit_code,
            message=row.message if row else "forgotten by the batch system, known by what it left",
        )
    if row is not None:
        return Report(state=row.state, reference=reference, message=row.message)
    return Report(state=State.MISSING, reference=reference)


def _is_away(done: Completed) -> bool:
    return any(words in done.stderr for words in _AWAY)
