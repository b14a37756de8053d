"""Environment of a job manager: batch systems, queues, handlers, and its options."""

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
    """A batch system with a directory shared by its nodes and the host of its commands."""

    system: ReliableSystem
    shell: Shell  #: on the host of the batch system's commands
    directory: str  #: absolute; contains a directory per grid job


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Policy for retries of failed local jobs."""

    tries: int = 3  #: maximum tries of a local job, including the first
    exit_codes: bool = False  #: retry also after a failure of the payload, not only of the site


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """Options of a manager."""

    name: str  #: part of every stamp
    directory: Path  #: its own, on a local disk: journal, and outputs until they are delivered
    at_once: int = 50  #: maximum submissions and outputs per grid job and round
    retries: Retries = Retries()
    settle: float = 60.0  #: seconds until a file written on a node is visible in the shared directory
    beat: float = 10.0  #: seconds between two status reports of a local job
    grace: float = 10.0  #: seconds between TERM and KILL for a payload
    sandbox_limit: int = 256 << 20  #: maximum bytes of an input sandbox
    local_output_limit: int = 256 << 20  #: maximum bytes of one local job's output
    output_limit: int = 4 << 30  #: maximum bytes of a grid job's output, before compression


def _always(_wants: PulledGridJob) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerContext:
    """Environment of a gateway's manager. Source: SAM, the site's installation."""

    farms: Mapping[str, SharedBatchSystem]  #: by name of the batch system
    outlets: Mapping[str, QueueTarget]  #: by queue, `Site/CE/Queue`
    handlers: Mapping[str, Handler]  #: by JobType
    sandboxes: Sandboxes  #: the service's client, such as `pilot.service.service_client.Service`
    limits: Mapping[str, SiteLimits] = field(default_factory=dict)  #: by JobType
    #: Whether a grid job may start to gather now.
    may_gather: Callable[[PulledGridJob], bool] = _always

    def farm_of(self, entry: GridJobEntry) -> SharedBatchSystem:
        """The batch system of a grid job.

        Raises:
            UnfitJob: The gateway does not serve its queue any more.
        """
        outlet = self.outlets.get(entry.taken.queue)
        if outlet is None:
            raise UnfitJob(f"{entry.taken.queue}: this gateway does not serve that queue")
        return self.farms[outlet.system]
