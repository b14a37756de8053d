"""The list of jobs: filtered, in pages, with how many there are of each status."""

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import Field, model_validator

from pilotage.service import job_scope
from pilotage.service.access import allow
from pilotage.service.callers import Role
from pilotage.service.models.job_filter import MAX_ID, JobFilter
from pilotage.service.pages.job_forms import FIELDS, query_of, stated
from pilotage.service.pages.navigation import in_navigation
from pilotage.service.pages.page_route import PageOf, PageRoute
from taskqueue import database, job_counts, job_walks
from taskqueue.states import JobStatus

router = APIRouter(route_class=PageRoute)


class ListQuery(JobFilter):
    """What the address of the list says."""

    sort: Literal["job", "-job"] = "-job"
    limit: int = Field(default=50, ge=1, le=200)
    after: int | None = Field(default=None, ge=1, le=MAX_ID)

    @model_validator(mode="before")
    @classmethod
    def _stated(cls, given: object) -> object:
        return stated(given)


@router.get("/jobs")
@in_navigation("Jobs")
@allow(Role.USER, Role.VO_ADMIN)
def list_jobs(page: PageOf, query: Annotated[ListQuery, Query()]) -> HTMLResponse:
    """Jobs, the newest first: users see their own, VO admins those of the VO."""
    wanted = job_scope.visible(page.caller, query)
    every_status = job_scope.visible(page.caller, query.model_copy(update={"status": None}))
    oldest_first = query.sort == "job"
    with database.reading(page.parts.engine) as conn:
        seen = job_walks.look(conn, wanted, limit=query.limit, after=query.after, oldest_first=oldest_first)
        counts = job_counts.by_status(conn, every_status)
    asked = query_of(query)
    return page.render(
        "jobs/part.html" if page.is_fragment else "jobs/list.html",
        seen=seen,
        counts=[(status, counts[status]) for status in JobStatus if status in counts],
        total=job_counts.total(counts),
        query=query,
        fields=[field for field in FIELDS if page.caller.role in field.roles],
        asked=dict(asked),
        matching=urlencode(asked),
    )
