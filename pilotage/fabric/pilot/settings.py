"""Settings of a pilot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.fabric.pilot.payload.isolation import Isolation


@dataclass(frozen=True)
class QueuePlace:
    """The batch queue that the pilot runs in."""

    site: str
    ce: str
    queue: str

    def __str__(self) -> str:
        return f"{self.site}/{self.ce}/{self.queue}"


@dataclass(frozen=True)
class SlotLimits:
    """Limits of the batch slot that its batch system enforces; None: none is known."""

    processors: int | None = None
    max_ram: int | None = None  #: MB
    scratch: int | None = None  #: MB of local disk
    gpus: int | None = None


@dataclass(frozen=True)
class Slot:
    """Resources of the batch slot; None: from the queue's parameters."""

    cpu_time: int | None = None  #: seconds
    lifetime: int | None = None  #: seconds from the pilot's start until the batch system ends it
    max_ram: int | None = None  #: MB
    processors: int | None = None
    gpus: int | None = None
    platform: str | None = None
    tags: tuple[str, ...] = ()
    required_tags: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)  #: about this node, besides measured ones
    probes: Path | None = None  #: directory of executables that print more facts and tags
    cpu_power: float | None = None  #: normalised seconds per second of one processor
    measures_cpu: bool = False  #: measure the power instead
    db12: str = "idle"  #: when to run the benchmark DB12: `idle`, `start` or `never`
    whole_node: bool = False  #: the slot is a whole node
    limits: SlotLimits = SlotLimits()  #: no more is offered, whatever is stated
    free_disk: int | None = None  #: MB that are free for the jobs of all slots of the node


@dataclass(frozen=True)
class JobFilters:
    """Filters for the jobs that the pilot requests; empty: all that fit."""

    vo: str | None = None
    pools: tuple[str, ...] = ()  #: ids of SubmitPools; empty: get them from the service
    owner_groups: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    reference: str | None = None  #: the CE's id of this pilot


@dataclass(frozen=True)
class StopConditions:
    """Conditions under which the pilot ends by itself."""

    max_jobs: int | None = None  #: after this number of jobs
    max_empty: int = 10  #: after this number of requests in a row without a job; 0: never
    max_idle: float | None = None  #: after this many seconds without a job
    whole_every: float | None = None  #: seconds after which the slot is emptied for a large job; 0: never
    drain_file: Path | None = None  #: while it exists, no new jobs are requested
    patience: float = 1800.0  #: seconds that the service may be away, or refuse the token, without a job


@dataclass(frozen=True)
class PayloadOptions:
    """Options for the execution of payloads."""

    work_dir: Path  #: each job gets a new directory in it
    least_space: int = 500  #: MB that must be free there before a job is requested
    keep_work: bool = False  #: do not remove the jobs' directories
    heartbeat: float = 20.0  #: maximum seconds between two heartbeats
    grace: float = 10.0  #: seconds between TERM and KILL
    report_patience: float = 6 * 3600.0  #: seconds to retry a report while the service is away
    sandbox_limit: int = 1 << 30  #: maximum bytes of an input sandbox, packed and unpacked
    output_limit: int = 1 << 30  #: maximum bytes of all output files
    passed_on: tuple[str, ...] = ()  #: further variables of the pilot to pass on to payloads
    isolation: Isolation = field(default_factory=Isolation)  #: from the pilot and each other


@dataclass(frozen=True)
class PilotSettings:
    """All settings of a pilot."""

    url: str
    place: QueuePlace
    payload_options: PayloadOptions
    slot: Slot = Slot()
    job_filters: JobFilters = JobFilters()
    stop_conditions: StopConditions = StopConditions()
    authorities: Path | None = None  #: file or directory of CA certificates; None: the system's
    proxy: str | None = None  #: address, or `none`; None: from the environment
