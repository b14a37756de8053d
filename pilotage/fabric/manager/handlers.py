"""Handlers of job types: what is particular to a kind of grid job, in a few short methods.

A handler for one more job type is a class of somebody else's package, registered under the entry point
group `pilotage.job_types`; its name there is the `JobType` of the jobs. Source: SAM-Grid, job manager
adapters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Protocol, runtime_checkable

GROUP = "pilotage.job_types"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLimits:
    """What a site says of grid jobs of one type."""

    max_cpu_per_job: float | None = None  #: seconds of CPU that one local job should take at most
    cpu_per_event: float | None = None  #: seconds of CPU, where the user does not say
    max_local_jobs: int = 10_000  #: of one grid job


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A grid job as its handler sees it."""

    job_id: int
    description: Mapping[str, Any]  #: as the service checked it, keywords in its spelling
    number: int = 0  #: of its local jobs, once that is decided; it stays as it is from then on


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a local job runs."""

    words: tuple[str, ...]  #: the program, in the sandbox or on the node, and its arguments
    environment: Mapping[str, str] = field(default_factory=dict)  #: beside what the user states
    size: int | None = None  #: units that it will do, such as events; None: they are not counted


@runtime_checkable
class Handler(Protocol):
    """A job type. Local jobs are numbered from 1."""

    def check(self, job: Job) -> None:
        """Look for what is wrong with a grid job before anything is done.

        Raises:
            UnfitJob: In words for the user: which keyword, what was seen, what is allowed.
        """
        ...

    def number_of_jobs(self, job: Job, site: SiteLimits) -> int:
        """How many local jobs a grid job becomes.

        Raises:
            UnfitJob: It cannot be done at this site.
        """
        ...

    def prepare_work_area(self, job: Job, n: int) -> Mapping[str, bytes]:
        """Small files for the directory of local job `n`, by name, beside the input sandbox."""
        ...

    def command(self, job: Job, n: int) -> Command:
        """What local job `n` runs."""
        ...


def registered() -> dict[str, Handler]:
    """The handlers of all installed packages, by the `JobType` that they are for.

    Raises:
        TypeError: What an entry point names is no handler.
        ImportError: It cannot be imported.
    """
    return {each.name: _made(each) for each in metadata.entry_points(group=GROUP)}


def _made(entry: metadata.EntryPoint) -> Handler:
    handler = entry.load()()
    if not isinstance(handler, Handler):
        raise TypeError(f"{GROUP}: {entry.name} = {entry.value!r} is no handler: methods are missing")
    return handler
