"""What the steps of a job manager work with: batch systems, queues, handlers, the journal, and options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from pilotage.fabric.batch.batch_system import JobResources
from pilotage.fabric.director.targets import NAME, QueueTarget
from pilotage.fabric.file_section import FileSection, Seconds
from pilotage.fabric.manager.grid_job import GridJobEntry, PulledGridJob
from pilotage.fabric.manager.job_types import Handler, SiteLimits, UnfitJob
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.shared_area import SharedArea, SharedBatchSystem
from pilotage.fabric.pilot.payload.isolation import APPTAINER, COMMAND
from pilotage.fabric.pilot.payload.preparation import Sandboxes


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
    hidden: tuple[Path, ...] = ()  #: from payloads: what is the gateway's own
    #: By queue and VO, the `elapsed_time` at which its batch system refused a grid job for good.
    refused_at: dict[tuple[str, str], float] = field(default_factory=dict)

    def system_of(self, entry: GridJobEntry) -> SharedBatchSystem:
        """The batch system of a grid job; `UnfitJob` if the gateway does not serve its queue any more."""
        queue = self.queues.get(entry.taken.queue)
        if queue is None:
            raise UnfitJob(f"{entry.taken.queue}: this gateway does not serve that queue")
        return self.systems[queue.system]

    def resources_of(self, entry: GridJobEntry) -> JobResources:
        """Resources that each local job of a grid job requests."""
        return entry.taken.resources or self.queues[entry.taken.queue].resources

    def area_of(self, entry: GridJobEntry) -> SharedArea:
        """The directory of a grid job; `UnfitJob` as above."""
        return self.system_of(entry).area(f"grid-{self.journal.key}.{entry.taken.name}")
