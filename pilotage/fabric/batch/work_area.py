"""Work areas of jobs, in a directory shared by the batch system's hosts, and the status from their marks.

The job runs in a wrapper that leaves marks: `started`, created by one start only, so that a job which the
batch system starts twice runs once; and `exit`, the status of the script. So the end of a job is known even
after the batch system has forgotten it.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystemAway,
    Handle,
    JobReport,
    Output,
    State,
)
from pilotage.fabric.batch.shell import Shell

#: The status of a job that was started a second time.
STARTED_TWICE = 75
#: What is fetched of an output at most.
_LAST_BYTES = 10_000_000  # bytes
#: Of a mark, and of a log of a batch system.
_MARK, _LOG = 100, 1_000_000  # bytes
#: By what the submitter marks the jobs whose end it asked for, beside their directories: no stamp begins so.
#: In a directory of their own they would be removed elsewhere, once a job has put a link in its place.
_KILLED = ".killed-"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_STATUS, _MOST_STATUS = re.compile(r"[0-9]{1,3}"), 255
#: Paths in one command.
_AT_ONCE = 500
_STAMP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,99}")

#: A file in a directory, or in that where it is to be made: with content, since a full disk takes empty ones.
#: A link to nothing never becomes a directory. A check that was killed while the storage hung left a file.
_TRIAL = """\
PATH=/usr/bin:/bin there=$1
while [ ! -e "$there" ] && [ ! -L "$there" ]; do there=$(dirname -- "$there"); done
name=.pilotage-check-
rm -f -- "$there/$name"?????????? 2>/dev/null
file=$(mktemp "$there/${name}XXXXXXXXXX") || exit
echo check >"$file"; status=$?
rm -f -- "$file" && exit $status
"""

_WRAPPER = """\
#!/bin/sh
umask 077
cd {area} || exit 70
# After a signal the job does not start; one that comes while it starts is passed on when it is there.
# The mark is made first: a signal that the job's shell gets just after its fork may be lost.
child= early=
pass_on() {{
    test -e signalled || true 2>/dev/null >signalled
    if test "$child"; then kill -$1 $child 2>/dev/null; else early=$1; fi
}}
for signal in TERM INT HUP USR1; do trap "pass_on $signal" $signal; done
trap "pass_on TERM" USR2
mkdir started 2>/dev/null || exit {twice}
uname -n 2>/dev/null >host || true
# Grid Engine announces the end by USR2, to all processes: only we take notice of it.
(trap '' USR2; test -e signalled || exec ./job; exit 143) >out 2>err </dev/null &
child=$!
test "$early" && kill -$early $child 2>/dev/null
# A signal ends the wait, not the job: wait until the child is gone.
while :; do wait $child; status=$?; kill -0 $child 2>/dev/null || break; done
# What ends the job may go to all processes: the mark is still made.
trap '' TERM INT HUP USR1 USR2
# A signal that came with the end of the job may have ended the wait, with a status of its own. That of the
# job can be read again, but of a shell that has forgotten it (127, bash also -1).
wait $child 2>/dev/null; last=$?
case $last in -* | 127) ;; *) status=$last ;; esac
echo $status >exit.new && mv exit.new exit
exit $status
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMarks:
    """Files left by a job and its submitter in the work area."""

    exit_code: int | None = None  #: of the script; None: it has not come to its end
    killed: bool = False  #: we asked for its end
    host: str = ""  #: name of the node, as the node says; empty: it has not started, or not said it

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
    """The directories of jobs, one per stamp."""

    directory: str  #: absolute, the same on the host of the commands and on the nodes
    shell: Shell

    def path(self, stamp: str, *parts: str) -> str:
        """A path in the directory of a job; no stamp leaves it, or is taken for an option (`ValueError`)."""
        return "/".join((self.directory, _checked(stamp), *parts))

    def check(self) -> None:
        """Test that a file can be written where the directories of jobs are made, else `BatchSystemAway`."""
        try:
            done = self.shell.run(["/bin/sh", "-c", _TRIAL, "sh", self.directory])
        except BatchSystemAway as error:
            raise type(error)(f"{self.directory}: a file cannot be written: {error}") from error
        if done.status:
            raise BatchSystemAway(f"{self.directory}: a file cannot be written: {done.said}")

    def prepare(self, job: BatchJob) -> str:
        """Lay out what a job needs; the path of the script that the batch system is to run."""
        self.put_script(job)
        return self.put(job.stamp, "wrapper", wrapper(self.path(job.stamp)), executable=True)

    def put_script(self, job: BatchJob) -> str:
        """Write the job's own script, for batch systems that carry it to the node; its path."""
        return self.put(job.stamp, "job", job.script, executable=True)

    def put(self, stamp: str, name: str, text: str, *, executable: bool = False) -> str:
        """Write a file into the directory of a job; its path."""
        file = _own_file(stamp, name)
        self.shell.write(file, text.encode(), below=self.directory, executable=executable)
        return self.path(stamp, name)

    def marks(self, stamps: Iterable[str]) -> Mapping[str, StatusMarks]:
        """Status marks that jobs left, read with few commands for all of them."""
        of_exit = {_own_file(stamp, "exit"): stamp for stamp in stamps}
        of_kill = {_killed_file(stamp): stamp for stamp in of_exit.values()}
        of_host = {_own_file(stamp, "host"): stamp for stamp in of_exit.values()}
        names = sorted([*of_exit, *of_kill, *of_host])
        found = self.shell.read_small(names, below=self.directory, most=_MARK)
        hosts = {stamp: _host(found[name]) for name, stamp in of_host.items() if name in found}
        killed = {stamp for name, stamp in of_kill.items() if name in found}
        return {
            stamp: StatusMarks(
                exit_code=_status(found.get(name, b"")), killed=stamp in killed, host=hosts.get(stamp, "")
            )
            for name, stamp in of_exit.items()
        }

    def mark_killed(self, stamps: Iterable[str]) -> None:
        """Note that we ask for the end of jobs, before we do: not in directories that they can fill.

        A kill is repeated until the job has ended, its note is not.
        """
        names = [_killed_file(stamp) for stamp in stamps]
        there = self.shell.read_small(names, below=self.directory, most=_LOG)
        for name in names:
            if name not in there:
                self.shell.write(name, b"killed\n", below=self.directory)

    def texts(self, stamps: Iterable[str], name: str, *, most: int = _LOG) -> Mapping[str, str]:
        """The files of one name, by stamp; left out are jobs without it, and with more than `most` bytes."""
        names = {_own_file(stamp, name): stamp for stamp in stamps}
        found = self.shell.read_small(sorted(names), below=self.directory, most=most)
        return {names[name]: content.decode(errors="replace") for name, content in found.items()}

    def output(self, stamp: str) -> Output:
        """Output of the job so far."""
        stdout, stderr = (
            self.shell.read(_own_file(stamp, name), below=self.directory, last=_LAST_BYTES)
            for name in ("out", "err")
        )
        return Output(stdout=stdout, stderr=stderr)

    def list_old(self, seconds: float) -> frozenset[str]:
        """The stamps of the directories in which nothing was made for so long, as far as that is known."""
        words = ["find", "-P", f"{self.directory}/", "-mindepth", "1", "-maxdepth", "1", "-type", "d"]
        found = self.shell.run([*words, "-mmin", f"+{seconds / 60:.0f}", "-printf", "%f\\n"])
        return frozenset(filter(is_stamp, found.stdout.split("\n"))) if not found.status else frozenset()

    def remove(self, stamps: Iterable[str]) -> None:
        """Remove the directories of jobs, and what was noted of them."""
        names = [name for stamp in stamps for name in (_checked(stamp), _killed_file(stamp))]
        if names:
            self.shell.remove(names, below=self.directory)


