"""The states of jobs and pilots, and the steps between them, as tables.

Source: DIRAC's job state machine, with the additions that leases need (a job comes back to
Waiting when nobody started it, Rescheduled is stored).
"""

from collections.abc import Mapping
from enum import StrEnum


class JobStatus(StrEnum):
    """Where a job is on its way."""

    SUBMITTING = "Submitting"  #: part of a bulk that is not confirmed yet
    RECEIVED = "Received"  #: stored; no optimizer has looked at it
    CHECKING = "Checking"  #: an optimizer holds it for a while
    SCOUTING = "Scouting"  #: waits for the jobs that try the way for it
    STAGING = "Staging"  #: waits for its input data to come from tape
    WAITING = "Waiting"  #: in a task queue, any pilot that fits may take it
    MATCHED = "Matched"  #: handed to a pilot that has not started it yet
    RUNNING = "Running"  #: a pilot executes it and says so regularly
    STALLED = "Stalled"  #: its pilot is silent; not yet given away
    COMPLETING = "Completing"  #: the payload ended, its output is on the way
    COMPLETED = "Completed"  #: finished but for requests that others carry out
    RESCHEDULED = "Rescheduled"  #: taken back; goes through the optimizers again
    DONE = "Done"
    FAILED = "Failed"
    KILLED = "Killed"
    DELETED = "Deleted"  #: only its row is left, until retention removes that


S = JobStatus

#: From each state, where a job may go. Staying where it is is always allowed.
JOB_STEPS: Mapping[JobStatus, frozenset[JobStatus]] = {
    S.SUBMITTING: frozenset({S.RECEIVED, S.CHECKING, S.DELETED, S.KILLED}),
    S.RECEIVED: frozenset({S.SCOUTING, S.CHECKING, S.STAGING, S.WAITING, S.FAILED, S.DELETED, S.KILLED}),
    S.CHECKING: frozenset({S.SCOUTING, S.STAGING, S.WAITING, S.RESCHEDULED, S.FAILED, S.DELETED, S.KILLED}),
    S.SCOUTING: frozenset({S.CHECKING, S.FAILED, S.STALLED, S.KILLED}),
    S.STAGING: frozenset({S.CHECKING, S.WAITING, S.FAILED, S.KILLED}),
    S.WAITING: frozenset({S.MATCHED, S.RESCHEDULED, S.DELETED, S.KILLED}),
    S.MATCHED: frozenset({S.RUNNING, S.WAITING, S.FAILED, S.RESCHEDULED, S.KILLED}),
    S.RUNNING: frozenset({S.STALLED, S.DONE, S.FAILED, S.RESCHEDULED, S.COMPLETING, S.KILLED, S.RECEIVED}),
    S.STALLED: frozenset({S.RUNNING, S.RESCHEDULED, S.FAILED, S.KILLED}),
    S.COMPLETING: frozenset({S.DONE, S.FAILED, S.COMPLETED, S.STALLED, S.KILLED}),
    S.COMPLETED: frozenset({S.DONE, S.FAILED}),
    S.RESCHEDULED: frozenset({S.WAITING, S.RECEIVED, S.CHECKING, S.DELETED, S.FAILED, S.KILLED}),
    S.DONE: frozenset({S.DELETED}),
    S.FAILED: frozenset({S.RESCHEDULED, S.DELETED}),
    S.KILLED: frozenset({S.DELETED}),
    S.DELETED: frozenset(),
}

#: Nothing happens to these by itself any more.
FINAL = frozenset({S.DONE, S.COMPLETED, S.FAILED, S.KILLED, S.DELETED})
#: On their way to a task queue: the optimizers still have to look at them.
PREPARING = frozenset({S.SUBMITTING, S.RECEIVED, S.CHECKING, S.SCOUTING, S.STAGING, S.RESCHEDULED})
#: Taken from a pilot that was lost, and not given to another one: where it may go back from.
RESUMABLE = (PREPARING - {S.SUBMITTING}) | {S.WAITING}
#: Handed to a pilot.
HELD = frozenset({S.MATCHED, S.RUNNING, S.STALLED, S.COMPLETING})


def may_become(current: JobStatus, wanted: JobStatus) -> bool:
    """Whether a job may go from `current` to `wanted`."""
    return current == wanted or wanted in JOB_STEPS[current]


def may_come_from(wanted: JobStatus) -> frozenset[JobStatus]:
    """The states from which a job may go to `wanted`, itself not among them."""
    return frozenset(status for status, steps in JOB_STEPS.items() if wanted in steps)


class PilotStatus(StrEnum):
    """Where a pilot is on its way, as far as it or its batch system told us."""

    SUBMITTED = "Submitted"  #: intent or batch job without news
    WAITING = "Waiting"  #: queued in the batch system
    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"
    ABORTED = "Aborted"  #: the batch system refused or removed it
    DELETED = "Deleted"  #: we removed it
    UNKNOWN = "Unknown"  #: the batch system could not say; proves nothing


P = PilotStatus
_ENDS = frozenset({P.DONE, P.FAILED, P.ABORTED, P.DELETED})

#: From each state, where a pilot may go. Staying where it is is always allowed.
PILOT_STEPS: Mapping[PilotStatus, frozenset[PilotStatus]] = {
    P.SUBMITTED: frozenset({P.WAITING, P.RUNNING, P.UNKNOWN}) | _ENDS,
    P.WAITING: frozenset({P.RUNNING, P.UNKNOWN}) | _ENDS,
    P.RUNNING: frozenset({P.UNKNOWN}) | _ENDS,
    P.UNKNOWN: frozenset({P.WAITING, P.RUNNING}) | _ENDS,
    P.DONE: frozenset(),
    P.FAILED: frozenset(),
    P.ABORTED: frozenset(),
    P.DELETED: frozenset(),
}


def pilot_may_become(current: PilotStatus, wanted: PilotStatus) -> bool:
    """Whether a pilot may go from `current` to `wanted`."""
    return current == wanted or wanted in PILOT_STEPS[current]
