"""Killing and rescheduling jobs for whoever asks, one or many."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cs_config.operations import operations
from pilotage.service import audit, job_scope
from pilotage.service.callers import Caller
from pilotage.service.models.job_control import Changed, ChangedJobs, Refused
from pilotage.service.models.job_filter import JobFilter
from pilotage.service.parts import Parts
from requirements.errors import InvalidRequest
from requirements.problem import Problem
from taskqueue import database, job_control, job_search, jobs, retries
from taskqueue.job_filter import Filter
from taskqueue.jobs import Job
from taskqueue.states import JobStatus, may_come_from

SOURCE = "JobManager"
#: Jobs that are changed in one transaction.
_BATCH = 1000

#: Changes those of the jobs that allow it, all of one VO; tells which.
_Change = Callable[[Sequence[Job]], list[int]]


def kill(parts: Parts, caller: Caller, job_id: int) -> Changed:
    """Kill a job; its pilot is told at its next heartbeat."""
    with database.writing(parts.engine) as conn:
        job_scope.require(caller, jobs.get(conn, job_id))
        job_control.kill(conn, job_id, source=SOURCE, now=parts.clock())
    return Changed(job_id=job_id, status=JobStatus.KILLED)


def reschedule(parts: Parts, caller: Caller, job_id: int) -> Changed:
    """Take a job back and send it through the optimizers again."""
    with database.writing(parts.engine) as conn:
        job = job_scope.require(caller, jobs.get(conn, job_id))
        maximum = _max_reschedules(parts, job.vo)
        job_control.reschedule(conn, job_id, source=SOURCE, now=parts.clock(), maximum=maximum)
    parts.ring([job_id])
    return Changed(job_id=job_id, status=JobStatus.RESCHEDULED)


def kill_many(parts: Parts, caller: Caller, which: JobFilter) -> ChangedJobs:
    """Kill all jobs that pass the filter and have not ended."""
    return _change_many(parts, caller, which, JobStatus.KILLED, partial(_kill, parts))


def reschedule_many(parts: Parts, caller: Caller, which: JobFilter) -> ChangedJobs:
    """Send all jobs that pass the filter, and may go, through the optimizers again."""
    changed = _change_many(parts, caller, which, JobStatus.RESCHEDULED, partial(_reschedule, parts))
    parts.ring(changed.job_ids)
    return changed


def concerned(caller: Caller, which: JobFilter, wanted: JobStatus) -> Filter:
    """The jobs that it is about; of those that are not named one by one only what may change at all."""
    if which.ids is None:
        possible = may_come_from(wanted)
        asked = possible if which.status is None else possible & frozenset(which.status)
        which = which.model_copy(update={"status": sorted(asked)})
    return job_scope.visible(caller, which)


def _change_many(
    parts: Parts, caller: Caller, which: JobFilter, wanted: JobStatus, change: _Change
) -> ChangedJobs:
    if which.is_empty:
        message = "names no job: give ids, or a filter such as status or owner"
        raise InvalidRequest([Problem(path="body", message=message)])
    changed: list[int] = []
    refused: list[Refused] = []
    for batch in _batches(parts, caller, which, wanted):
        by_vo: defaultdict[str, list[Job]] = defaultdict(list)
        for job in batch:
            by_vo[job.vo].append(job)
        done = {job_id for of_vo in by_vo.values() for job_id in change(of_vo)}
        changed += sorted(done)
        refused += [_refused(job, wanted) for job in batch if job.job_id not in done and which.ids]
    unknown = set(which.ids or ()) - set(changed) - {each.job_id for each in refused}
    refused += [Refused(job_id=job_id, reason=f"job {job_id} does not exist") for job_id in sorted(unknown)]
    audit.done(caller, f"jobs {wanted}", jobs=len(changed), filter=which.model_dump_json(exclude_none=True))
    return ChangedJobs(job_ids=sorted(changed), refused=refused)


def _batches(parts: Parts, caller: Caller, which: JobFilter, wanted: JobStatus) -> Iterator[Sequence[Job]]:
    wanted_jobs = concerned(caller, which, wanted)
    after: int | None = None
    while True:
        with database.reading(parts.engine) as conn:
            batch = job_search.find(conn, wanted_jobs, limit=_BATCH, after=after)
        if not batch:
            return
        after = batch[-1].job_id
        yield batch


@retries.repeatable
def _kill(parts: Parts, batch: Sequence[Job]) -> list[int]:
    with database.writing(parts.engine) as conn:
        ids = [job.job_id for job in batch]
        return job_control.kill_all(conn, ids, source=SOURCE, now=parts.clock())


@retries.repeatable
def _reschedule(parts: Parts, batch: Sequence[Job]) -> list[int]:
    with database.writing(parts.engine) as conn:
        ids = [job.job_id for job in batch]
        maximum = _max_reschedules(parts, batch[0].vo)
        return job_control.reschedule_all(conn, ids, source=SOURCE, now=parts.clock(), maximum=maximum)


def _max_reschedules(parts: Parts, vo: str) -> int:
    return operations(parts.live.current, vo).job_scheduling.max_rescheduling


def _refused(job: Job, wanted: JobStatus) -> Refused:
    return Refused(job_id=job.job_id, reason=f"job {job.job_id} is {job.status}; it cannot become {wanted}")
