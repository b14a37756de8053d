"""Submit, show, kill and reschedule jobs, and send their output."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import BinaryIO

from fastapi.responses import StreamingResponse
from sqlalchemy import Connection

from cs_config.options.operations import options_for
from optimizers.submit import submission
from optimizers.submit.checking import Source
from optimizers.submit.submitter import Submitter
from pilotage.service.auth import audit, visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.models.jobs import ChangedJob, ChangedJobs, JobFilter, RefusedJob
from pilotage.service.queries import archives
from pilotage.service.queries.archives import ArchiveListing
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import database
from taskqueue.errors import BlobNotFound
from taskqueue.jobs import control, descriptions, jobs, log, search, wait_times
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.search import JobSelector
from taskqueue.leases import attempts
from taskqueue.leases.attempts import Attempt
from taskqueue.states import JobStatus, may_come_from

SOURCE = "JobManager"
#: Jobs changed in one transaction.
_BATCH = 1000

#: Changes the jobs (of one VO) that allow it, and returns their ids.
_Change = Callable[[Sequence[Job]], list[int]]


def kill(parts: Services, caller: Caller, job_id: int) -> ChangedJob:
    """Kill a job; its pilot is notified at its next heartbeat."""
    with database.writing(parts.engine) as conn:
        visibility.require_job(caller, jobs.get_job(conn, job_id))
        control.kill_job(conn, job_id, source=SOURCE, now=parts.clock())
    return ChangedJob(job_id=job_id, status=JobStatus.KILLED)


def reschedule(parts: Services, caller: Caller, job_id: int) -> ChangedJob:
    """Send a job through the optimizers again."""
    with database.writing(parts.engine) as conn:
        job = visibility.require_job(caller, jobs.get_job(conn, job_id))
        maximum = _max_reschedules(parts, job.vo)
        control.reschedule_job(conn, job_id, source=SOURCE, now=parts.clock(), maximum=maximum)
    parts.ring([job_id])
    return ChangedJob(job_id=job_id, status=JobStatus.RESCHEDULED)


def kill_many(parts: Services, caller: Caller, which: JobFilter) -> ChangedJobs:
    """Kill all jobs that match the filter and have not ended."""
    return _change_many(parts, caller, which, JobStatus.KILLED, partial(_kill, parts))


def reschedule_many(parts: Services, caller: Caller, which: JobFilter) -> ChangedJobs:
    """Reschedule all jobs that match the filter and whose status allows it."""
    changed = _change_many(parts, caller, which, JobStatus.RESCHEDULED, partial(_reschedule, parts))
    parts.ring(changed.job_ids)
    return changed


def concerned(caller: Caller, which: JobFilter, wanted: JobStatus) -> JobSelector:
    """The jobs to change; jobs that are not named by id only if their status allows the change."""
    if which.ids is None:
        possible = may_come_from(wanted)
        statuses = possible if which.status is None else possible & frozenset(which.status)
        which = which.model_copy(update={"status": sorted(statuses)})
    return visibility.visible_jobs(caller, which)


def _change_many(
    parts: Services, caller: Caller, which: JobFilter, wanted: JobStatus, change: _Change
) -> ChangedJobs:
    if which.is_empty:
        message = "names no job: give ids, or a filter such as status or owner"
        raise InvalidRequest([Problem(path="body", message=message)])
    changed: list[int] = []
    refused: list[RefusedJob] = []
    for batch in _batches(parts, caller, which, wanted):
        by_vo: defaultdict[str, list[Job]] = defaultdict(list)
        for job in batch:
            by_vo[job.vo].append(job)
        done = {job_id for of_vo in by_vo.values() for job_id in change(of_vo)}
        changed += sorted(done)
        refused += [_refused(job, wanted) for job in batch if job.job_id not in done and which.ids]
    unknown = set(which.ids or ()) - set(changed) - {each.job_id for each in refused}
    refused += [
        RefusedJob(job_id=job_id, reason=f"job {job_id} does not exist") for job_id in sorted(unknown)
    ]
    audit.done(caller, f"jobs {wanted}", jobs=len(changed), filter=which.model_dump_json(exclude_none=True))
    return ChangedJobs(job_ids=sorted(changed), refused=refused)


def _batches(parts: Services, caller: Caller, which: JobFilter, wanted: JobStatus) -> Iterator[Sequence[Job]]:
    wanted_jobs = concerned(caller, which, wanted)
    after: int | None = None
    while True:
        with database.reading(parts.engine) as conn:
            batch = search.list_jobs(conn, wanted_jobs, limit=_BATCH, after=after)
        if not batch:
            return
        after = batch[-1].job_id
        yield batch


@database.retry_on_conflict
def _kill(parts: Services, batch: Sequence[Job]) -> list[int]:
    with database.writing(parts.engine) as conn:
        ids = [job.job_id for job in batch]
        return control.kill_jobs(conn, ids, source=SOURCE, now=parts.clock())


@database.retry_on_conflict
def _reschedule(parts: Services, batch: Sequence[Job]) -> list[int]:
    with database.writing(parts.engine) as conn:
        ids = [job.job_id for job in batch]
        maximum = _max_reschedules(parts, batch[0].vo)
        return control.reschedule_jobs(conn, ids, source=SOURCE, now=parts.clock(), maximum=maximum)


def _max_reschedules(parts: Services, vo: str) -> int:
    return options_for(parts.live.current, vo).job_scheduling.max_rescheduling


def _refused(job: Job, wanted: JobStatus) -> RefusedJob:
    return RefusedJob(
        job_id=job.job_id, reason=f"job {job.job_id} is {job.status}; it cannot become {wanted}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """A job with its description and history."""

    job: Job
    description: Description
    log: Sequence[LogEntry]  #: in order
    attempts: Sequence[Attempt]  #: the latest first
    waited: Mapping[str, float]  #: seconds by cause, the longest first

    @property
    def latest(self) -> Attempt | None:
        """The latest attempt; None: never matched."""
        return self.attempts[0] if self.attempts else None


def read(conn: Connection, caller: Caller, job_id: int, *, now: datetime) -> JobStory:
    """Read the story until `now`; `JobNotFound` if the caller may not control the job."""
    job = visibility.require_job(caller, jobs.get_job(conn, job_id))
    entries = log.read_log(conn, job_id)
    return JobStory(
        job=job,
        description=descriptions.read_description(conn, job_id),
        log=entries,
        attempts=attempts.list_newest(conn, job_id),
        waited=wait_times.sum_until_now(conn, job, entries, now=now),
    )


def send(parts: Services, caller: Caller, job_id: int) -> StreamingResponse:
    """Stream the output archive of the latest attempt; `BlobNotFound` or `JobNotFound`."""
    with database.reading(parts.engine) as conn:
        job = visibility.require_job(caller, jobs.get_job(conn, job_id))
        attempt = attempts.get_latest(conn, job_id)
        digest = attempt.output if attempt else None
        return archives.answer(parts.blobs, conn, digest, vo=job.vo, name=f"output-{job_id}.tar")


def listing(parts: Services, caller: Caller, job_id: int) -> ArchiveListing:
    """List the files of the output archive; `BlobNotFound` or `JobNotFound`."""
    with _opened(parts, caller, job_id) as archive:
        return archives.read(archive)


def _opened(parts: Services, caller: Caller, job_id: int) -> BinaryIO:
    with database.reading(parts.engine) as conn:
        visibility.require_job(caller, jobs.get_job(conn, job_id))
        attempt = attempts.get_latest(conn, job_id)
    if attempt is None or attempt.output is None:
        raise BlobNotFound(f"output-{job_id}.tar")
    return parts.blobs.open(attempt.output)


def submitter_of(caller: Caller) -> Submitter:
    """The submitter named in the token."""
    return Submitter(
        subject=caller.subject,
        vo=caller.vo or "",
        owner=caller.user or caller.role.value,
        owner_group=caller.group,
        operator=caller.is_operator,
    )


def submit(
    parts: Services, caller: Caller, sources: Sequence[Source], *, key: str | None, sandbox: str | None = None
) -> list[int]:
    """Store the jobs of a submission, notify the optimizers and return the ids.

    Raises:
        PilotageError: As `submission.accept`; nothing is stored.
    """
    accepted = submission.accept(
        parts.engine,
        parts.live.current,
        submitter_of(caller),
        sources,
        now=parts.clock(),
        key=key,
        sandbox=sandbox,
    )
    parts.metrics.optimized(accepted.passed)
    parts.ring(accepted.due)
    return accepted.job_ids
