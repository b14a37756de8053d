"""A running payload as the pilot controls it, the tail of its output, and the report of its end.

Status words are those of DIRAC.
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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pilotage.fabric.pilot.errors import HostTrouble
from pilotage.fabric.pilot.node import linux
from pilotage.fabric.pilot.node.linux import Usage
from pilotage.fabric.pilot.payload.supervisor import SupervisorOrder

#: Directory or zip file that contains the package `pilotage`.
_ROOT = str(Path(__file__).parents[4])
#: Variables without which some installations of Python do not start.
_NEEDED = ("PATH", "LD_LIBRARY_PATH")
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from pilotage.fabric.pilot.payload import supervisor; sys.exit(supervisor.main())"
)


class NotStarted(Exception):
    """The payload could not be executed; the message is the reason."""


@dataclass(frozen=True)
class PayloadEnd:
    """How a payload ended."""

    exit_code: int  #: 128 + signal number if it was killed by a signal
    signal: int | None
    cpu_seconds: float | None = None  #: of all its processes; None: unknown, the supervisor was killed
    resident: int | None = None  #: bytes of its largest process


@dataclass(frozen=True)
class PayloadUse:
    """The largest use of a payload so far; None: not measured."""

    memory_mb: int | None = None
    scratch_mb: int | None = None
    cpu_seconds: float | None = None

    def as_json(self) -> dict[str, object]:
        """The measured amounts, for a message to the service."""
        return {name: value for name, value in vars(self).items() if value is not None}


NO_USE = PayloadUse()


class Payload:
    """A running payload with all processes that it started."""

    def __init__(self, order: SupervisorOrder) -> None:
        """Start it; raises `NotStarted`, or `HostTrouble` where no process can be started."""
        self._supervisor = _start_supervisor({order.output, order.error})
        self._received = b""
        self._send({**vars(order), "environment": dict(order.environment)})
        news = self._read_line()
        if news is None:
            self.close()
            raise HostTrouble("the supervisor of the payload ended at once")
        self._session = int(news["pid"])  # of the payload, which has not started yet
        news = self._read_line()
        if news is not None and "problem" in news:
            self._read_line()  # its end, without further information
            self.close()
            raise NotStarted(f"{order.words[0]}: {news['problem']}")

    def wait(self, timeout: float) -> PayloadEnd | None:
        """Wait up to `timeout` seconds; None if the payload still runs.

        None of its processes is left once this returns its end.
        """
        stdout = self._supervisor.stdout
        if (
            stdout is not None
            and b"\n" not in self._received
            and not select.select([stdout], [], [], timeout)[0]
        ):
            return None
        news = self._read_line()
        self.close()
        if news is not None:
            return PayloadEnd(**news["ended"])
        # The supervisor was killed, and the payload with it; its other processes are ours to end.
        linux.end_session(self._session)
        return PayloadEnd(exit_code=128 + signal.SIGKILL, signal=signal.SIGKILL)

    def end(self, grace: float) -> None:
        """Send TERM to all processes now, and KILL after `grace` seconds to those left."""
        self._send({"end": grace})

    def usage(self) -> Usage:
        """Current resource usage of all its processes."""
        return linux.measure_usage(self._supervisor.pid)

    def proportional_memory(self) -> int | None:
        """Bytes of memory with shared pages counted once; None: not available on this host."""
        return linux.measure_proportional(self._supervisor.pid)

    def close(self) -> None:
        """Disconnect from the supervisor; if it still runs, it ends the payload and itself."""
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._supervisor.wait()

    def _send(self, news: Mapping[str, Any]) -> None:
        stdin = self._supervisor.stdin
        if stdin is None or stdin.closed:
            return
        try:
            stdin.write(json.dumps(news).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return  # the supervisor has ended, which `_read_line` notices

    def _read_line(self) -> dict[str, Any] | None:
        """The next line from the supervisor; None: it has ended."""
        stdout = self._supervisor.stdout
        while stdout is not None and b"\n" not in self._received:
            piece = os.read(stdout.fileno(), 4096)
            if not piece:
                return None
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
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
    """The last lines of each file, with its name as header if several files have content.

    Files are read through their descriptors, never by name: the payload may have replaced them.
    """
    tails = {name: _last_lines(descriptor) for name, descriptor in descriptors.items()}
    filled = {name: text for name, text in tails.items() if text}
    if len(filled) <= 1:
        return "".join(filled.values())
    return "\n".join(f"==> {name} <==\n{text}" for name, text in filled.items())


def tail_of_path(path: Path) -> str:
    """The last lines of a file that the payload may have replaced; empty if it is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return _last_lines(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
    finally:
        os.close(descriptor)


def last_line(text: str) -> str:
    """The last non-empty line."""
    return next((line for line in reversed(text.split("\n")) if line.strip()), "").strip()


def printable(text: str, most: int) -> str:
    """Replace NUL and invalid Unicode, and shorten to `most` characters, as the service requires."""
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
NO_IMAGE = "Image cannot be started"
UNFIT = "Illegal job description"

#: Exit status with which a payload requests rescheduling: the low eight bits of DIRAC's 1502.
RESCHEDULE = 1502 & 0xFF

#: Maximum characters that the service accepts.
_LONGEST = 1000


@dataclass(frozen=True)
class Report:
    """The report on an ended payload."""

    status: str  #: Done or Failed
    minor_status: str
    application_status: str = ""  #: details for people
    exit_code: int | None = None
    used: PayloadUse = NO_USE  #: by the payload
    cpu_power: float | None = None  #: normalised seconds per CPU second; None: not measured
    output: str | None = None  #: the service's name of the output that was sent; None: none was

    def as_json(self) -> dict[str, object]:
        """Body of the request: equal for equal reports, since it may have to be sent again."""
        said = {
            "status": self.status,
            "exit_code": self.exit_code,
            "minor_status": printable(self.minor_status, _LONGEST),
            "application_status": printable(self.application_status, _LONGEST),
        }
        known = {"cpu_power": self.cpu_power, "output": self.output}
        stated = {name: value for name, value in known.items() if value is not None}
        return {**said, **self.used.as_json(), **stated}

    def having_used(self, used: PayloadUse, *, cpu_power: float | None) -> Report:
        """Add what the payload used."""
        return replace(self, used=used, cpu_power=None if used.cpu_seconds is None else cpu_power)

    def noting(self, note: str) -> Report:
        """Add a detail."""
        details = "; ".join(each for each in (self.application_status, note) if each)
        return replace(self, application_status=details)

    def without_details(self, why: str) -> Report:
        """Reduce a report that the service refused to the end of the job and the reason."""
        code = self.exit_code if self.exit_code in range(256) else None
        return Report(self.status, self.minor_status, f"the full report was refused: {why}", code)

    def without_output(self, why: str) -> Report:
        """Add that the output could not be stored; a job whose output is lost counts as failed."""
        if self.status == DONE:
            return replace(self, status=FAILED, minor_status=NO_OUTPUT, output=None).noting(why)
        return replace(self, output=None).noting(f"no output: {why}")


def failure_report(minor_status: str, detail: str = "", end: PayloadEnd | None = None) -> Report:
    """Make a failed report for a known cause, whatever the exit status."""
    return Report(FAILED, minor_status, detail, None if end is None else end.exit_code)


def asks_for_reschedule(end: PayloadEnd) -> bool:
    """Whether the exit status requests rescheduling."""
    return end.signal is None and end.exit_code == RESCHEDULE


def report_of_end(end: PayloadEnd) -> Report:
    """Make the report from the exit status."""
    if end.exit_code == 0:
        return Report(DONE, COMPLETE, exit_code=0)
    if end.signal is not None:
        names = {each.value: each.name for each in signal.Signals}
        detail = f"ended by signal {end.signal} ({names.get(end.signal, 'unknown')})"
    else:
        detail = f"exit code {end.exit_code}"
    return Report(FAILED, ERRORS, detail, end.exit_code)
