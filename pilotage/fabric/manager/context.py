"""What a job manager works with: batch systems, queues, handlers, and the service's side of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.fabric.batch.reliable import ReliableSystem
from pilotage.fabric.batch.shell import Shell
from pilotage.fabric.director.targets import QueueTarget
from pilotage.fabric.manager.errors import UnfitJob
from pilotage.fabric.manager.grid_job import PulledGridJob
from pilotage.fabric.manager.handlers import Handler, SiteLimits
from pilotage.fabric.manager.records import GridJobEntry
from pilotage.fabric.pilot.payload.preparation import Sandboxes


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatchSystem:
    """A batch system with a directory that its nodes and the host of its commands share."""

    system: ReliableSystem
    shell: Shell  #: on the host of its commands
    directory: str  #: absolute; below it each grid job has one of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Which local jobs are tried again when they failed."""

    tries: int = 3  #: of a local job, the first one included
    exit_codes: bool = False  #: also after an exit status of the payload, not only where the site is to blame


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """How a manager goes about it."""

    name: str  #: part of every stamp
    directory: Path  #: its own, on a local disk: what it knows, and outputs until they are told
    at_once: int = 50  #: submissions and outputs per grid job and round
    retries: Retries = Retries()
    settle: float = 60.0  #: seconds within which a shared directory shows what a node wrote
    beat: float = 10.0  #: seconds between two news of a local job
    grace: float = 10.0  #: seconds that a payload has between TERM and KILL
    sandbox_limit: int = 256 << 20  #: bytes of an input sandbox
    local_output_limit: int = 256 << 20  #: bytes of the output of one local job
    output_limit: int = 4 << 30  #: bytes of the output of a grid job, before compression


def _always(_wants: PulledGridJob) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerContext:
    """A gateway's surroundings. Source: SAM, the site's installation."""

    farms: Mapping[str, SharedBatchSystem]  #: by name of the batch system
    outlets: Mapping[str, QueueTarget]  #: by queue, `Site/CE/Queue`
    handlers: Mapping[str, Handler]  #: by JobType
    sandboxes: Sandboxes  #: the service, such as `pilot.service.Service`
    limits: Mapping[str, SiteLimits] = field(default_factory=dict)  #: by JobType
    #: Whether a grid job may begin to gather now.
    may_gather: Callable[[PulledGridJob], bool] = _always

    def farm_of(self, entry: GridJobEntry) -> SharedBatchSystem:
        """The batch system that a grid job runs in.

        Raises:
            UnfitJob: The gateway does not serve its queue any more.
        """
        outlet = self.outlets.get(entry.taken.queue)
        if outlet is None:
            raise UnfitJob(f"{entry.taken.queue}: this gateway does not serve that queue")
        return self.farms[outlet.system]
