"""States of jobs and pilots, and the allowed transitions, as tables.

Source: DIRAC's job state machine, with the additions that leases need (a job returns to Waiting when no
pilot started it, Rescheduled is stored) and users (who hold or edit a waiting job: it is Checking again).
"""

import logging
from collections.abc import Mapping
from enum import StrEnum
from functools import cache

log = logging.getLogger(__name__)


class JobStatus(StrEnum):
    """Status of a job."""

    SUBMITTING = "Submitting"  #: part of a bulk that is not confirmed yet
    RECEIVED = "Received"  #: stored; no optimizer has processed it
    CHECKING = "Checking"  #: held by an optimizer for a while, or kept from pilots on purpose
    SCOUTING = "Scouting"  #: waits for its scout jobs
    STAGING = "Staging"  #: waits for its input data to come from tape
    WAITING = "Waiting"  #: in a task queue, any pilot that fits may take it
    MATCHED = "Matched"  #: assigned to a pilot that has not started it yet
    RUNNING = "Running"  #: a pilot executes it and sends heartbeats
    STALLED = "Stalled"  #: its pilot is silent; not yet rescheduled
    COMPLETING = "Completing"  #: the payload ended, its output is being transferred
    COMPLETED = "Completed"  #: finished except for requests that others carry out: then Done or Failed
    RESCHEDULED = "Rescheduled"  #: taken back; goes through the optimizers again
    DONE = "Done"
    FAILED = "Failed"
    KILLED = "Killed"
    DELETED = "Deleted"  #: only its row is left, until retention removes it


class LocalJobsStatus(StrEnum):
    """Overall status of the local jobs of a grid job. Source: SAM-Grid, status aggregation."""

    UNSUBMITTED = "unsubmitted"
    ACTIVE = "active"
    DONE = "done"
    ERROR = "error"  #: all have ended, not all of them well


def read_status(stored: str) -> JobStatus:
    """The status in a row; one of a later release is shown as it is stored, and nothing here changes it."""
    return _KNOWN[stored] if stored in _KNOWN else _make_later_status(stored)


_KNOWN: Mapping[str, JobStatus] = {each.value: each for each in JobStatus}


@cache  # so that it is logged once
def _make_later_status(stored: str) -> JobStatus:
    log.warning("jobs in the state %s, which this release does not know, are left alone", stored)
    # No member: it is in no set and no table of transitions.
    status = str.__new__(JobStatus, stored)
    status._name_ = status._value_ = stored
    return status


S = JobStatus

#: Allowed next states of each state. The current state is always allowed.
JOB_STEPS: Mapping[JobStatus, frozenset[JobStatus]] = {
    S.SUBMITTING: frozenset({S.RECEIVED, S.CHECKING, S.DELETED, S.KILLED}),
    S.RECEIVED: frozenset({S.SCOUTING, S.CHECKING, S.STAGING, S.WAITING, S.FAILED, S.DELETED, S.KILLED}),
    S.CHECKING: frozenset({S.SCOUTING, S.STAGING, S.WAITING, S.RESCHEDULED, S.FAILED, S.DELETED, S.KILLED}),
    S.SCOUTING: frozenset({S.CHECKING, S.FAILED, S.STALLED, S.KILLED}),
    S.STAGING: frozenset({S.CHECKING, S.WAITING, S.FAILED, S.KILLED}),
    S.WAITING: frozenset({S.MATCHED, S.CHECKING, S.RESCHEDULED, S.FAILED, S.DELETED, S.KILLED}),
    S.MATCHED: frozenset({S.RUNNING, S.WAITING, S.FAILED, S.RESCHEDULED, S.KILLED}),
    S.RUNNING: frozenset(
        {S.STALLED, S.DONE, S.FAILED, S.RESCHEDULED, S.COMPLETING, S.COMPLETED, S.KILLED, S.RECEIVED}
    ),
    S.STALLED: frozenset({S.RUNNING, S.RESCHEDULED, S.FAILED, S.KILLED}),
    S.COMPLETING: frozenset({S.DONE, S.FAILED, S.COMPLETED, S.STALLED, S.KILLED}),
    S.COMPLETED: frozenset({S.DONE, S.FAILED}),
    S.RESCHEDULED: frozenset({S.WAITING, S.RECEIVED, S.CHECKING, S.DELETED, S.FAILED, S.KILLED}),
    S.DONE: frozenset({S.DELETED}),
    S.FAILED: frozenset({S.RESCHEDULED, S.DELETED}),
    S.KILLED: frozenset({S.DELETED}),
    S.DELETED: frozenset(),
}


