"""Pages of many jobs: the filtered list, and killing or rescheduling a selection after confirmation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query
from fastapi.responses import HTMLResponse
from pydantic import Field, model_validator

from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.models.jobs import MAX_ID, JobFilter
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, add_to_navigation
from pilotage.service.queries import jobs
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import database
from taskqueue.jobs import search
from taskqueue.jobs.search import JobCount
from taskqueue.states import JobStatus, may_come_from

_ALL = frozenset({Role.USER, Role.VO_ADMIN, Role.OPERATOR})
_ADMINS = _ALL - {Role.USER}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterField:
    """A field of the filter form."""

    name: str  #: of `JobFilter`
    title: str
    hint: str = ""
    roles: frozenset[Role] = _ALL  #: roles that may choose a value
    is_rare: bool = False  #: rarely used


FIELDS = (
    FilterField(name="ids", title="Job ids", hint="17, 18"),
    FilterField(name="job_name", title="Name"),
    FilterField(name="owner", title="Owner", roles=_ADMINS),
    FilterField(name="owner_group", title="Owner group", hint="cms_user", is_rare=True),
    FilterField(name="vo", title="VO", roles=frozenset({Role.OPERATOR})),
    FilterField(name="site", title="Site", hint="LCG.CERN.ch"),
    FilterField(name="pool", title="SubmitPool", hint="its id", is_rare=True),
    FilterField(name="job_type", title="Type", is_rare=True),
    FilterField(name="job_group", title="Job group", is_rare=True),
    FilterField(name="minor_status", title="Minor status", hint="No eligible queue"),
)


def read_filter(given: object) -> object:
    """Drop empty fields of a form; ids may be separated by spaces."""
    if not isinstance(given, Mapping):
        return given
    found = {name: _values(name, value) for name, value in given.items()}
    return {name: value for name, value in found.items() if value not in ("", [], None)}


def query_of(which: JobFilter) -> list[tuple[str, str]]:
    """The filter as a query string's fields."""
    fields = which.model_dump(mode="json", include=set(JobFilter.model_fields), exclude_none=True)
    return [
        (name, ",".join(map(str, value)) if isinstance(value, list) else value)
        for name, value in fields.items()
    ]


def _values(name: str, value: object) -> object:
    if isinstance(value, list):
        return [each for each in (_values(name, one) for one in value) if each != ""]
    if not isinstance(value, str):
        return value
    return ",".join(value.replace(",", " ").split()) if name == "ids" else value.strip()


router = APIRouter(route_class=PageRoute)


class ListQuery(JobFilter):
    """Query of the list."""

    sort: Literal["job", "-job"] = "-job"
    limit: int = Field(default=50, ge=1, le=200)
    after: int | None = Field(default=None, ge=1, le=MAX_ID)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, given: object) -> object:
        return read_filter(given)


@router.get("/jobs")
@add_to_navigation("Jobs")
@allow(Role.USER, Role.VO_ADMIN)
def list_jobs(page: PageOf, query: Annotated[ListQuery, Query()]) -> HTMLResponse:
    """List jobs, newest first: users their own, VO admins those of the VO."""
    wanted = visibility.visible_jobs(page.caller, query)
    every_status = visibility.visible_jobs(page.caller, query.model_copy(update={"status": None}))
    oldest_first = query.sort == "job"
    with database.reading(page.parts.engine) as conn:
        seen = search.read_page(conn, wanted, limit=query.limit, after=query.after, oldest_first=oldest_first)
        counts = search.count_by_status(conn, every_status)
    filters = query_of(query)
    return page.render(
        "jobs/part.html" if page.is_fragment else "jobs/list.html",
        seen=seen,
        counts=[(status, counts[status]) for status in JobStatus if status in counts],
        total=search.sum_counts(counts),
        query=query,
        fields=[field for field in FIELDS if page.caller.role in field.roles],
        filters=dict(filters),
        matching=urlencode(filters),
    )


change_router = APIRouter(route_class=PageRoute)

#: Most jobs changed by a page, since a browser does not wait for millions; the command line has no limit.
_MOST = search.MAX_COUNTED
#: Jobs listed before and after a change.
_SHOWN = 20

Do = Literal["kill", "reschedule"]
_WANTED: Mapping[Do, JobStatus] = {"kill": JobStatus.KILLED, "reschedule": JobStatus.RESCHEDULED}


class JobChangeForm(JobFilter):
    """An action and the jobs to change."""

    do: Do

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, given: object) -> object:
        return read_filter(given)

    @property
    def filter(self) -> JobFilter:
        """The filter of the jobs."""
        return JobFilter.model_validate({name: getattr(self, name) for name in JobFilter.model_fields})


class ConfirmedChange(JobChangeForm):
    """The submitted confirmation."""

    csrf: str = ""  #: checked by `PageRoute`


@change_router.get("/jobs/change")
@allow(Role.USER, Role.VO_ADMIN)
def confirm(page: PageOf, change: Annotated[JobChangeForm, Query()]) -> HTMLResponse:
    """Show which jobs would change; nothing is changed."""
    _refuse_empty(change)
    wanted = _WANTED[change.do]
    which = jobs.concerned(page.caller, change.filter, wanted)
    with database.reading(page.parts.engine) as conn:
        counts = search.count_by_status(conn, which, most=_MOST)
        seen = search.read_page(conn, which, limit=_SHOWN)
    possible = {status: count for status, count in counts.items() if status in may_come_from(wanted)}
    return page.render(
        "jobs/change.html",
        change=change,
        filters=query_of(change.filter),
        back=_address(change),
        counts=possible,
        total=search.sum_counts(possible),
        others=search.sum_counts({each: n for each, n in counts.items() if each not in possible}),
        shown=[job for job in seen.jobs if job.status in possible],
        most=_MOST,
    )


@change_router.post("/jobs/change")
@allow(Role.USER, Role.VO_ADMIN)
def change_jobs(page: PageOf, change: Annotated[ConfirmedChange, Form()]) -> HTMLResponse:
    """Change the jobs and show the result."""
    _refuse_empty(change)
    _refuse_too_many(page, change)
    changed = jobs.change_many(page.parts, page.caller, change.filter, _WANTED[change.do])
    return page.render(
        "jobs/changed.html", change=change, changed=changed, back=_address(change), most=_SHOWN
    )


def _refuse_empty(change: JobChangeForm) -> None:
    if change.filter.is_empty:
        message = "no job is selected: tick some, or filter the list first"
        raise InvalidRequest([Problem(path="jobs", message=message)])


def _refuse_too_many(page: PageContext, change: JobChangeForm) -> None:
    which = jobs.concerned(page.caller, change.filter, _WANTED[change.do])
    with database.reading(page.parts.engine) as conn:
        total: JobCount = search.sum_counts(search.count_by_status(conn, which, most=_MOST))
    if total.more or total.jobs > _MOST:
        message = (
            f"these are more than {_MOST:,} jobs: narrow the filter, or use "
            f"`pilotage job {change.do}` with --status, --owner, --vo, --site or --pool"
        )
        raise InvalidRequest([Problem(path="jobs", message=message)])


def _address(change: JobChangeForm) -> str:
    """Address of the list with the same filter."""
    return f"/jobs?{urlencode(query_of(change.filter))}"
