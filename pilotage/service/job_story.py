"""All that is known of one job, for whoever may see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from pilotage.service import job_scope
from pilotage.service.callers import Caller
from taskqueue import attempts, descriptions, job_waits, jobs, log
from taskqueue.attempts import Attempt
from taskqueue.descriptions import Description
from taskqueue.jobs import Job
from taskqueue.log import LogEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """A job with what it asked, what happened to it, and where."""

    job: Job
    description: Description
    log: Sequence[LogEntry]  #: in order
    attempts: Sequence[Attempt]  #: the latest first
    waited: Mapping[str, float]  #: seconds by what it waited for, the longest first

    @property
    def latest(self) -> Attempt | None:
        """Its latest attempt; None: never matched."""
        return self.attempts[0] if self.attempts else None


def read(conn: Connection, caller: Caller, job_id: int, *, now: datetime) -> JobStory:
    """The story until now.

    Raises:
        JobNotFound: There is no such job that the caller may see.
    """
    job = job_scope.require(caller, jobs.get(conn, job_id))
    entries = log.of_job(conn, job_id)
    return JobStory(
        job=job,
        description=descriptions.of_job(conn, job_id),
        log=entries,
        attempts=attempts.newest(conn, job_id),
        waited=job_waits.running_total(conn, job, entries, now=now),
    )
