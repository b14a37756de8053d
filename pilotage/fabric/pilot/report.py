"""How a job ended, in the words of the field, and what became of its attempt."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from pilotage.fabric.pilot import tail
from pilotage.fabric.pilot.payload import End

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
            "minor_status": tail.printable(self.minor_status, _LONGEST),
            "application_status": tail.printable(self.application_status, _LONGEST),
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


def failed(minor_status: str, detail: str = "", end: End | None = None) -> Report:
    """A failure that has a cause of its own, whatever the payload made of it."""
    return Report(FAILED, minor_status, detail, None if end is None else end.exit_code)


def asks_again(end: End) -> bool:
    """Whether a payload says by its exit status that it wants to be rescheduled."""
    return end.signal is None and end.exit_code == RESCHEDULE


def of_end(end: End) -> Report:
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
