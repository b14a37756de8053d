"""Shared directories: of a batch system; in it, of a grid job, with its archive and status files of tries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.batch.reliable import ReliableSystem
from pilotage.fabric.batch.shell import Shell
from pilotage.fabric.manager.records import LocalJob
from pilotage.fabric.runner import status_files

#: Maximum bytes of a status file; only its first line is used.
_MOST_MARKS = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBatchSystem:
    """A batch system with a directory shared by its nodes and the host of its commands."""

    system: ReliableSystem
    shell: Shell  #: on the host of the batch system's commands
    directory: str  #: absolute; contains a directory per grid job

    def read_first_lines(self, names: Sequence[str]) -> Mapping[str, str]:
        """Read the first lines of many small files with one command; missing files are left out."""
        found = self.shell.read_small(names, below=self.directory, most=_MOST_MARKS)
        return {name: _first_line(content) for name, content in found.items()}


def _first_line(content: bytes) -> str:
    return content.partition(b"\n")[0].decode(errors="replace")[: status_files.LONGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedArea:
    """The shared directory of one grid job."""

    below: str  #: shared directory of the batch system, absolute
    name: str  #: of the area, relative to it
    shell: Shell

    @property
    def directory(self) -> str:
        """Absolute path of the area."""
        return f"{self.below}/{self.name}"

    @property
    def archive(self) -> str:
        """Absolute path of the archive with runner and input sandbox."""
        return f"{self.below}/{self._archive}"

    @property
    def _archive(self) -> str:
        return f"{self.name}/job.pyz"

    def put_archive(self, content: bytes) -> None:
        """Write the archive with runner and input sandbox."""
        self.shell.write(self._archive, content, below=self.below)

    def mark(self, job: LocalJob, *name: str) -> str:
        """Path of a try's status file, or of their directory, relative to the batch system's directory."""
        return "/".join((self.name, f"{job.number}-{job.tries}", *name))

    def output(self, job: LocalJob, *, limit: int) -> bytes:
        """The output archive of a try; empty if missing, one byte more than `limit` if too large."""
        return self.shell.read(self.mark(job, status_files.OUTPUT), below=self.below, last=limit + 1)

    @property
    def is_there(self) -> bool:
        """Whether the area is visible: without its mount, no job would seem to have written anything."""
        return self.shell.read(self._archive, below=self.below, last=1) != b""

    def remove(self) -> None:
        """Remove the area."""
        self.shell.remove([self.name], below=self.below)
