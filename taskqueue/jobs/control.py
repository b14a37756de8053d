"""Job control by users, operators and other systems: kill, delete, reschedule, hold, release, complete.

In the same transaction a job that waits leaves its task queue, and the attempt of a job that a pilot holds is
closed; that of a killed job stays open, as `ending`, until the pilot has delivered its output.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, bindparam, exists, select, update

from requirements.job_fields import MINOR_STATUS, STATUS, JobField
from requirements.states import CHANGEABLE, FINAL, HELD, PREPARING, JobStatus
from taskqueue.db import sql
from taskqueue.errors import IllegalTransition
from taskqueue.jobs import edits, jobs, transitions, withheld
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.transitions import MovedJob
from taskqueue.leases import attempts
from taskqueue.schema.tables import job_log
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.task_queues import task_queues

KILL_REQUESTED = "Marked for termination"
RESCHEDULED = "Job Rescheduled"
#: Minor status of a completed job, by its status.
COMPLETIONS = {JobStatus.DONE: "Requests done", JobStatus.FAILED: "Requests failed"}

DELETED = "Job Deleted"

FORGET_RESCHEDULES = update(jobs_table).where(sql.is_listed(jobs_table.c.job_id)).values(reschedules=0)
IS_RESCHEDULED = select(jobs_table.c.job_id).where(
    sql.is_listed(jobs_table.c.job_id),
    jobs_table.c.status.in_(sorted(PREPARING | {JobStatus.WAITING})),
    exists().where(
        job_log.c.job_id == jobs_table.c.job_id,
        job_log.c.epoch == jobs_table.c.epoch,
        job_log.c.to_status == JobStatus.RESCHEDULED.value,
        job_log.c.from_status != job_log.c.to_status,
        job_log.c.source == bindparam("source"),
    ),
)


def kill_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Kill the jobs that have not ended; their ids.

    A job assigned to a pilot is Killed at once; its attempt stays open, `ending`, until the pilot has
    delivered its output.
    """
    transitions.lock_jobs(conn, job_ids)
    wanted = JobStatus.KILLED
    moved = transitions.move_jobs(conn, job_ids, wanted, minor=KILL_REQUESTED, source=source, now=now)
    return _withdraw(conn, moved, wanted, now=now)


def delete_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Delete the jobs, killing those that have not ended; the ids of those that were not deleted before.

    A deleted job is listed, with its log, until retention removes it. A Completed job stays as it is.
    """
    kill_jobs(conn, job_ids, source=source, now=now)
    wanted = JobStatus.DELETED
    return [
        moved.job_id
        for moved in transitions.move_jobs(conn, job_ids, wanted, minor=DELETED, source=source, now=now)
    ]


def reset_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Reschedule the jobs however often that was done before, and count from 0 again; their ids."""
    done = reschedule_jobs(conn, job_ids, source=source, now=now, maximum=transitions.NO_LIMIT)
    for ids in sql.split_batches(done):
        conn.execute(FORGET_RESCHEDULES, {"ids": ids})
    return done


def reschedule_jobs(
    conn: Connection, job_ids: Collection[int], *, source: str, now: datetime, maximum: int
) -> list[int]:
    """Send the jobs whose status and number of reschedules allow it back through the optimizers; their ids.

    A job that the same source has rescheduled, and that no pilot has got since, stays as it is and is among
    them: the request is repeated, because its answer was lost. One that is kept from pilots is left alone.
    """
    transitions.lock_jobs(conn, job_ids)
    repeated = [row.job_id for row in sql.read_batches(conn, IS_RESCHEDULED, job_ids, source=source)]
    others = frozenset(job_ids).difference(repeated, withheld.find_reasons(conn, job_ids))
    wanted = JobStatus.RESCHEDULED
    moved = transitions.move_jobs(
        conn, others, wanted, minor=RESCHEDULED, source=source, now=now, reschedules_below=maximum
    )
    return repeated + _withdraw(conn, moved, wanted, now=now)


