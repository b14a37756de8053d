"""A payload while it runs, seen from the pilot.

The end of what a payload wrote so far.

How a job ended, in the words of the field, and what became of its attempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.node import linux
from pilotage.fabric.pilot.node.linux import Usage

#: Directory or zip file that the package `pilotage` lies in.
_ROOT = str(Path(__file__).parents[4])
#: Without these some installations of Python do not even start.
_NEEDED = ("PATH", "LD_LIBRARY_PATH")
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from pilotage.fabric.pilot.payload import supervisor; sys.exit(supervisor.main())"
)


class NotStarted(Exception):
    """The payload could not be executed; the message says why."""


@dataclass(frozen=True)
class PayloadEnd:
    """How a payload ended."""

    exit_code: int  #: 128 + number of the signal if one ended it
    signal: int | None
    cpu_seconds: float | None = None  #: of all its processes; None: nobody was left who could tell


class Payload:
    """One running payload with everything that it started."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str],
        output: int,
        error: int,
        area: Path,
    ) -> None:
        """Start it.

        Args:
            words: The program, as a path, and its arguments.
            directory: Where it works.
            environment: All that it gets.
            output: Descriptor of a file for its standard output.
            error: Descriptor of a file for its standard error.
            area: Directory that is removed in case the pilot dies.

        Raises:
            NotStarted: The program cannot be executed.
            HostTrouble: No process can be started here.
        """
        self._supervisor = _start_supervisor({output, error})
        order = {
            "words": list(words),
            "directory": str(directory),
            "environment": dict(environment),
            "output": output,
            "error": error,
            "area": str(area),
        }
        self._said = b""
        self._tell(order)
        self._session = self._first_news()
        news = self._news()
        if news is not None and "problem" in news:
            self._news()  # its end, which says no more
            self.close()
            raise NotStarted(f"{words[0]}: {news['problem']}")

    def wait(self, timeout: float) -> PayloadEnd | None:
        """How it ended; None if it has not within `timeout` seconds.

        Nothing of it runs any more once this returns its end.
        """
        if not self._has_news(timeout):
            return None
        news = self._news()
        self.close()
        if news is not None:
            return PayloadEnd(**news["ended"])
        # Its supervisor was killed, and so was it; what it had started is ours to end.
        linux.end_session(self._session)
        return PayloadEnd(exit_code=128 + signal.SIGKILL, signal=signal.SIGKILL)

    def end(self, grace: float) -> None:
        """Send TERM to all of it now, and KILL after `grace` seconds to what is left."""
        self._tell({"end": grace})

    def usage(self) -> Usage:
        """What all of its processes use now."""
        return linux.measure_usage(self._supervisor.pid)

    def proportional_memory(self) -> int | None:
        """Bytes of memory, shared ones counted once; None: this host does not tell."""
        return linux.measure_proportional(self._supervisor.pid)

    def close(self) -> None:
        """Forget the supervisor; if it still runs, it ends what is left and itself."""
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._supervisor.wait()

    def _first_news(self) -> int:
        """The process id of the payload, before it begins."""
        news = self._news()
        if news is None:
            self.close()
            raise HostTrouble("the supervisor of the payload ended at once")
        return int(news["pid"])

    def _tell(self, news: Mapping[str, Any]) -> None:
        stdin = self._supervisor.stdin
        if stdin is None or stdin.closed:
            return
        try:
            stdin.write(json.dumps(news).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return  # it has gone; whoever waits for it learns that

    def _has_news(self, timeout: float) -> bool:
        stdout = self._supervisor.stdout
        if stdout is None or b"\n" in self._said:
            return True
        ready, _, _ = select.select([stdout], [], [], timeout)
        return bool(ready)

    def _news(self) -> dict[str, Any] | None:
        """The next line of the supervisor; None: it has gone."""
        stdout = self._supervisor.stdout
        while stdout is not None and b"\n" not in self._said:
            piece = os.read(stdout.fileno(), 4096)
            if not piece:
                return None
            self._said += piece
        line, _, self._said = self._said.partition(b"\n")
        news: dict[str, Any] = json.loads(line)
        return news


def _start_supervisor(descriptors: set[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(descriptors),
            env={name: os.environ[name] for name in _NEEDED if name in os.environ},
            cwd="/",
            start_new_session=True,  # signals to the pilot's group are for the pilot
        )
    except OSError as error:
        raise HostTrouble(f"{sys.executable}: {error}") from None


_MOST_LINES = 20
_MOST_BYTES = 4096


def tail_of_files(descriptors: dict[str, int]) -> str:
    """The last lines of each file, headed by its name where there are several with something in them.

    Args:
        descriptors: By the name of the file. The files are read through these, never by their names:
            the payload may have put something else there.
    """
    tails = {name: _last_lines(descriptor) for name, descriptor in descriptors.items()}
    filled = {name: text for name, text in tails.items() if text}
    if len(filled) <= 1:
        return "".join(filled.values())
    return "\n".join(f"==> {name} <==\n{text}" for name, text in filled.items())


def tail_of_path(path: Path) -> str:
    """The last lines of a file that the payload may have replaced by anything; empty if it is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return _last_lines(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
    finally:
        os.close(descriptor)


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line for line in reversed(text.split("\n")) if line.strip()), "").strip()


def printable(text: str, most: int) -> str:
    """The text as the service takes it: no NUL, nothing that is not Unicode, not too long."""
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def _last_lines(descriptor: int) -> str:
    try:
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, _MOST_BYTES, max(0, size - _MOST_BYTES))
    except OSError:
        return ""
    lines = data.decode("utf-8", "replace").replace("\0", "\ufffd").rstrip("\n").split("\n")
    if size > _MOST_BYTES and len(lines) > 1:
        lines = lines[1:]  # the first is cut
    return "\n".join(lines[-_MOST_LINES:])


DONE, FAILED = "Done", "Failed"

COMPLETE = "Execution Complete"
ERRORS = "Application Finished With Errors"
NOT_FOUND = "Application not found"
NO_SANDBOX = "Failed Downloading InputSandbox"
NO_OUTPUT = "Failed Uploading OutputSandbox"
KILLED = "Received Kill signal"
UNFIT = "Illegal job description"

#: Exit status by which a payload asks to be rescheduled: DIRAC's 1502, of which eight bits are left.
RESCHEDULE = 1502 & 0xFF

#: Characters that the service takes.
_LONGEST = 1000


@dataclass(frozen=True)
class Report:
    """What is told when the payload has ended."""

    status: str  #: Done or Failed
    minor_status: str
    application_status: str = ""  #: details for people
    exit_code: int | None = None
    cpu_seconds: float | None = None  #: that the payload used; None: not known
    cpu_power: float | None = None  #: normalised seconds in one of these; None: nobody measured

    def as_json(self) -> dict[str, object]:
        """As it is sent: always the same for the same report, since it may have to be sent again."""
        said = {
            "status": self.status,
            "exit_code": self.exit_code,
            "minor_status": printable(self.minor_status, _LONGEST),
            "application_status": printable(self.application_status, _LONGEST),
        }
        used = {"cpu_seconds": self.cpu_seconds, "cpu_power": self.cpu_power}
        return {**said, **{name: value for name, value in used.items() if value is not None}}

    def having_used(self, cpu_seconds: float | None, *, cpu_power: float | None) -> Report:
        """With the CPU time of its payload."""
        return replace(self, cpu_seconds=cpu_seconds, cpu_power=None if cpu_seconds is None else cpu_power)

    def noting(self, note: str) -> Report:
        """With one more detail."""
        details = "; ".join(each for each in (self.application_status, note) if each)
        return replace(self, application_status=details)

    def without_details(self, why: str) -> Report:
        """When the service refused it: how the job ended, and why there is no more."""
        code = self.exit_code if self.exit_code in range(256) else None
        return Report(self.status, self.minor_status, f"the full report was refused: {why}", code)

    def without_output(self, why: str) -> Report:
        """When the output could not be stored: a job whose output is lost is not done."""
        if self.status == DONE:
            return replace(self, status=FAILED, minor_status=NO_OUTPUT).noting(why)
        return self.noting(f"no output: {why}")


def failure_report(minor_status: str, detail: str = "", end: PayloadEnd | None = None) -> Report:
    """A failure that has a cause of its own, whatever the payload made of it."""
    return Report(FAILED, minor_status, detail, None if end is None else end.exit_code)


def asks_for_reschedule(end: PayloadEnd) -> bool:
    """Whether a payload says by its exit status that it wants to be rescheduled."""
    return end.signal is None and end.exit_code == RESCHEDULE


def report_of_end(end: PayloadEnd) -> Report:
    """What a payload says by its exit status."""
    if end.exit_code == 0:
        return Report(DONE, COMPLETE, exit_code=0)
    if end.signal is not None:
        detail = f"ended by signal {end.signal} ({_signal_name(end.signal)})"
    else:
        detail = f"exit code {end.exit_code}"
    return Report(FAILED, ERRORS, detail, end.exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
