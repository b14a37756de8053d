"""The directory of a grid job that its local jobs see: its archive, and for each try a place for marks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pilotage.fabric.batch.shell import Shell
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.manager.station import Farm
from pilotage.fabric.runner import marks

#: Paths in one command.
_AT_ONCE = 400
# What lies there may be anything: pipes block who opens them, and a file may have no end.
_READ = """\
most=$1
shift
for path
do
  test -f "$path" && test ! -h "$path" || continue
  printf '%s\\t' "$path"
  head -c "$most" <"$path" | head -n 1 | tr -d '\\000\\n'
  echo
done
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
        if self.shell.run(["sh", "-c", _IS_FILE, "sh", path]).status != 0:
            return b""
        return self.shell.read(path, last=limit + 1)

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


def contents(shell: Shell, paths: Sequence[str]) -> Mapping[str, str]:
    """The first lines of many small files, with few commands; those that are not there are not in it.

    Raises:
        BatchSystemAway: They cannot be read now.
    """
    found: dict[str, str] = {}
    for some in _batches(paths):
        said = shell.run(["sh", "-c", _READ, "sh", str(marks.LONGEST), *some])
        for line in said.stdout.split("\n"):
            path, tab, content = line.partition("\t")
            if tab:
                found[path] = content
    return found


def _batches(paths: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(paths)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
