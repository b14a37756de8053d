"""Grid jobs for tests: a manager with its station, and input sandboxes that are at hand."""

import io
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pilotage.fabric.batch.batch_system import (
    BatchSystem,
    CarriesFiles,
    Evidence,
    JobResources,
    ReliableSystem,
)
from pilotage.fabric.batch.shell import LocalShell, Shell
from pilotage.fabric.director.targets import QueueTarget
from pilotage.fabric.manager.context import ManagerContext, ManagerOptions
from pilotage.fabric.manager.grid_job import GridJob, ManagerPhase, PulledGridJob
from pilotage.fabric.manager.job_types import installed_handlers
from pilotage.fabric.manager.journal import Journal
from pilotage.fabric.manager.manager import Manager
from pilotage.fabric.manager.shared_area import CarryingSystem, SharedBatchSystem
from pilotage.fabric.pilot.service.transport import Away

QUEUE = "LCG.A.org/ce/local"
GENERATE = """\
#!/bin/sh
pilotage-progress generated $EVENTS $EVENTS
echo "$FIRST_EVENT $EVENTS $SEED" >events.txt
"""


def sandbox(**files: str) -> bytes:
    """A tar with these files, executable."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "."))
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


@dataclass
class Sandboxes:
    """The service, as far as it gives sandboxes."""

    content: bytes = b""
    away: bool = False

    def fetch_sandbox(self, lease: str, to: BinaryIO, *, limit: int) -> bool:
        if self.away:
            raise Away(f"the service does not answer for {lease}, on purpose")
        assert len(self.content) <= limit
        to.write(self.content)
        return bool(self.content)


def taken(job_id: int = 7, *, queue: str = QUEUE, **description: object) -> PulledGridJob:
    stated = {"Executable": "run.sh", "OutputSandbox": ["events.txt"], **description}
    return PulledGridJob(
        job_id=job_id, epoch=1, lease="lease", description=stated, queue=queue, vo="cms", owner="ada"
    )


def montecarlo(events: int, per_job: int, **more: Any) -> PulledGridJob:
    return taken(JobType="montecarlo", Events=events, EventsPerJob=per_job, **more)


@dataclass
class Site:
    """A gateway's surroundings."""

    directory: Path
    system: BatchSystem
    shared: Path
    shell: Shell = field(default_factory=LocalShell)
    sandboxes: Sandboxes = field(default_factory=lambda: Sandboxes(sandbox(run__sh=GENERATE)))
    batch_queue: str = "local"
    resources: JobResources = field(default_factory=JobResources)
    queue: str = QUEUE
    evidence: Evidence = field(default_factory=lambda: Evidence(listings=2, seconds=0))
    habits: Mapping[str, Any] = field(default_factory=dict)
    book: type[Journal] = Journal
    opened: Journal | None = None
    others: Mapping[str, BatchSystem] = field(default_factory=dict)  #: each behind a queue of its name

    def context(self, options: ManagerOptions, journal: Journal) -> ManagerContext:
        names = {self.queue: "farm", **{f"LCG.A.org/ce/{name}": name for name in self.others}}
        return ManagerContext(
            options=options,
            grace=2,
            journal=journal,
            systems={
                name: self.batch(ReliableSystem(system=system, evidence=self.evidence))
                for name, system in {"farm": self.system, **self.others}.items()
            },
            queues={
                queue: QueueTarget(
                    queue=queue, system=name, batch_queue=self.batch_queue, resources=self.resources
                )
                for queue, name in names.items()
            },
            handlers=installed_handlers(),
            sandboxes=self.sandboxes,
        )

    def batch(self, ideal: ReliableSystem) -> SharedBatchSystem:
        """The batch system as managers have it."""
        if isinstance(self.system, CarriesFiles):
            carried = str(self.directory / "carried")
            return CarryingSystem(system=ideal, shell=self.shell, directory=carried, files=self.system)
        return SharedBatchSystem(system=ideal, shell=self.shell, directory=str(self.shared))

    def manager(self) -> Manager:
        """A manager that has just been started; the one before is no more."""
        self.close()
        # Payloads of tests wait for files of this host.
        usual = {"name": "test", "directory": self.directory / "state", "settle": 0, "beat": 1}
        usual |= {"isolation": "none"}
        habits = ManagerOptions(**{**usual, **self.habits})
        self.opened = self.book(habits.directory)
        # However slow the machine is, a round has time for all submissions.
        return Manager(self.context(habits, self.opened), clock=lambda: 0.0)

    def run(self, pulled: PulledGridJob) -> GridJob:
        """A grid job from its begin to its end, by a manager of its own."""
        manager = self.manager()
        manager.journal.take(pulled)
        return until(manager, ended)

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None


def until(
    manager: Manager, holds: Callable[[GridJob], bool], *, seconds: float = 300, job_id: int = 7
) -> GridJob:
    """Advance until something holds for a grid job."""
    deadline = time.monotonic() + seconds
    while True:
        manager.advance()
        job = next(each for each in manager.grid_jobs() if each.taken.job_id == job_id)
        if holds(job):
            return job
        assert time.monotonic() < deadline, (job, manager.journal.log((job_id, 1)))  # type: ignore[arg-type]
        time.sleep(0.02)


def ended(job: GridJob) -> bool:
    return job.phase is ManagerPhase.ENDED


def output(job: GridJob) -> dict[str, str]:
    """The files of its tar."""
    assert job.output is not None
    with tarfile.open(job.output) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}