def is_stamp(name: str) -> bool:
    """Whether a name can be that of a job's directory."""
    return _STAMP.fullmatch(name) is not None


def _checked(stamp: str) -> str:
    if not is_stamp(stamp):
        raise ValueError(f"{stamp!r} is no stamp: allowed are 8 to 100 letters, digits and . _ -")
    return stamp


def _own_file(stamp: str, name: str) -> str:
    """A file of a job, by its path below the directory of all jobs."""
    return f"{_checked(stamp)}/{name}"


def _killed_file(stamp: str) -> str:
    return f"{_KILLED}{_checked(stamp)}"


def _status(mark: bytes) -> int | None:
    """The exit status in a mark; None: there is none, or the job has put something else there."""
    text = mark.decode("ascii", "replace").strip()
    return int(text) if _STATUS.fullmatch(text) and int(text) <= _MOST_STATUS else None


def _host(mark: bytes) -> str:
    """The name in a mark; empty: the job has put something else there."""
    text = mark.decode("ascii", "replace").strip()
    return text if _HOST.fullmatch(text) else ""


def wrapper(area: str) -> str:
    """The script that runs the file `job` of a directory, once, and leaves its output and its marks there."""
    return _WRAPPER.format(area=shlex.quote(area), twice=STARTED_TWICE)


