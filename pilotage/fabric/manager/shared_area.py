"""Directories for the files of local jobs: of a batch system; in it, of a grid job, with its archive.

The nodes see that directory (`SharedBatchSystem`). Where the batch system carries files instead, it lies with
the manager, holds the archives only, and status files and outputs are read from the jobs (`CarryingSystem`).
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.fabric.batch.batch_system import ENDED, BatchSystemAway, CarriesFiles, ReliableSystem, State
from pilotage.fabric.batch.measurements import Measurements
from pilotage.fabric.batch.shell import NoAnswer, Shell
from pilotage.fabric.manager.grid_job import LocalJob
from pilotage.fabric.runner import status_files

#: Maximum bytes of a status file; only its first line is used.
_MOST_MARKS = 32_000
#: Archive of a grid job, and where a job without a shared directory has it and its status files.
ARCHIVE = "job.pyz"
_MARKS = "status"
#: Of carried files: seconds between two looks at the progress of a job, and jobs looked at in one poll.
_NEWS_EVERY, _NEWS_AT_ONCE = 60.0, 20
#: Ended jobs whose carried files are read in one poll, so that submissions and cancellations go on meanwhile.
_ENDS_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusTexts:
    """First lines of the status files of a try; empty: missing."""

    news: str = ""
    end: str = ""
    is_read: bool = True  #: False: a later poll reads them, nothing is to be concluded before
    problem: str = ""  #: why they could not be read now


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedArea:
    """The directory of one grid job."""

    below: str  #: directory of the batch system, absolute
    name: str  #: of the area, relative to it
    shell: Shell

    @property
    def directory(self) -> str:
        """Absolute path of the area."""
        return f"{self.below}/{self.name}"

    @property
    def archive(self) -> str:
        """Absolute path of the archive with runner and input sandbox."""
        return f"{self.below}/{self._archive}"

    @property
    def archive_of_node(self) -> str:
        """Path of the archive for a local job."""
        return self.archive

    @property
    def _archive(self) -> str:
        return f"{self.name}/{ARCHIVE}"

    def put_archive(self, content: bytes) -> None:
        """Write the archive with runner and input sandbox."""
        self.shell.write(self._archive, content, below=self.below)

    def mark(self, job: LocalJob, *name: str) -> str:
        """Path of a try's status file, or of their directory, relative to the batch system's directory."""
        return "/".join((self.name, f"{job.number}-{job.tries}", *name))

    def marks_of_node(self, job: LocalJob) -> str:
        """Directory for the status files of a try, as its local job sees it."""
        return f"{self.below}/{self.mark(job)}"

    def files_to_carry(self) -> Mapping[str, bytes]:
        """Files that the batch system has to put into the working directory of a local job."""
        return {}

    @property
    def files_to_keep(self) -> tuple[str, ...]:
        """Files in the working directory of a local job that the batch system has to keep."""
        return ()

    def output(self, job: LocalJob, *, limit: int) -> bytes:
        """The output archive of a try; empty if missing, one byte more than `limit` if too large."""
        return self.shell.read(self.mark(job, status_files.OUTPUT), below=self.below, last=limit + 1)

    @property
    def is_there(self) -> bool:
        """Whether the area is visible: without its mount, no job would seem to have written anything."""
        return self.shell.read(self._archive, below=self.below, last=1) != b""

    @property
    def lacks_archive(self) -> bool:
        """Whether the archive is lost; of a directory that may be away, nothing shows that."""
        return False

    def remove(self) -> None:
        """Remove the area."""
        self.shell.remove([self.name], below=self.below)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryingArea(SharedArea):
    """The directory of one grid job whose local jobs do not see it."""

    files: CarriesFiles

    @property
    def archive_of_node(self) -> str:
        """Path of the archive for a local job, relative to its working directory."""
        return ARCHIVE

    def marks_of_node(self, job: LocalJob) -> str:
        """Directory for the status files, relative to the working directory of the try."""
        del job  # each try has a working directory of its own
        return _MARKS

    def files_to_carry(self) -> Mapping[str, bytes]:
        """The archive."""
        return {ARCHIVE: Path(self.archive).read_bytes()}

    @property
    def files_to_keep(self) -> tuple[str, ...]:
        """The status files and the output."""
        return tuple(
            f"{_MARKS}/{each}" for each in (status_files.NEWS, status_files.OUTPUT, status_files.END)
        )

    @property
    def is_there(self) -> bool:
        """Always: what jobs wrote is with them."""
        return True

    @property
    def lacks_archive(self) -> bool:
        """Whether the archive is lost, as when the host lost its power before it was on disk."""
        return self.shell.read(self._archive, below=self.below, last=1) == b""

    def output(self, job: LocalJob, *, limit: int) -> bytes:
        """The output archive of a try; empty if missing, one byte more than `limit` if too large."""
        return self.files.read_file(job.handle, f"{_MARKS}/{status_files.OUTPUT}", last=limit + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """A local job, its area, and its state in the batch system."""

    job: LocalJob
    area: SharedArea
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatchSystem:
    """A batch system with a directory shared by its nodes and the host of its commands."""

    system: ReliableSystem
    shell: Shell  #: on the host of the batch system's commands
    directory: str  #: absolute; contains a directory per grid job
    measured: Measurements = field(default_factory=Measurements)

    def area(self, name: str) -> SharedArea:
        """The directory of a grid job."""
        return SharedArea(below=self.directory, name=name, shell=self.shell)

    def measure_load_if_due(self) -> None:
        """Measure the load of the host of its commands, if that is due."""
        self.measured.measure_load_if_due(self.shell)

    def read_status(self, jobs: Sequence[LookedAt]) -> Mapping[str, StatusTexts]:
        """Read the status files of jobs, by stamp, with one command for all."""
        names = [
            each.area.mark(each.job, name)
            for each in jobs
            if each.state is not State.WAITING
            for name in (status_files.NEWS, status_files.END)
        ]
        found = self.read_first_lines(names)
        return {
            each.job.stamp: StatusTexts(
                news=found.get(each.area.mark(each.job, status_files.NEWS), ""),
                end=found.get(each.area.mark(each.job, status_files.END), ""),
            )
            for each in jobs
        }

    def read_first_lines(self, names: Sequence[str]) -> Mapping[str, str]:
        """Read the first lines of many small files with one command; missing files are left out."""
        found = self.shell.read_small(names, below=self.directory, most=_MOST_MARKS)
        return {name: _first_line(content) for name, content in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryingSystem(SharedBatchSystem):
    """A batch system that carries files, such as the CE of another grid, and a directory of the manager.

    Each file is a request of its own: the progress of jobs is read now and then, in turns.
    """

    files: CarriesFiles
    monotonic: Callable[[], float] = time.monotonic  #: seconds
    _read_at: dict[str, float] = field(default_factory=dict)  #: by stamp of a job that runs

    def area(self, name: str) -> SharedArea:
        """The directory of a grid job."""
        return CarryingArea(below=self.directory, name=name, shell=self.shell, files=self.files)

    def read_status(self, jobs: Sequence[LookedAt]) -> Mapping[str, StatusTexts]:
        """Read the status files of jobs that have ended, and the progress of some that run, by stamp.

        What cannot be read concerns its own job only. Ended jobs come in an order of chance, so that one
        whose files make the batch system hang does not keep those after it from being read for ever.
        """
        ended = {each.job.stamp: each.job for each in jobs if each.state in ENDED}
        running = {each.job.stamp: each.job for each in jobs if each.state is State.RUNNING}
        found = dict.fromkeys(ended, StatusTexts(is_read=False))
        chosen = random.sample(sorted(ended), min(len(ended), _ENDS_AT_ONCE))
        try:
            for stamp in chosen:
                found[stamp] = self._read(ended[stamp], has_ended=True)
            for stamp in self._choose(running):
                self._read_at[stamp] = self.monotonic()
                found[stamp] = self._read(running[stamp], has_ended=False)
        except NoAnswer as error:
            found[stamp] = StatusTexts(is_read=False, problem=str(error))
        return found

    def _choose(self, running: Iterable[str]) -> Sequence[str]:
        """The jobs whose progress is read now: those that were not looked at for longest."""
        now, stamps = self.monotonic(), set(running)
        for stamp in self._read_at.keys() - stamps:
            del self._read_at[stamp]
        due = [each for each in stamps if now - self._read_at.get(each, float("-inf")) >= _NEWS_EVERY]
        return sorted(due, key=lambda stamp: (self._read_at.get(stamp, 0), stamp))[:_NEWS_AT_ONCE]

    def _read(self, job: LocalJob, *, has_ended: bool) -> StatusTexts:
        """Read the status files of a job; `NoAnswer` if the batch system hangs."""
        names = (status_files.NEWS, status_files.END)[: 1 + has_ended]
        try:
            texts = [self.files.read_file(job.handle, f"{_MARKS}/{each}", last=_MOST_MARKS) for each in names]
        except NoAnswer:
            raise
        except BatchSystemAway as error:
            return StatusTexts(is_read=False, problem=str(error))
        news, end = [*map(_first_line, texts), ""][:2]
        return StatusTexts(news=news, end=end)


def _first_line(content: bytes) -> str:
    return content.partition(b"\n")[0].decode(errors="replace")[: status_files.LONGEST]
