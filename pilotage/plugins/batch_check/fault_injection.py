"""Fault injection into commands, files and HTTP connections: for the conformance kit and for tests."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import httpx

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    ForwardingSystem,
    Handle,
    JobReport,
    State,
    SubmissionUncertain,
)
from pilotage.fabric.batch.settings import Connect
from pilotage.fabric.batch.shell import Completed, NoAnswer, Shell

_Answer = TypeVar("_Answer")


class Fault(StrEnum):
    """Kind of fault."""

    TIMEOUT = "timeout"  #: no answer, and nothing was done
    LATE = "late"  #: done, but the answer gets lost
    PARTIAL = "partial"  #: half of a listing
    DOUBLED = "doubled"  #: every line of a listing twice
    FULL = "full"  #: nothing can be written


@dataclass(slots=True, kw_only=True)
class FaultyShell:
    """A shell with the injected faults in every command and file operation."""

    shell: Shell
    fault: Fault | None = None

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        """Run a command, without a shell's interpretation."""
        if self.fault is Fault.TIMEOUT:
            raise NoAnswer(f"{command[0]} gave no answer, on purpose")
        done = self.shell.run(command, stdin=stdin, seconds=seconds)
        if self.fault is Fault.LATE:
            raise NoAnswer(f"{command[0]} gave no answer, on purpose, after it had done its work")
        lines = done.stdout.splitlines(keepends=True)
        if self.fault is Fault.PARTIAL:
            lines = lines[: len(lines) // 2]
        if self.fault is Fault.DOUBLED:
            lines = [line for line in lines for _ in range(2)]
        return Completed(status=done.status, stdout="".join(lines), stderr=done.stderr)

    def write(self, name: str, content: bytes, *, below: str, executable: bool = False) -> None:
        """Make a file, for its owner alone, and the directories that it is in."""
        if self.fault is Fault.FULL:
            raise BatchSystemAway(f"{name} cannot be written: no space left, on purpose")
        self.shell.write(name, content, below=below, executable=executable)

    def read(self, name: str, *, below: str, last: int) -> bytes:
        """Read the last bytes of a file; empty if there is none."""
        if self.fault is Fault.TIMEOUT:
            raise NoAnswer(f"{name} could not be read, on purpose")
        return self.shell.read(name, below=below, last=last)

    def read_small(self, names: Sequence[str], *, below: str, most: int) -> Mapping[str, bytes]:
        """Read small files, by name; what is no file, or has more than `most` bytes, is left out."""
        if self.fault is Fault.TIMEOUT:
            raise NoAnswer(f"{below} could not be read, on purpose")
        return self.shell.read_small(names, below=below, most=most)

    def remove(self, names: Sequence[str], *, below: str) -> None:
        """Remove files, and directories with all that is in them; what is not there is no error."""
        self.shell.remove(names, below=below)


@dataclass(slots=True, kw_only=True)
class FaultySystem(ForwardingSystem):
    """A batch system of any kind with injected faults."""

    fault: Fault | None = None

    def submit(self, job: BatchJob) -> str:
        """Put a job into its queue."""
        if self.fault is Fault.FULL:
            raise BatchSystemAway("the spool is full, on purpose")
        if self.fault is Fault.TIMEOUT:
            raise SubmissionUncertain(f"{job.stamp}: no answer, on purpose")
        reference = self.system.submit(job)
        if self.fault is Fault.LATE:
            raise SubmissionUncertain(f"{job.stamp}: no answer, on purpose, though it was taken")
        return reference

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        """The states of jobs."""
        found = self._ask(lambda: self.system.status(handles))
        if self.fault is not Fault.PARTIAL:
            return found
        kept = set(list(found)[: len(found) // 2])
        missing = JobReport(state=State.MISSING)
        return {stamp: report if stamp in kept else missing for stamp, report in found.items()}

    def _ask(self, ask: Callable[[], _Answer]) -> _Answer:
        if self.fault is Fault.TIMEOUT:
            raise BatchSystemAway("no answer, on purpose")
        answer = ask()
        if self.fault is Fault.LATE:
            raise BatchSystemAway("the answer got lost, on purpose")
        return answer


_FULL = {"job": {"status-code": "500", "reason": "Failed to store job description, on purpose"}}


@dataclass(slots=True, kw_only=True)
class FaultyHttp:
    """Connections to a CE with the injected faults in every request."""

    fault: Fault | None = None
    is_used: bool = False

    def wrap(self, connect: Connect) -> Connect:
        """What makes connections over TLS, so that they have the faults."""
        self.is_used = True
        return lambda context: _Transport(self, connect(context))


class _Transport(httpx.BaseTransport):
    def __init__(self, faults: FaultyHttp, real: httpx.BaseTransport) -> None:
        self._faults = faults
        self._real = real

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and spoil it or its answer."""
        fault = self._faults.fault
        if fault is Fault.TIMEOUT:
            raise httpx.ReadTimeout("no answer, on purpose", request=request)
        if fault is Fault.FULL and request.url.params.get("action") == "new":
            return httpx.Response(201, json=_FULL)
        response = self._real.handle_request(request)
        if fault is Fault.LATE:
            response.close()
            raise httpx.ReadTimeout("no answer, on purpose, after the work was done", request=request)
        return _spoiled(response, fault) if fault in (Fault.PARTIAL, Fault.DOUBLED) else response

    def close(self) -> None:
        """Close the connections."""
        self._real.close()


def _spoiled(response: httpx.Response, fault: Fault) -> httpx.Response:
    """An answer with half of its jobs, or with each of them twice."""
    content = response.read()
    answer = json.loads(content) if content.startswith(b"{") else {}
    for name in ("job", "items"):  # of A-REX, of Kubernetes
        found = answer.get(name)
        listed = [found] if isinstance(found, dict) else found
        if isinstance(listed, list):
            spoiled = listed[: len(listed) // 2] if fault is Fault.PARTIAL else [*listed, *listed]
            content = json.dumps({**answer, name: spoiled}).encode()
    return httpx.Response(response.status_code, content=content)