def split_words(words: Sequence[str]) -> Iterator[list[str]]:
    """Stamps or paths in parts that fit into one command."""
    rest = iter(words)
    while some := list(islice(rest, _AT_ONCE)):
        yield some


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job in a listing or in the accounting."""

    stamp: str
    reference: str
    state: State  #: *gone*: it ended, and how is not said
    message: str = ""  #: in the words of the batch system
    exit_code: int | None = None  #: of the script; 128 + number for a signal
    node: str = ""  #: its name in the batch system; empty: not known


def index_by_stamp(rows: Iterable[ListedJob]) -> dict[str, list[ListedJob]]:
    """The jobs of each stamp, each once however often it is listed; what is said last holds."""
    found: dict[str, dict[str, ListedJob]] = {}
    for row in rows:
        found.setdefault(row.stamp, {})[row.reference] = row
    return {stamp: list(of_stamp.values()) for stamp, of_stamp in found.items()}


def choose_job(rows: Iterable[ListedJob], handle: Handle) -> ListedJob | None:
    """Choose from several jobs of one stamp: one that lives must not be forgotten; else the one meant."""
    return min(rows, key=lambda row: (row.state in ENDED, row.reference != handle.reference), default=None)


def job_report(row: ListedJob | None, marks: StatusMarks, handle: Handle) -> JobReport:
    """The state of a job by its listing (None: it is not listed) and by the files that it left."""
    if row is not None and row.state not in ENDED:
        return JobReport(state=row.state, reference=row.reference, message=row.message, node=row.node)
    reference = row.reference if row else handle.reference
    if marks.ended:
        # The script came to its end; whatever the batch system says of it came after.
        killed = row is not None and row.state is State.KILLED
        return JobReport(
            state=State.KILLED if killed else marks.state,
            reference=reference,
            exit_code=marks.exit_code,
            message=row.message if row else "ended, and not listed by the batch system any more",
            host=marks.host,
            node=row.node if row else "",
        )
    if row is None:
        return JobReport(state=State.MISSING, reference=reference, was_killed=marks.killed)
    state = row.state
    if marks.killed:
        # Also where it is said to be done: a script that ends well leaves its mark before, and some batch
        # systems say 0 of a job whose status they do not know yet.
        state = State.KILLED
    return JobReport(
        # What it left may be on its way here still: the evidence is not complete.
        state=State.MISSING if state is State.GONE else state,
        reference=reference,
        exit_code=row.exit_code,
        message=row.message,
        host=marks.host,
        node=row.node,
    )
