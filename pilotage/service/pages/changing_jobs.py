"""Killing and rescheduling many jobs: first how many it would be, then doing it."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from fastapi.responses import HTMLResponse
from pydantic import model_validator

from pilotage.service import job_changes
from pilotage.service.access import allow
from pilotage.service.callers import Caller, Role
from pilotage.service.models.job_control import ChangedJobs
from pilotage.service.models.job_filter import JobFilter
from pilotage.service.pages.job_forms import query_of, stated
from pilotage.service.pages.page import Page
from pilotage.service.pages.page_route import PageOf, PageRoute
from pilotage.service.parts import Parts
from requirements.errors import InvalidRequest
from requirements.problem import Problem
from taskqueue import database, job_counts, job_walks
from taskqueue.job_counts import Count
from taskqueue.states import JobStatus, may_come_from

router = APIRouter(route_class=PageRoute)

#: Jobs that a page changes; a browser does not wait for millions of them, the command line does.
_MOST = job_counts.MOST
#: Jobs that are shown one by one before they are changed, and after.
_SHOWN = 20

Do = Literal["kill", "reschedule"]
_WANTED: Mapping[Do, JobStatus] = {"kill": JobStatus.KILLED, "reschedule": JobStatus.RESCHEDULED}
_CHANGE: Mapping[Do, Callable[[Parts, Caller, JobFilter], ChangedJobs]] = {
    "kill": job_changes.kill_many,
    "reschedule": job_changes.reschedule_many,
}


class Change(JobFilter):
    """What is to be done, and to which jobs."""

    do: Do

    @model_validator(mode="before")
    @classmethod
    def _stated(cls, given: object) -> object:
        return stated(given)

    @property
    def filter(self) -> JobFilter:
        """Which jobs."""
        return JobFilter.model_validate({name: getattr(self, name) for name in JobFilter.model_fields})


class ConfirmedChange(Change):
    """The form that does it."""

    csrf: str = ""  #: looked at by `PageRoute`


@router.get("/jobs/change")
@allow(Role.USER, Role.VO_ADMIN)
def confirm(page: PageOf, change: Annotated[Change, Query()]) -> HTMLResponse:
    """How many jobs it concerns, and which; nothing is changed."""
    _refuse_empty(change)
    wanted = _WANTED[change.do]
    which = job_changes.concerned(page.caller, change.filter, wanted)
    with database.reading(page.parts.engine) as conn:
        counts = job_counts.by_status(conn, which, most=_MOST)
        seen = job_walks.look(conn, which, limit=_SHOWN)
    possible = {status: count for status, count in counts.items() if status in may_come_from(wanted)}
    return page.render(
        "jobs/change.html",
        change=change,
        asked=query_of(change.filter),
        back=_address(change),
        counts=possible,
        total=job_counts.total(possible),
        others=job_counts.total({each: n for each, n in counts.items() if each not in possible}),
        shown=[job for job in seen.jobs if job.status in possible],
        most=_MOST,
    )


@router.post("/jobs/change")
@allow(Role.USER, Role.VO_ADMIN)
def carry_out(page: PageOf, change: Annotated[ConfirmedChange, Form()]) -> HTMLResponse:
    """Do it, and say what became of it."""
    _refuse_empty(change)
    _refuse_too_many(page, change)
    changed = _CHANGE[change.do](page.parts, page.caller, change.filter)
    return page.render(
        "jobs/changed.html", change=change, changed=changed, back=_address(change), most=_SHOWN
    )


def _refuse_empty(change: Change) -> None:
    if change.filter.is_empty:
        message = "no job is selected: tick some, or filter the list first"
        raise InvalidRequest([Problem(path="jobs", message=message)])


def _refuse_too_many(page: Page, change: Change) -> None:
    which = job_changes.concerned(page.caller, change.filter, _WANTED[change.do])
    with database.reading(page.parts.engine) as conn:
        total: Count = job_counts.total(job_counts.by_status(conn, which, most=_MOST))
    if total.more or total.jobs > _MOST:
        message = (
            f"these are more than {_MOST:,} jobs: narrow the filter, or use "
            f"`pilotage job {change.do}` with --status, --owner, --vo, --site or --pool"
        )
        raise InvalidRequest([Problem(path="jobs", message=message)])


def _address(change: Change) -> str:
    """The list that it was asked from."""
    return f"/jobs?{urlencode(query_of(change.filter))}"
