"""What the steps of a job manager work with: batch systems, queues, handlers, the journal, and options.

A batch system has a shared directory; in it are those of grid jobs, with their archives and status files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from pilotage.fabric.batch.batch_system import JobResources, ReliableSystem
from pilotage.fabric.batch.shell import Shell
from pilotage.fabric.director.targets import NAME, FileSection, QueueTarget, Seconds
from pilotage.fabric.manager.grid_job import GridJobEntry, LocalJob, PulledGridJob
from pilotage.fabric.manager.job_types import Handler, SiteLimits, UnfitJob
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.pilot.payload.isolation import APPTAINER, COMMAND
from pilotage.fabric.pilot.payload.preparation import Sandboxes
from pilotage.fabric.runner import status_files

#: Maximum bytes of a status file; only its first line is used.
_MOST_MARKS = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatchSystem:
    """A batch system with a directory shared by its nodes and the host of its commands."""

    system: ReliableSystem
    shell: Shell  #: on the host of the batch system's commands
    directory: str  #: absolute; contains a directory per grid job

    def read_first_lines(self, names: Sequence[str]) -> Mapping[str, str]:
        """Read the first lines of many small files with one command; missing files are left out."""
        found = self.shell.read_small(names, below=self.directory, most=_MOST_MARKS)
        return {name: _first_line(content) for name, content in found.items()}


def _first_line(content: bytes) -> str:
    return content.partition(b"\n")[0].decode(errors="replace")[: status_files.LONGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedArea:
    """The shared directory of one grid job."""

    below: str  #: shared directory of the batch system, absolute
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
    def _archive(self) -> str:
        return f"{self.name}/job.pyz"

    def put_archive(self, content: bytes) -> None:
        """Write the archive with runner and input sandbox."""
        self.shell.write(self._archive, content, below=self.below)

    def mark(self, job: LocalJob, *name: str) -> str:
        """Path of a try's status file, or of their directory, relative to the batch system's directory."""
        return "/".join((self.name, f"{job.number}-{job.tries}", *name))

    def output(self, job: LocalJob, *, limit: int) -> bytes:
        """The output archive of a try; empty if missing, one byte more than `limit` if too large."""
        return self.shell.read(self.mark(job, status_files.OUTPUT), below=self.below, last=limit + 1)

    @property
    def is_there(self) -> bool:
        """Whether the area is visible: without its mount, no job would seem to have written anything."""
        return self.shell.read(self._archive, below=self.below, last=1) != b""

    def remove(self) -> None:
        """Remove the area."""
        self.shell.remove([self.name], below=self.below)


class Retries(FileSection):
    """Policy for retries of failed local jobs."""

    tries: int = Field(default=3, ge=1, le=100)  #: maximum tries of a local job, including the first
    exit_codes: bool = False  #: retry also after a failure of the payload, not only of the site


class ManagerOptions(FileSection):
    """Options of a manager."""

    FORMER: ClassVar[Mapping[str, str]] = {"at_once": "max_jobs_per_cycle"}

    name: str = Field(pattern=f"^{NAME.pattern}$")  #: part of every stamp
    directory: Path  #: its own, on a local disk: journal, and outputs until they are delivered
    max_jobs_per_cycle: int = Field(
        default=50, ge=1
    )  #: maximum submissions and outputs per grid job and cycle
    retries: Retries = Retries()
    settle: float = Field(default=60, ge=0, le=3600)  #: seconds until files of a node are visible everywhere
    beat: Seconds = 10  #: between two status reports of a local job
    sandbox_limit: int = Field(default=256 << 20, ge=1)  #: bytes
    local_output_limit: int = Field(default=256 << 20, ge=1)  #: bytes per local job
    output_limit: int = Field(default=4 << 30, ge=1)  #: bytes per grid job, before compression
    isolation: Literal["strongest", "none", "userns", "apptainer", "command"] = "strongest"  #: of payloads
    isolation_command: str | None = None  #: as of pilots
    image: str | None = None  #: of containers

    @model_validator(mode="after")
    def _directories_are_absolute(self) -> Self:
        if not self.directory.is_absolute():
            raise ValueError(f"directory: {self.directory} is not absolute")
        return self

    @model_validator(mode="after")
    def _isolation_is_whole(self) -> Self:
        if (self.image is None) == (self.isolation == APPTAINER):
            raise ValueError(f"isolation {self.isolation}: image goes with {APPTAINER}, and only with that")
        if self.isolation_command is None and self.isolation == COMMAND:
            raise ValueError(f"isolation {self.isolation}: needs isolation_command")
        # On a node it would fail each job, or leave it without the isolation that is wanted.
        if self.isolation_command is not None and self.isolation not in (APPTAINER, COMMAND):
            raise ValueError(f"isolation {self.isolation}: takes no isolation_command")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerContext:
    """Environment of a gateway's manager. Source: SAM, the site's installation."""

    options: ManagerOptions
    grace: float = 10.0  #: seconds between TERM and KILL for a payload
    journal: Journal
    systems: Mapping[str, SharedBatchSystem]  #: by name of the batch system
    queues: Mapping[str, QueueTarget]  #: by `Site/CE/Queue`
    handlers: Mapping[str, Handler]  #: by JobType
    sandboxes: Sandboxes  #: the service's client, such as `pilot.service.service_client.Service`
    limits: Mapping[str, SiteLimits] = field(default_factory=dict)  #: by JobType
    may_gather: Callable[[PulledGridJob], bool] = lambda _: True  #: now
    #: By queue and VO, the `elapsed_time` at which its batch system refused a grid job for good.
    refused_at: dict[tuple[str, str], float] = field(default_factory=dict)

    def system_of(self, entry: GridJobEntry) -> SharedBatchSystem:
        """The batch system of a grid job; `UnfitJob` if the gateway does not serve its queue any more."""
        queue = self.queues.get(entry.taken.queue)
        if queue is None:
            raise UnfitJob(f"{entry.taken.queue}: this gateway does not serve that queue")
        return self.systems[queue.system]

    def resources_of(self, entry: GridJobEntry) -> JobResources:
        """What each local job of a grid job requests."""
        return entry.taken.resources or self.queues[entry.taken.queue].resources

    def area_of(self, entry: GridJobEntry) -> SharedArea:
        """The shared directory of a grid job; `UnfitJob` as above."""
        system, name = self.system_of(entry), f"grid-{self.journal.key}.{entry.taken.name}"
        return SharedArea(below=system.directory, name=name, shell=system.shell)
