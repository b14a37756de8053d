"""A batch system on the bench: what checks need to submit, to wait and to clean up."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystem,
    Handle,
    Report,
    Resources,
    State,
)
from pilotage.fabric.batch.conformance.glitches import Faults, Glitch, Glitchy


class Violated(Exception):
    """A batch system does not do what it must."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """A batch system under test."""

    system: BatchSystem
    queue: str
    faults: Faults | None = None  #: in what the system works through; None: they are made at the seam
    resources: Resources = field(default_factory=Resources)
    poll: float = 0.2  #: seconds between two looks at a job
    gentle: bool = True  #: a kill leaves a job the time to end by itself
    many: int = 1000  #: jobs of one query
    patience: float = 120.0  #: seconds until a small job has ended
    _open: list[Handle] = field(default_factory=list)

    def job(self, script: str) -> BatchJob:
        """A job under a new stamp, which will be ended and removed if it is submitted."""
        stamp = self.stamp()
        self._open.append(Handle(stamp=stamp))
        return BatchJob(stamp=stamp, script=script, queue=self.queue, resources=self.resources)

    def submit(self, script: str) -> Handle:
        """Submit a script under a new stamp."""
        job = self.job(script)
        return Handle(stamp=job.stamp, reference=self.system.submit(job))

    def stamp(self) -> str:
        """A stamp that nobody has."""
        return f"check-{uuid.uuid4()}"

    def report(self, handle: Handle) -> Report:
        """How a job stands."""
        return self.system.status([handle])[handle.stamp]

    def until(self, handle: Handle, *states: State) -> Report:
        """Wait until a job is in one of the states."""
        deadline = time.monotonic() + self.patience
        while (report := self.report(handle)).state not in states:
            if time.monotonic() > deadline:
                raise Violated(f"after {self.patience:.0f} s a job is {report}, expected {', '.join(states)}")
            if report.state in ENDED:
                raise Violated(f"a job ended as {report}, expected {', '.join(states)}")
            time.sleep(self.poll)
        return report

    @contextmanager
    def disturbed(self, glitch: Glitch) -> Iterator[BatchSystem]:
        """The batch system while something goes wrong: with its commands, or at the seam if it has none."""
        faults = self.faults or Glitchy(system=self.system)
        faults.glitch = glitch
        try:
            yield faults if isinstance(faults, Glitchy) else self.system
        finally:
            faults.glitch = None

    def close(self) -> None:
        """End and remove all that was submitted."""
        handles, self._open = self._open, []
        self.system.kill(handles)
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            states = {report.state for report in self.system.status(handles).values()}
            if states <= ENDED | {State.MISSING}:
                break
            time.sleep(self.poll)
        self.system.forget(handles)