def hold_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Keep the jobs that no pilot has from pilots until they are released; the ids of all that are held."""
    by = f"by {source.rpartition(', ')[2]}"
    return withheld.withhold(conn, job_ids, withheld.HOLD, details=by, source=source, now=now)


def release_jobs(conn: Connection, job_ids: Collection[int], *, source: str, now: datetime) -> list[int]:
    """Let held jobs wait for pilots again; their ids: notify the optimizers of them."""
    return withheld.let_go(conn, job_ids, withheld.HOLD, source=source, now=now)


def complete_job(
    conn: Connection, job_id: int, status: JobStatus, *, minor: str = "", source: str, now: datetime
) -> None:
    """End a Completed job as Done or Failed: the requests that were left are carried out, or have failed.

    No effect if it has that status already, IllegalTransition if it has another one.
    """
    completed = frozenset({JobStatus.COMPLETED})
    minor = minor or COMPLETIONS[status]
    if transitions.move_jobs(
        conn, [job_id], status, minor=minor, source=source, now=now, from_states=completed
    ):
        return
    current = jobs.get_job(conn, job_id).status
    if current is not status:
        raise IllegalTransition(job_id, current=current, wanted=status)


def _withdraw(conn: Connection, moved: Sequence[MovedJob], wanted: JobStatus, *, now: datetime) -> list[int]:
    """Remove moved jobs from their task queues and close their attempts; the ids of all.

    A job that starts over is not resumed by a pilot that lost it.
    """
    task_queues.dequeue(conn, [job.job_id for job in moved if job.from_status is JobStatus.WAITING])
    held = [job.job_id for job in moved if job.from_status in HELD]
    if wanted is JobStatus.KILLED:
        attempts.request_end(conn, held)
    else:
        attempts.close_attempts(conn, held, closed_as=wanted.lower(), now=now)
    if wanted not in FINAL:
        others = [job.job_id for job in moved if job.from_status not in HELD]
        attempts.end_lost(conn, others, closed_as=wanted.lower())
    return [job.job_id for job in moved]


_ENDED = (
    "What waits is taken out of its task queue; what runs is ended by its pilot, which delivers the output "
    "that there is. Nobody can undo it."
)
_STARTED_OVER = (
    "They are taken back from their pilots and go through the optimizers again. What they have done so far "
    "is lost."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlVerb:
    """A change of jobs that people ask for by its name; interface, pages and commands follow from it."""

    name: str
    summary: str
    done: str  #: participle, for headings
    means: str  #: what happens to the jobs, for those who are asked before
    #: Changes jobs; the ids of those that have changed, or had before. A rescheduling needs a `maximum`.
    apply: Callable[..., list[int]]
    status: JobStatus  #: of changed jobs
    minor: str | None = None  #: the minor status of these; None: any
    is_end: bool = False  #: it cannot be undone
    makes_due: bool = False  #: the optimizers have to be notified of changed jobs

    @property
    def changeable(self) -> frozenset[JobStatus]:
        """The statuses of jobs that may be changed."""
        return CHANGEABLE[self.name]

    @property
    def result(self) -> str:
        """What changed jobs are, for audits and messages."""
        return self.done.capitalize() if self.status is JobStatus.CHECKING else self.status

    @property
    def conditions(self) -> Mapping[JobField[Any], Collection[Any]]:
        """Values of fields that jobs must have."""
        return {STATUS: self.changeable} | ({} if self.minor is None else {MINOR_STATUS: [self.minor]})


KILL: Final = ControlVerb(
    name="kill",
    summary="Kill jobs that have not ended; pilots are notified at their next heartbeats.",
    done="killed",
    means=_ENDED,
    apply=kill_jobs,
    status=JobStatus.KILLED,
    is_end=True,
)
DELETE: Final = ControlVerb(
    name="delete",
    summary="Delete jobs, which are killed if they have not ended; retention removes them within days.",
    done="deleted",
    means=f"{_ENDED} All of them disappear, with their log and output, after a day.",
    apply=delete_jobs,
    status=JobStatus.DELETED,
    is_end=True,
)
RESCHEDULE: Final = ControlVerb(
    name="reschedule",
    summary="Send jobs whose status allows it through the optimizers again.",
    done="rescheduled",
    means=_STARTED_OVER,
    apply=reschedule_jobs,
    status=JobStatus.RESCHEDULED,
    makes_due=True,
)
RESET: Final = ControlVerb(
    name="reset",
    summary="Reschedule jobs, however often that was done before, and count their reschedulings anew.",
    done="reset",
    means=f"{_STARTED_OVER} Earlier reschedulings no longer count.",
    apply=reset_jobs,
    status=JobStatus.RESCHEDULED,
    makes_due=True,
)
HOLD: Final = ControlVerb(
    name="hold",
    summary="Keep jobs that no pilot has from pilots, until they are released.",
    done="held",
    means="No pilot gets them until they are released. They keep their places.",
    apply=hold_jobs,
    status=JobStatus.CHECKING,
)
RELEASE: Final = ControlVerb(
    name="release",
    summary="Release held jobs: they wait for pilots again, with their old places.",
    done="released",
    means="They go through the optimizers again, and wait for pilots with their old places.",
    apply=release_jobs,
    status=JobStatus.CHECKING,
    minor=withheld.HOLD.minor,
    makes_due=True,
)
#: With values for the descriptions: no form of it is only a filter, as of the others.
EDIT: Final = ControlVerb(
    name="edit",
    summary="Change values in the descriptions of jobs that no pilot has.",
    done="edited",
    means="They go through the optimizers again with other descriptions, and keep their places.",
    apply=edits.edit_jobs,
    status=JobStatus.CHECKING,
    makes_due=True,
)
#: In the order of pages and documents.
CHANGES: Final[Mapping[str, ControlVerb]] = {
    each.name: each for each in (KILL, DELETE, RESCHEDULE, RESET, HOLD, RELEASE)
}


def may_change(job: Job, change: ControlVerb) -> bool:
    """Whether the state of a job allows a change that would change something."""
    kept_for = withheld.find_reason(job)
    if change in (HOLD, RELEASE):
        return job.status in change.changeable and (kept_for == withheld.HOLD) == (change is RELEASE)
    if change is EDIT:
        return job.status in change.changeable
    is_done = job.status is change.status or (kept_for is not None and change.status is JobStatus.RESCHEDULED)
    return job.status in change.changeable and not is_done
