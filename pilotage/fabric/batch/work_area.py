"""Where a job's files lie, on a directory that the batch system's hosts share.

The job runs in a wrapper that leaves marks of its own: `started`, made by one start only, so that a job
which the batch system starts twice runs once; and `exit`, the status of the script. So the end of a job is
known though the batch system has forgotten it.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pilotage.fabric.batch.batch_system import BatchJob, Output, State
from pilotage.fabric.batch.shell import Shell

#: The status of a job that was started a second time.
STARTED_TWICE = 75
#: What is fetched of an output at most.
_LAST = 10_000_000  # bytes
#: Paths in one command.
_AT_ONCE = 500
_STAMP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,99}")

_WRAPPER = """\
#!/bin/sh
cd {area} || exit 70
mkdir started 2>/dev/null || exit {twice}
# Grid Engine announces the end by USR2, to all processes: only we take notice of it.
(trap '' USR2; exec ./job) >out 2>err </dev/null &
child=$!
for signal in TERM INT HUP USR1; do trap "kill -$signal $child 2>/dev/null" $signal; done
trap "kill -TERM $child 2>/dev/null" USR2
# A signal ends the wait, not the job: wait until the child is gone.
while :; do wait $child; status=$?; kill -0 $child 2>/dev/null || break; done
echo $status >exit.new && mv exit.new exit
exit $status
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a job and its submitter left in its work area."""

    exit_code: int | None = None  #: of the script; None: it has not come to its end
    killed: bool = False  #: we asked for its end

    @property
    def ended(self) -> bool:
        """Whether the script came to its end."""
        return self.exit_code is not None

    @property
    def state(self) -> State:
        """How it ended."""
        if self.exit_code == 0:
            return State.DONE
        return State.KILLED if self.killed else State.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkAreas:
    """The directories of jobs, one for each stamp."""

    directory: str  #: absolute, the same on the host of the commands and on the nodes
    shell: Shell

    def path(self, stamp: str, *parts: str) -> str:
        """A path in the directory of a job.

        Raises:
            ValueError: The stamp could leave the directory or be taken for an option.
        """
        if not _STAMP.fullmatch(stamp):
            raise ValueError(f"{stamp!r} is no stamp: allowed are 8 to 100 letters, digits and . _ -")
        return "/".join((self.directory, stamp, *parts))

    def prepare(self, job: BatchJob) -> str:
        """Lay out what a job needs; the path of the script that the batch system is to run."""
        self.put_script(job)
        script = self.path(job.stamp, "wrapper")
        self.shell.write(script, wrapper(self.path(job.stamp)).encode(), executable=True)
        return script

    def put_script(self, job: BatchJob) -> str:
        """Write the job's own script, for batch systems that carry it to the node; its path."""
        script = self.path(job.stamp, "job")
        self.shell.write(script, job.script.encode(), executable=True)
        return script

    def marks(self, stamps: Iterable[str]) -> Mapping[str, Marks]:
        """What jobs left, with few commands for all of them."""
        wanted = sorted(stamps)
        exits = self.texts(wanted, "exit")
        killed = self.texts(wanted, "killed")
        return {
            stamp: Marks(
                exit_code=int(code)
                if (code := exits.get(stamp, "").rpartition("\n")[2]).isdecimal()
                else None,
                killed=stamp in killed,
            )
            for stamp in wanted
        }

    def mark_killed(self, stamps: Iterable[str]) -> None:
        """Note that we ask for the end of jobs, before we do."""
        for stamp in stamps:
            self.shell.write(self.path(stamp, "killed"), b"killed\n")

    def texts(self, stamps: Sequence[str], name: str) -> Mapping[str, str]:
        """The lines of the files of one name, with few commands for all; jobs without it are left out."""
        found: dict[str, list[str]] = {}
        for some in batches(stamps):
            files = [self.path(stamp, name) for stamp in some]
            said = self.shell.run(["grep", "-sH", "", *files])  # one command for all; status 1: there is none
            for line in said.stdout.splitlines():
                stamp, _, rest = line.removeprefix(f"{self.directory}/").partition("/")
                found.setdefault(stamp, []).append(rest.removeprefix(f"{name}:"))
        return {stamp: "\n".join(lines) for stamp, lines in found.items()}

    def output(self, stamp: str) -> Output:
        """What the job wrote so far."""
        read = self.shell.read
        return Output(
            stdout=read(self.path(stamp, "out"), last=_LAST), stderr=read(self.path(stamp, "err"), last=_LAST)
        )

    def remove(self, stamps: Iterable[str]) -> None:
        """Remove the directories of jobs."""
        for stamp in stamps:
            self.shell.remove(self.path(stamp))


def wrapper(area: str) -> str:
    """The script that runs the file `job` of a directory, once, and leaves its output and its marks there."""
    return _WRAPPER.format(area=shlex.quote(area), twice=STARTED_TWICE)


def batches(words: Sequence[str]) -> Iterator[list[str]]:
    """Stamps or paths in parts that fit into one command."""
    rest = iter(words)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
