"""Looking at jobs."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from pilotage.service import job_scope, job_story
from pilotage.service.access import allow
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf
from pilotage.service.callers import Role
from pilotage.service.models.job_filter import JobIdPath, JobQuery, SummaryQuery
from pilotage.service.models.jobs import (
    AttemptAnswer,
    JobAnswer,
    JobDetails,
    JobLog,
    JobPage,
    JobSummary,
    JobSummaryRow,
    LogLine,
)
from pilotage.service.parts import Parts
from taskqueue import database, job_search, job_walks, jobs, log
from taskqueue.job_filter import Filter

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)


@router.get("")
@allow(Role.USER, Role.VO_ADMIN)
def list_jobs(parts: PartsOf, caller: CallerOf, query: Annotated[JobQuery, Query()]) -> JobPage:
    """List jobs, the newest first: users their own, VO admins those of the VO."""
    wanted = job_scope.visible(caller, query.filter)
    with database.reading(parts.engine) as conn:
        seen = job_walks.look(conn, wanted, limit=query.limit, after=query.after)
    return JobPage(jobs=[JobAnswer.of(job) for job in seen.jobs], next=seen.next)


@router.get("/summary")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def summary(parts: PartsOf, caller: CallerOf, query: Annotated[SummaryQuery, Query()]) -> JobSummary:
    """Count jobs by some of their columns; of more than 100,000 as they were up to a minute ago.

    Site admins count those at their sites, not by who they are of.
    """
    by = tuple(name.strip() for name in query.by.split(",") if name.strip())
    wanted = job_scope.countable(caller, query, by)
    return parts.summaries.get((by, wanted), lambda: _count(parts, by, wanted), now=parts.clock())


@router.get("/{job_id}")
@allow(Role.USER, Role.VO_ADMIN)
def show(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> JobDetails:
    """Show a job with its description and its latest attempt."""
    with database.reading(parts.engine) as conn:
        story = job_story.read(conn, caller, job_id, now=parts.clock())
    return JobDetails(
        **JobAnswer.of(story.job).model_dump(),
        description=dict(story.description.body),
        attempt=AttemptAnswer.model_validate(story.latest) if story.latest else None,
        waited=dict(story.waited),
    )


@router.get("/{job_id}/log")
@allow(Role.USER, Role.VO_ADMIN)
def show_log(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> JobLog:
    """Show every change of a job's status, in order."""
    with database.reading(parts.engine) as conn:
        job_scope.require(caller, jobs.get(conn, job_id))
        entries = log.of_job(conn, job_id)
    return JobLog(job_id=job_id, log=[LogLine.model_validate(entry) for entry in entries])


def _count(parts: Parts, by: Sequence[str], wanted: Filter) -> JobSummary:
    with database.reading(parts.engine) as conn:
        counts = job_search.summary(conn, by, wanted)
        waits = job_search.waits(conn, by, wanted)
    rows = [
        JobSummaryRow.model_validate(
            {**dict(zip(by, values, strict=True)), "count": count}
            | ({"waited": waits[values]} if values in waits else {})
        )
        for values, count in counts.items()
    ]
    return JobSummary(summary=rows)
