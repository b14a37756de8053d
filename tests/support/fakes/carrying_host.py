"""A batch system of this host that carries files: nothing is shared with its jobs."""

from dataclasses import dataclass, field
from pathlib import Path

from pilotage.fabric.batch.batch_system import BatchJob, BatchSystemAway, Handle
from pilotage.fabric.batch.local_host import LocalHost
from pilotage.fabric.pilot import job_files


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryingHost(LocalHost):
    """Puts the input files of a job into its directory, and keeps there only what it was told to keep."""

    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reads: list[tuple[str, str]] = field(default_factory=list)  #: stamp and name of each file that was read
    unreadable: dict[str, BatchSystemAway] = field(default_factory=dict)  #: by prefix of stamps

    def submit(self, job: BatchJob) -> str:
        for name, content in job.inputs.items():
            job_files.write(self.directory, f"{job.stamp}/{name}", content, executable=False)
        self.kept[job.stamp] = job.outputs
        return LocalHost.submit(self, job)

    def read_file(self, handle: Handle, name: str, *, last: int) -> bytes:
        self.reads.append((handle.stamp, name))
        for prefix, error in self.unreadable.items():
            if handle.stamp.startswith(prefix):
                raise error
        if name not in self.kept[handle.stamp]:
            return b""
        path = Path(self.directory, handle.stamp, name)
        return path.read_bytes()[-last:] if path.is_file() else b""
