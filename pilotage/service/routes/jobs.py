"""Looking at jobs."""

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
from taskqueue import database, job_search, jobs, log

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)


@router.get("")
@allow(Role.USER, Role.VO_ADMIN)
def list_jobs(parts: PartsOf, caller: CallerOf, query: Annotated[JobQuery, Query()]) -> JobPage:
    """List jobs, the newest first: users their own, VO admins those of the VO."""
    wanted = job_scope.visible(caller, query.filter)
    with database.reading(parts.engine) as conn:
        found = job_search.find(conn, wanted, limit=query.enough, after=query.after)
    page, last = query.cut(found)
    return JobPage(jobs=[JobAnswer.of(job) for job in page], next=last.job_id if last else None)


@router.get("/summary")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN)
def summary(parts: PartsOf, caller: CallerOf, query: Annotated[SummaryQuery, Query()]) -> JobSummary:
    """Count jobs by some of their columns; site admins those at their sites, not by who they are of."""
    by = [name.strip() for name in query.by.split(",") if name.strip()]
    wanted = job_scope.countable(caller, query, by)
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
