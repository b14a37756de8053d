"""What the steps of a job manager work with: batch systems, queues, handlers, the journal, and options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from pilotage.fabric.director.targets import QueueTarget
from pilotage.fabric.manager.grid_job import PulledGridJob
from pilotage.fabric.manager.handlers import Handler, SiteLimits, UnfitJob
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.records import GridJobEntry
from pilotage.fabric.manager.shared_area import SharedArea, SharedBatchSystem
from pilotage.fabric.pilot.payload.preparation import Sandboxes


class Retries(BaseModel):
    """Policy for retries of failed local jobs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tries: int = Field(default=3, ge=1, le=100)  #: maximum tries of a local job, including the first
    exit_codes: bool = False  #: retry also after a failure of the payload, not only of the site


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """Options of a manager."""

    name: str  #: part of every stamp
    directory: Path  #: its own, on a local disk: journal, and outputs until they are delivered
    at_once: int = 50  #: maximum submissions and outputs per grid job and cycle
    retries: Retries = field(default_factory=Retries)
    settle: float = 60.0  #: seconds until a file written on a node is visible in the shared directory
    beat: float = 10.0  #: seconds between two status reports of a local job
    grace: float = 10.0  #: seconds between TERM and KILL for a payload
    sandbox_limit: int = 256 << 20  #: maximum bytes of an input sandbox
    local_output_limit: int = 256 << 20  #: maximum bytes of one local job's output
    output_limit: int = 4 << 30  #: maximum bytes of a grid job's output, before compression


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerContext:
    """Environment of a gateway's manager. Source: SAM, the site's installation."""

    options: ManagerOptions
    journal: Journal
    systems: Mapping[str, SharedBatchSystem]  #: by name of the batch system
    queues: Mapping[str, QueueTarget]  #: by `Site/CE/Queue`
    handlers: Mapping[str, Handler]  #: by JobType
    sandboxes: Sandboxes  #: the service's client, such as `pilot.service.service_client.Service`
    limits: Mapping[str, SiteLimits] = field(default_factory=dict)  #: by JobType
    may_gather: Callable[[PulledGridJob], bool] = lambda _: True  #: now

    def system_of(self, entry: GridJobEntry) -> SharedBatchSystem:
        """The batch system of a grid job; `UnfitJob` if the gateway does not serve its queue any more."""
        queue = self.queues.get(entry.taken.queue)
        if queue is None:
            raise UnfitJob(f"{entry.taken.queue}: this gateway does not serve that queue")
        return self.systems[queue.system]

    def area_of(self, entry: GridJobEntry) -> SharedArea:
        """The shared directory of a grid job; `UnfitJob` as above."""
        system, name = self.system_of(entry), f"grid-{self.journal.key}.{entry.taken.name}"
        return SharedArea(below=system.directory, name=name, shell=system.shell)
