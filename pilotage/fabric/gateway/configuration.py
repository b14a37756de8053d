"""Configuration file of a gateway: the service, the batch systems, the queues and the job types."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from pilotage.fabric.batch.settings import load_kind
from pilotage.fabric.director import configuration
from pilotage.fabric.file_section import Seconds
from pilotage.fabric.manager.context import ManagerOptions
from pilotage.fabric.manager.job_types import SiteLimits
from requirements.errors import InvalidInput, Problem, did_you_mean

_NAME = r"[A-Za-z0-9._:@+-]+"
Scope = Annotated[str, Field(pattern=f"^{_NAME}(/{_NAME}){{0,2}}$")]


class InvalidGateway(InvalidInput):
    """The configuration file of a gateway is invalid."""

    code = "config_error"


class GatewayQueue(configuration.DirectorQueue):
    """A queue of the resource tree whose grid jobs this gateway runs, with the batch queue for local jobs."""

    max_grid_jobs: int = Field(default=10, ge=1, le=10_000)  #: at a time
    #: Seconds of wall time of a local job for each second of its CPUTime; none: `wall_time` for all.
    wall_time_per_cpu: float | None = Field(default=None, ge=1, le=1000)


class GatewayFile(ManagerOptions, configuration.SiteFile):
    """The configuration file of a gateway."""

    FORMER: ClassVar[Mapping[str, str]] = {
        **ManagerOptions.FORMER,
        **configuration.SiteFile.FORMER,
        "work_every": "job_polling_time",
    }

    token_file: Path  #: file with a gateway's token, readable by its owner only
    vos: tuple[str, ...] = Field(min_length=1)
    queues: tuple[GatewayQueue, ...] = Field(min_length=1)
    job_types: dict[str, SiteLimits] = Field(default_factory=dict)  #: types left out have defaults
    advertise: tuple[Scope, ...] | None = None  #: none: the queues, their CEs and sites
    polling_time: Seconds = 20  #: between two cycles with the service, which may wish a shorter interval
    job_polling_time: Seconds = 5  #: between two cycles of the job manager

    def scopes(self) -> tuple[str, ...]:
        """Scopes to advertise: sites before their CEs, and CEs before their queues."""
        if self.advertise is not None:
            return tuple(sorted(set(self.advertise)))
        return tuple(sorted({scope for each in self.queues for scope in scopes_of_queue(each.queue)}))


def scopes_of_queue(queue: str) -> tuple[str, ...]:
    """The site, the CE and the queue of `Site/CE/Queue`, as scopes."""
    site, ce, _ = queue.split("/")
    return (site, f"{site}/{ce}", queue)


def read_file(content: object, file: str) -> GatewayFile:
    """Validate the parsed content of a configuration file; `InvalidGateway` with every problem."""
    told = configuration.validate_file(GatewayFile, content, file, InvalidGateway)
    problems = [
        *configuration.list_contradictions(told.systems, told.queues, file),
        *_not_shared(told, file),
        *_not_ours(told, file),
    ]
    if problems:
        raise InvalidGateway(problems)
    return told


def _not_shared(told: GatewayFile, file: str) -> list[Problem]:
    """Batch systems that neither have a shared directory nor carry the files of local jobs."""
    return [
        Problem(
            path=f"systems/{name}/kind",
            message="a job manager needs a directory that nodes share, or a CE that carries files; "
            f"{each.kind} has neither",
            file=file,
        )
        for name, each in told.systems.items()
        if each.job_directory is None and not load_kind(each.kind).carries_files
    ]


def _not_ours(told: GatewayFile, file: str) -> list[Problem]:
    """Scopes to advertise without any of the gateway's queues."""
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
