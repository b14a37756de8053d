"""The event log of a job of HTCondor: what its shadow wrote beside it, whatever the queue still knows.

Source: HTCondor, job event log; it is read by HTCondor's own library.
"""

import tempfile
from dataclasses import dataclass

import htcondor2

from pilotage.fabric.batch.batch_system import State

_SIGNAL = 128  #: what a shell adds to the number of a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended."""

    reference: str
    state: State
    exit_code: int | None
    message: str


def read(text: str) -> End | None:
    """How the job ended whose log this is; None: it does not say so. Of several ends the last one holds."""
    with tempfile.NamedTemporaryFile(mode="w", suffix=".log") as file:
        file.write(text + "\n")
        file.flush()
        with htcondor2.JobEventLog(file.name) as log:
            ends = [end for event in log.events(0) if (end := _end(event)) is not None]
    return ends[-1] if ends else None


def _end(event: "htcondor2.JobEvent") -> End | None:
    reference = f"{event.cluster}.{event.proc}"
    if event.type is htcondor2.JobEventType.JOB_ABORTED:
        reason = str(event.get("Reason", ""))
        return End(reference=reference, state=State.KILLED, exit_code=None, message=reason)
    if event.type is not htcondor2.JobEventType.JOB_TERMINATED:
        return None
    status = exit_code(
        by_signal=not event.get("TerminatedNormally", False),
        number=event.get("ReturnValue")
        if event.get("TerminatedNormally")
        else event.get("TerminatedBySignal"),
    )
    state = State.DONE if status == 0 else State.FAILED
    return End(reference=reference, state=state, exit_code=status, message="known by its event log")


def exit_code(*, by_signal: bool, number: object) -> int | None:
    """The status that a shell would see."""
    if not isinstance(number, int):
        return None
    return number + _SIGNAL if by_signal else number
