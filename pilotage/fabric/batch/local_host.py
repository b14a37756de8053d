"""This host as a batch system: processes, with cores and memory accounted.

Its state is in files, one directory per job, so all callers see the same, also after a restart; one at a time
holds the lock and starts the jobs that fit, first in, first out. A process is identified by its id and start
time, since ids are reused; it writes both itself, once, so that a job that is started twice, because the
first starter died, runs once.
"""

import fcntl
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    Handle,
    JobReport,
    JobResources,
    Output,
    State,
    SubmissionRefused,
    Survey,
)
from pilotage.fabric.batch.settings import BatchSystemKind, Connections, DirectorySettings
from pilotage.fabric.batch.shell import LocalShell
from pilotage.fabric.batch.work_area import WorkAreas, is_stamp
from requirements.errors import format_count

#: The only queue.
QUEUE = "local"
#: Bytes of an entry, and of a process's own mark, at most.
_MOST_ENTRY, _MOST_MARK = 10_000, 100
_NUMBER = re.compile(r"[0-9]{1,18}")
# `set -C`: a file that is there is not written again.
_LAUNCH = """\
set -C
cd "$0" || exit
echo $$ $(cut -d" " -f22 /proc/$$/stat) 2>/dev/null >process || exit
exec ./wrapper
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A job as stored in its file."""

    stamp: str
    number: int  #: in the order of submission
    resources: JobResources
    killed_at: float | None = None  #: seconds since the epoch


