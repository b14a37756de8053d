"""What a pilot is told from outside."""

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
class Slot:
    """What the batch slot offers, as far as it was told; what is None comes from the queue's parameters."""

    cpu_time: int | None = None  #: seconds
    lifetime: int | None = None  #: seconds until the batch system ends us, counted from our start
    max_ram: int | None = None  #: MB
    processors: int | None = None
    gpus: int | None = None
    platform: str | None = None
    tags: tuple[str, ...] = ()
    required_tags: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)  #: about this node, beside what we measure
    probes: Path | None = None  #: directory of executables that say more facts and tags
    cpu_power: float | None = None  #: normalised seconds in a second of one processor
    measures_cpu: bool = False  #: find out the power instead
    whole_node: bool = False  #: all that the node has is ours


@dataclass(frozen=True)
class JobFilters:
    """Which jobs the pilot asks for; empty: whatever fits."""

    vo: str | None = None
    pools: tuple[str, ...] = ()  #: ids of SubmitPools; empty: ask the service
    owner_groups: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    reference: str | None = None  #: the CE's id of this pilot


@dataclass(frozen=True)
class StopConditions:
    """When the pilot ends by itself."""

    max_jobs: int | None = None  #: after so many jobs
    max_empty: int = 10  #: after so many requests in a row that found nothing; 0: never
    max_idle: float | None = None  #: after so many seconds without a job
    whole_every: float | None = None  #: seconds after which the slot is emptied for a large job; 0: never
    drain_file: Path | None = None  #: while it is there, no new work is taken
    patience: float = 1800.0  #: seconds that the service may be away, or refuse our token, without a job


@dataclass(frozen=True)
class PayloadOptions:
    """How payloads are looked after."""

    work_dir: Path  #: each job gets a fresh directory below
    keep_work: bool = False  #: do not remove it
    heartbeat: float = 20.0  #: seconds between two at most
    grace: float = 10.0  #: seconds between TERM and KILL
    report_patience: float = 6 * 3600.0  #: seconds that the service may be away while we hold a result
    sandbox_limit: int = 1 << 30  #: bytes of an input sandbox, packed and unpacked
    output_limit: int = 1 << 30  #: bytes of all output files
    passed_on: tuple[str, ...] = ()  #: further variables of our environment that payloads see
    isolation: Isolation = field(default_factory=Isolation)  #: from the pilot and each other


@dataclass(frozen=True)
class PilotSettings:
    """All of it."""

    url: str
    place: QueuePlace
    care: PayloadOptions
    slot: Slot = Slot()
    wishes: JobFilters = JobFilters()
    ends: StopConditions = StopConditions()
    authorities: Path | None = None  #: file or directory of CA certificates; None: the system's
    proxy: str | None = None  #: address, or `none`; None: as the environment says
