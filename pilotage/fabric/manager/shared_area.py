"""The directory of a grid job that its local jobs see: its archive, and for each try a place for marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.batch.shell import Shell
from pilotage.fabric.manager.context import SharedBatchSystem
from pilotage.fabric.manager.records import GridJobEntry, LocalJob
from pilotage.fabric.runner import status_files

#: Bytes of a file of marks; of more than one line, the first counts.
_MOST_MARKS = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedArea:
    """Of one grid job."""

    below: str  #: directory of the batch system, absolute
    name: str  #: of the area in it
    shell: Shell

    @property
    def directory(self) -> str:
        """The area, absolute."""
        return f"{self.below}/{self.name}"

    @property
    def archive(self) -> str:
        """Runner and input sandbox, absolute."""
        return f"{self.below}/{self._archive}"

    @property
    def _archive(self) -> str:
        return f"{self.name}/job.pyz"

    def put_archive(self, content: bytes) -> None:
        """Write runner and input sandbox."""
        self.shell.write(self._archive, content, below=self.below)

    def marks(self, job: LocalJob) -> str:
        """Where a try leaves its marks, absolute."""
        return f"{self.below}/{self.mark(job)}"

    def mark(self, job: LocalJob, *name: str) -> str:
        """One of the marks of a try, by its path below the directory of the batch system."""
        return "/".join((self.name, f"{job.number}-{job.tries}", *name))

    def output(self, job: LocalJob, *, limit: int) -> bytes:
        """The archive that a try left; empty if it left none, one byte more than `limit` if it is larger."""
        return self.shell.read(self.mark(job, status_files.OUTPUT), below=self.below, last=limit + 1)

    @property
    def is_there(self) -> bool:
        """Whether it can be seen: a directory that is not mounted looks as if nobody had left anything."""
        return self.shell.read(self._archive, below=self.below, last=1) != b""

    def remove(self) -> None:
        """Remove all of it."""
        self.shell.remove([self.name], below=self.below)


def area_of(entry: GridJobEntry, farm: SharedBatchSystem, book: str) -> SharedArea:
    """The shared area of a grid job.

    Args:
        entry: Of the grid job.
        farm: That it runs in.
        book: Key of the book.
    """
    name = f"grid-{book}.{entry.taken.name}"
    return SharedArea(below=farm.directory, name=name, shell=farm.shell)


def read_first_lines(farm: SharedBatchSystem, names: Sequence[str]) -> Mapping[str, str]:
    """The first lines of many small files, with one command; those that cannot be seen are not in it.

    Args:
        farm: In whose directory they are.
        names: Paths below that.

    Raises:
        BatchSystemAway: They cannot be read now.
    """
    found = farm.shell.read_small(names, below=farm.directory, most=_MOST_MARKS)
    return {name: _first_line(content) for name, content in found.items()}


def _first_line(content: bytes) -> str:
    return content.partition(b"\n")[0].decode(errors="replace")[: status_files.LONGEST]