class AfterPolicy(StrEnum):
    """When a job may run that waits for others."""

    DONE = "done"  #: all are Done; it fails if one ended otherwise
    ENDED = "ended"  #: all have ended, however
    ANY = "any"  #: one of them has ended, however


#: No agent or pilot changes these any more.
FINAL = frozenset({S.DONE, S.COMPLETED, S.FAILED, S.KILLED, S.DELETED})
#: Before the task queue: the optimizers still have to process them.
PREPARING = frozenset({S.SUBMITTING, S.RECEIVED, S.CHECKING, S.SCOUTING, S.STAGING, S.RESCHEDULED})
#: No pilot has been given these: they still look for a queue.
UNMATCHED = PREPARING | {S.WAITING}
#: States from which a pilot that was lost may resume its job: taken back, not assigned again.
RESUMABLE = (PREPARING - {S.SUBMITTING}) | {S.WAITING}
#: Assigned to a pilot.
HELD = frozenset({S.MATCHED, S.RUNNING, S.STALLED, S.COMPLETING})


def may_become(current: JobStatus, wanted: JobStatus) -> bool:
    """Whether a job may go from `current` to `wanted`."""
    return current == wanted or wanted in JOB_STEPS.get(current, ())


def may_come_from(wanted: JobStatus) -> frozenset[JobStatus]:
    """The states from which a job may go to `wanted`, except `wanted` itself."""
    return frozenset(status for status, steps in JOB_STEPS.items() if wanted in steps)


#: The statuses of jobs that no pilot has, and that are confirmed: users hold and edit these.
WITHOUT_PILOT = (PREPARING - {S.SUBMITTING}) | {S.WAITING}
#: Minor status of a job that its users hold.
HELD_BY_USER = "Held"
#: The statuses in which jobs can be changed, by the name of the change; services and commands have these.
CHANGEABLE: Mapping[str, frozenset[JobStatus]] = {
    "kill": may_come_from(S.KILLED),
    "delete": may_come_from(S.DELETED) | may_come_from(S.KILLED),
    "reschedule": may_come_from(S.RESCHEDULED),
    "reset": may_come_from(S.RESCHEDULED),
    "hold": WITHOUT_PILOT,
    "release": frozenset({S.CHECKING}),
    "edit": WITHOUT_PILOT,
    "resubmit": frozenset(S) - {S.DELETED},
}


class PilotStatus(StrEnum):
    """Status of a pilot, as far as the pilot or its batch system reported it."""

    SUBMITTED = "Submitted"  #: registered, or a batch job without a known state
    WAITING = "Waiting"  #: queued in the batch system
    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"
    ABORTED = "Aborted"  #: rejected or removed by the batch system
    DELETED = "Deleted"  #: removed by us
    UNKNOWN = "Unknown"  #: not known to the batch system at the moment; proves nothing


P = PilotStatus
#: A pilot in one of these never changes again; the others are active.
PILOT_ENDS = frozenset({P.DONE, P.FAILED, P.ABORTED, P.DELETED})
PILOT_ACTIVE = frozenset(P) - PILOT_ENDS

#: Allowed next states of each state. The current state is always allowed.
PILOT_STEPS: Mapping[PilotStatus, frozenset[PilotStatus]] = {
    P.SUBMITTED: frozenset({P.WAITING, P.RUNNING, P.UNKNOWN}) | PILOT_ENDS,
    P.WAITING: frozenset({P.RUNNING, P.UNKNOWN}) | PILOT_ENDS,
    P.RUNNING: frozenset({P.UNKNOWN}) | PILOT_ENDS,
    P.UNKNOWN: frozenset({P.WAITING, P.RUNNING}) | PILOT_ENDS,
    **dict.fromkeys(PILOT_ENDS, frozenset()),
}


def pilot_may_become(current: PilotStatus, wanted: PilotStatus) -> bool:
    """Whether a pilot may go from `current` to `wanted`."""
    return current == wanted or wanted in PILOT_STEPS[current]
