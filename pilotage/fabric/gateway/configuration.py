"""What a gateway is told: a file with the service, the batch systems, the queues and the job types."""

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from pilotage.fabric.batch.reliable import Evidence
from pilotage.fabric.batch.settings import SystemSettings
from pilotage.fabric.director import configuration
from pilotage.fabric.director.configuration import EvidenceSettings, FileSection, Seconds
from pilotage.fabric.director.targets import NAME
from pilotage.fabric.manager.context import ManagerOptions, Retries
from pilotage.fabric.manager.handlers import SiteLimits
from requirements.errors import InvalidInput, Problem, did_you_mean

_NAME = r"[A-Za-z0-9._:@+-]+"
Scope = Annotated[str, Field(pattern=f"^{_NAME}(/{_NAME}){{0,2}}$")]
_URL = re.compile(r"^https?://[^\s]+$")


class InvalidGateway(InvalidInput):
    """The file of a gateway does not say what it should."""

    code = "config_error"


class GatewayQueue(configuration.DirectorQueue):
    """A queue of the resource tree whose grid jobs come here, and the batch queue of their local jobs."""

    max_grid_jobs: int = Field(default=10, ge=1, le=10_000)  #: at a time


class JobTypeSettings(FileSection):
    """What this site says of grid jobs of one type."""

    max_cpu_per_job: float | None = Field(default=None, gt=0)  #: seconds that a local job should take at most
    cpu_per_event: float | None = Field(default=None, gt=0)  #: seconds, where the user does not say
    max_local_jobs: int = Field(default=10_000, ge=1)  #: of one grid job

    def limits(self) -> SiteLimits:
        """As a handler sees it."""
        return SiteLimits(
            max_cpu_per_job=self.max_cpu_per_job,
            cpu_per_event=self.cpu_per_event,
            max_local_jobs=self.max_local_jobs,
        )


class RetrySettings(FileSection):
    """Which local jobs are tried again."""

    tries: int = Field(default=3, ge=1, le=100)  #: of a local job, the first one included
    exit_codes: bool = False  #: also after an exit status of the payload


class GatewayFile(FileSection):
    """All of it."""

    url: str = Field(pattern=_URL.pattern)
    name: str = Field(pattern=f"^{NAME.pattern}$")
    token_file: Path  #: of a gateway's token, readable by its owner only
    vos: tuple[str, ...] = Field(min_length=1)
    directory: Path  #: of its own, on a local disk
    systems: dict[str, SystemSettings] = Field(min_length=1)
    queues: tuple[GatewayQueue, ...] = Field(min_length=1)
    job_types: dict[str, JobTypeSettings] = Field(default_factory=dict)  #: beside these, all with a handler
    advertise: tuple[Scope, ...] | None = None  #: none: the queues, their CEs and sites
    every: Seconds = 20  #: between two talks with the service; it may want to hear more often
    work_every: Seconds = 5  #: between two rounds of work on the grid jobs
    at_once: int = Field(default=50, ge=1)
    retries: RetrySettings = RetrySettings()
    gone: EvidenceSettings = EvidenceSettings()
    beat: Seconds = 10  #: between two news of a local job
    settle: float = Field(default=60, ge=0, le=3600)  #: seconds until all see what a node wrote
    sandbox_limit: int = Field(default=256 << 20, ge=1)  #: bytes
    output_limit: int = Field(default=4 << 30, ge=1)  #: bytes of a grid job, before compression
    local_output_limit: int = Field(default=256 << 20, ge=1)  #: bytes of a local job
    authorities: Path | None = None  #: file or directory of CA certificates; none: the system's

    @model_validator(mode="after")
    def _directories_are_absolute(self) -> Self:
        if not self.directory.is_absolute():
            raise ValueError(f"directory: {self.directory} is not absolute")
        return self

    def habits(self) -> ManagerOptions:
        """How the job manager is to go about it."""
        return ManagerOptions(
            name=self.name,
            directory=self.directory,
            at_once=self.at_once,
            retries=Retries(tries=self.retries.tries, exit_codes=self.retries.exit_codes),
            beat=self.beat,
            settle=self.settle,
            sandbox_limit=self.sandbox_limit,
            local_output_limit=self.local_output_limit,
            output_limit=self.output_limit,
        )

    def evidence(self) -> Evidence:
        """When a local job is believed to be gone."""
        return self.gone.evidence()

    def scopes(self) -> tuple[str, ...]:
        """What is advertised: sites before their CEs, and these before their queues."""
        if self.advertise is not None:
            return tuple(sorted(set(self.advertise)))
        return tuple(sorted({scope for each in self.queues for scope in scopes_of_queue(each.queue)}))


def scopes_of_queue(queue: str) -> tuple[str, ...]:
    """The site, the CE and the queue of `Site/CE/Queue`, each with all that is above it."""
    site, ce, _ = queue.split("/")
    return (site, f"{site}/{ce}", queue)


def read_file(content: object, file: str) -> GatewayFile:
    """What a file says, already parsed.

    Raises:
        InvalidGateway: with every problem.
    """
    parts: tuple[type[BaseModel], ...] = (GatewayQueue, JobTypeSettings, RetrySettings, *configuration.PARTS)
    told = configuration.validate_file(GatewayFile, content, file, InvalidGateway, parts)
    problems = [
        *configuration.list_contradictions(told.systems, told.queues, file),
        *_not_shared(told, file),
        *_not_ours(told, file),
    ]
    if problems:
        raise InvalidGateway(problems)
    return told


def _not_shared(told: GatewayFile, file: str) -> list[Problem]:
    """Batch systems without a directory, in which a job manager works."""
    return [
        Problem(
            path=f"systems/{name}/kind",
            message=f"a job manager needs a directory that nodes share; {each.kind} has none",
            file=file,
        )
        for name, each in told.systems.items()
        if each.directory is None
    ]


def _not_ours(told: GatewayFile, file: str) -> list[Problem]:
    """Scopes that none of the queues is in."""
    ours = sorted({scope for each in told.queues for scope in scopes_of_queue(each.queue)})
    return [
        Problem(
            path=f"advertise/{number}",
            message=f"{scope}: none of the queues is there",
            suggestion=did_you_mean(scope, ours),
            file=file,
        )
        for number, scope in enumerate(told.advertise or ())
        if scope not in ours
    ]