_ENTRY = TypeAdapter(_Entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A job with its current state."""

    entry: _Entry
    process: int | None  #: its number; None: not started
    alive: bool
    exit_code: int | None = None

    @property
    def waits(self) -> bool:
        return self.process is None and self.entry.killed_at is None

    def report(self) -> JobReport:
        """Its state."""
        if self.waits or self.alive:
            state = State.WAITING if self.waits else State.RUNNING
        elif self.entry.killed_at is not None:
            state = State.KILLED
        else:
            state = State.DONE if self.exit_code == 0 else State.FAILED
        return JobReport(state=state, reference=str(self.entry.number), exit_code=self.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHost:
    """A number of cores and an amount of memory of this host, with one queue."""

    directory: str  #: where jobs are kept, absolute
    cores: int
    memory: int  #: MB
    grace: float = 10.0  #: seconds between the signals TERM and KILL
    clock: Callable[[], float] = time.time

    def submit(self, job: BatchJob) -> str:
        """Put a job into the queue, and start it if it fits."""
        self._check(job)
        with self._locked() as entries:
            if any(each.stamp == job.stamp for each in entries):
                raise SubmissionRefused(f"{job.stamp}: has been submitted before")
            self._areas.prepare(job)
            entry = _Entry(stamp=job.stamp, number=self._next_number(), resources=job.resources)
            self._write(entry)
            self._turn([*entries, entry])
        return str(entry.number)

    def dry_run(self, job: BatchJob) -> None:
        """Refuse a job that never fits."""
        self._check(job)

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        """The states of jobs."""
        with self._locked() as entries:
            self._turn(entries)
            seen = {each.entry.stamp: each.report() for each in self._look(entries)}
        missing = JobReport(state=State.MISSING)
        return {handle.stamp: seen.get(handle.stamp, missing) for handle in handles}

    def find(self, stamps: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The references of the jobs that bear one of the stamps."""
        with self._locked() as entries:
            return {each.stamp: (str(each.number),) for each in entries if each.stamp in stamps}

    def survey(self, handles: Sequence[Handle], prefix: str) -> Survey:
        """The states of jobs, and the stamps of those that have not ended."""
        reports = self.status(handles)
        with self._locked() as entries:
            seen = self._look([each for each in entries if each.stamp.startswith(prefix)])
        alive = frozenset(each.entry.stamp for each in seen if each.waits or each.alive)
        return Survey(reports=reports, stamps=alive)

    def kill(self, handles: Sequence[Handle]) -> None:
        """End jobs with all their processes."""
        stamps = {handle.stamp for handle in handles}
        with self._locked() as entries:
            for each in self._look(entries):
                if each.entry.stamp in stamps and (each.waits or each.alive):
                    self._write(replace(each.entry, killed_at=each.entry.killed_at or self.clock()))
                    _signal(self._prevent_start(each.entry) if each.waits else each, signal.SIGTERM)

    def output(self, handle: Handle) -> Output:
        """Output of the job so far."""
        return self._areas.output(handle.stamp)

    def forget(self, handles: Sequence[Handle]) -> None:
        """Remove jobs that ended; one that has not is left."""
        stamps = {handle.stamp for handle in handles}
        with self._locked() as entries:
            seen = self._look([each for each in entries if each.stamp in stamps])
            self._areas.remove(each.entry.stamp for each in seen if not each.waits and not each.alive)

    def capacity(self) -> Mapping[str, Capacity]:
        """Capacity of the host."""
        with self._locked() as entries:
            self._turn(entries)
            seen = self._look(entries)
        alive = [each for each in seen if each.alive]
        free = Capacity(
            cores=self.cores,
            free_cores=self.cores - sum(self._cores(each.entry) for each in alive),
            waiting=sum(each.waits for each in seen),
            running=len(alive),
        )
        return {QUEUE: free}

    @property
    def _areas(self) -> WorkAreas:
        return WorkAreas(directory=self.directory, shell=LocalShell())

    def _check(self, job: BatchJob) -> None:
        asked = job.resources
        if job.queue != QUEUE:
            raise SubmissionRefused(f"{job.stamp}: there is no queue {job.queue}, only {QUEUE}")
        if asked.cores > self.cores or (asked.memory or 0) > self.memory or asked.gpus:
            raise SubmissionRefused(
                f"{job.stamp}: requires {format_count(asked.cores, 'core')}, {asked.memory or 0} MB and "
                f"{format_count(asked.gpus, 'GPU')}; the host gives {format_count(self.cores, 'core')}, "
                f"{self.memory} MB and no GPU"
            )

    @contextmanager
    def _locked(self) -> Iterator[list[_Entry]]:
        """All jobs, in their order, while nobody else changes them."""
        try:
            Path(self.directory).mkdir(mode=0o700, parents=True, exist_ok=True)
            with Path(self.directory, "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield self._entries()
        except OSError as error:
            raise BatchSystemAway(f"{self.directory}: {error}") from error

    def _entries(self) -> list[_Entry]:
        names = (file.parent.name for file in Path(self.directory).glob("*/entry.json"))
        texts = self._areas.texts(filter(is_stamp, names), "entry.json", most=_MOST_ENTRY)
        found = [entry for stamp, text in texts.items() if (entry := _read_entry(stamp, text)) is not None]
        return sorted(found, key=lambda each: each.number)

    def _write(self, entry: _Entry) -> None:
        self._areas.put(entry.stamp, "entry.json", _ENTRY.dump_json(entry).decode())

    def _next_number(self) -> int:
        said = LocalShell().read("number", below=self.directory, last=_MOST_MARK)
        number = int(said or 0) + 1
        LocalShell().write("number", str(number).encode(), below=self.directory)
        return number

    def _look(self, entries: Iterable[_Entry]) -> list[_Seen]:
        """The states of jobs. Processes are checked before the marks: one that has ended left its own."""
        seen = [self._seen(each) for each in entries]
        marks = self._areas.marks(each.entry.stamp for each in seen)
        return [replace(each, exit_code=marks[each.entry.stamp].exit_code) for each in seen]

    def _seen(self, entry: _Entry) -> _Seen:
        said = self._areas.texts([entry.stamp], "process", most=_MOST_MARK).get(entry.stamp, "").split()
        if len(said) != len(("process", "start")) or not all(map(_NUMBER.fullmatch, said)):
            return _Seen(entry=entry, process=None, alive=False)
        process, start = map(int, said)
        return _Seen(entry=entry, process=process, alive=_start_of(process) == start)

    def _prevent_start(self, entry: _Entry) -> _Seen:
        """Keep a job from starting: a launch that finds the file `process` ends. The job may run already."""
        with suppress(FileExistsError):
            Path(self._areas.path(entry.stamp, "process")).touch(exist_ok=False)
        return self._seen(entry)

    def _turn(self, entries: Iterable[_Entry]) -> None:
        """Start what fits, in order: a job that does not fit yet keeps its place. End what will not end."""
        seen = self._look(entries)
        alive = [each for each in seen if each.alive]
        for each in alive:
            if each.entry.killed_at is not None and self.clock() - each.entry.killed_at > self.grace:
                _signal(each, signal.SIGKILL)
        cores = self.cores - sum(self._cores(each.entry) for each in alive)
        memory = self.memory - sum(each.entry.resources.memory or 0 for each in alive)
        for each in seen:
            if each.waits:
                cores -= self._cores(each.entry)
                memory -= each.entry.resources.memory or 0
                if cores < 0 or memory < 0:
                    return
                self._launch(each.entry)

    def _cores(self, entry: _Entry) -> int:
        return self.cores if entry.resources.whole_node else entry.resources.cores

    def _launch(self, entry: _Entry) -> None:
        # It must outlive us, and be nobody's child that we would have to wait for.
        area = self._areas.path(entry.stamp)
        subprocess.run(
            ["setsid", "--fork", "sh", "-c", _LAUNCH, area],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        deadline = time.monotonic() + 5
        while not Path(area, "process").exists() and time.monotonic() < deadline:
            time.sleep(0.002)


def _read_entry(stamp: str, text: str) -> _Entry | None:
    """The entry in a job's directory; None: the job has put something else there."""
    try:
        return replace(_ENTRY.validate_json(text), stamp=stamp)
    except ValidationError:
        return None


def _start_of(process: int) -> int | None:
    """When a process started, in ticks since the host came up; None: there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _signal(seen: _Seen, number: signal.Signals) -> None:
    if seen.alive and seen.process is not None:
        with suppress(ProcessLookupError):
            os.killpg(seen.process, number)


class LocalSettings(DirectorySettings):
    """Settings of this host as a batch system."""

    cores: int = Field(ge=1)  #: of this host that may be used
    memory: int = Field(ge=1)  #: MB of this host

    def lets_jobs_read(self, _file: Path, /) -> bool:
        """Jobs run as this account."""
        return True


def _open(settings: LocalSettings, _: Connections) -> LocalHost:
    return LocalHost(directory=str(settings.directory), cores=settings.cores, memory=settings.memory)


KIND = BatchSystemKind(open=_open, settings=LocalSettings, only_queue=QUEUE)
