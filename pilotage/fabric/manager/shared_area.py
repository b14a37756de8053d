"""The directory of a grid job that its local jobs see: its archive, and for each try a place for marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.batch.shell import Shell
from pilotage.fabric.batch.work_area import batches
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.manager.station import Farm
from pilotage.fabric.runner import marks

# What lies there may be anything: pipes block who opens them, links lead elsewhere, files may have no end.
_READ = """\
cd "$1" || exit
shift
find "$@" -maxdepth 0 -type f -size -32k -exec grep -a -H -m 1 '' {} +
"""
_IS_FILE = 'test -f "$1" && test ! -h "$1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedArea:
    """Of one grid job."""

    directory: str
    shell: Shell

    @property
    def archive(self) -> str:
        """Runner and input sandbox."""
        return f"{self.directory}/job.pyz"

    def marks(self, job: LocalJob, *name: str) -> str:
        """Where a try leaves its marks, or one of them."""
        return "/".join((self.directory, f"{job.number}-{job.tries}", *name))

    def output(self, job: LocalJob, *, limit: int) -> bytes:
        """The archive that a try left; empty if it left none, one byte more than `limit` if it is larger."""
        path = self.marks(job, marks.OUTPUT)
        if not is_file(self.shell, path):
            return b""
        return self.shell.read(path, last=limit + 1)

    @property
    def is_there(self) -> bool:
        """Whether it can be seen: a directory that is not mounted looks as if nobody had left anything."""
        return is_file(self.shell, self.archive)

    def remove(self) -> None:
        """Remove all of it."""
        self.shell.remove(self.directory)


def area_of(entry: Entry, farm: Farm, book: str) -> SharedArea:
    """The shared area of a grid job.

    Args:
        entry: Of the grid job.
        farm: That it runs in.
        book: Key of the book.
    """
    return SharedArea(directory=f"{farm.directory}/grid-{book}.{entry.taken.name}", shell=farm.shell)


def contents(farm: Farm, paths: Sequence[str]) -> Mapping[str, str]:
    """The first lines of many small files, with few commands; those that cannot be seen are not in it.

    Args:
        farm: In whose directory they are.
        paths: Absolute ones.

    Raises:
        BatchSystemAway: They cannot be read now.
    """
    found: dict[str, str] = {}
    names = [f"./{path.removeprefix(f'{farm.directory}/')}" for path in paths]
    for some in batches(names):
        said = farm.shell.run(["sh", "-c", _READ, "sh", farm.directory, *some])
        for line in said.stdout.split("\n"):
            name, colon, content = line.partition(":")
            if colon:
                found[f"{farm.directory}/{name.removeprefix('./')}"] = content[: marks.LONGEST]
    return found


def is_file(shell: Shell, path: str) -> bool:
    """Whether a file can be seen, and is one."""
    return shell.run(["sh", "-c", _IS_FILE, "sh", path]).status == 0
