"""Pages of many jobs: the filtered list, killing or rescheduling a selection, and the form for a new job."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal
from urllib.parse import urlencode
from uuid import uuid4

from fastapi import APIRouter, Form, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import Field, model_validator

from optimizers.submit import dry_run
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.models.jobs import MAX_ID, JobFilter
from pilotage.service.pages import job
from pilotage.service.pages.job import ExplainedJob
from pilotage.service.pages.page import PageContext, PageOf, PageRoute, add_to_navigation
from pilotage.service.queries import explanations, jobs
from pilotage.service.queries.jobs import submitter_of
from requirements.errors import InvalidInput, InvalidRequest, Problem
from taskqueue.db import database
from taskqueue.errors import IdempotencyConflict, QuotaExceeded
from taskqueue.jobs import search
from taskqueue.jobs.search import JobSelector
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


router = APIRouter(route_class=PageRoute)


class FilledFilter(JobFilter):
    """A filter as filled in: empty fields are ignored, and ids may be separated by spaces."""

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        found = {name: _clean_value(name, value) for name, value in given.items()}
        return {name: value for name, value in found.items() if value not in ("", [], None)}

    @property
    def filter(self) -> JobFilter:
        """Only the conditions."""
        return JobFilter.model_validate({name: getattr(self, name) for name in JobFilter.model_fields})

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The conditions as fields of a query."""
        found = self.model_dump(mode="json", include=set(JobFilter.model_fields), exclude_none=True)
        return [
            (name, ",".join(map(str, value)) if isinstance(value, list) else value)
            for name, value in found.items()
        ]

    @property
    def address(self) -> str:
        """Address of the list with this filter."""
        return f"/jobs?{urlencode(self.fields)}"


def _clean_value(name: str, value: object) -> object:
    if isinstance(value, list):
        return [each for each in (_clean_value(name, one) for one in value) if each != ""]
    if not isinstance(value, str):
        return value
    return ",".join(value.replace(",", " ").split()) if name == "ids" else value.strip()


class ListQuery(FilledFilter):
    """Query of the list."""

    sort: Literal["job", "-job"] = "-job"
    limit: int = Field(default=50, ge=1, le=200)
    after: int | None = Field(default=None, ge=1, le=MAX_ID)


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
    return page.render(
        "jobs/part.html" if page.is_fragment else "jobs/list.html",
        seen=seen,
        counts=[(status, counts[status]) for status in JobStatus if status in counts],
        total=search.sum_counts(counts),
        query=query,
        fields=[field for field in FIELDS if page.caller.role in field.roles],
        filters=dict(query.fields),
        matching=urlencode(query.fields),
    )


#: Most jobs changed by a page, since a browser does not wait for millions; the command line has no limit.
_MOST = search.MAX_COUNTED
#: Jobs listed before and after a change.
_SHOWN = 20

Do = Literal["kill", "reschedule"]
_WANTED: Mapping[Do, JobStatus] = {"kill": JobStatus.KILLED, "reschedule": JobStatus.RESCHEDULED}


class JobChangeForm(FilledFilter):
    """An action and the jobs to change."""

    do: Do


class ConfirmedChange(JobChangeForm):
    """The submitted confirmation."""

    csrf: str = ""  #: checked by `PageRoute`


@router.get("/jobs/change")
@allow(Role.USER, Role.VO_ADMIN)
def confirm(page: PageOf, change: Annotated[JobChangeForm, Query()]) -> HTMLResponse:
    """Show which jobs would change; nothing is changed."""
    which = _select(page, change)
    with database.reading(page.parts.engine) as conn:
        counts = search.count_by_status(conn, which, most=_MOST)
        seen = search.read_page(conn, which, limit=_SHOWN)
    changeable = may_come_from(_WANTED[change.do])
    possible = {status: count for status, count in counts.items() if status in changeable}
    return page.render(
        "jobs/change.html",
        change=change,
        counts=possible,
        total=search.sum_counts(possible),
        others=search.sum_counts({each: n for each, n in counts.items() if each not in possible}),
        shown=[job for job in seen.jobs if job.status in possible],
        most=_MOST,
    )


@router.post("/jobs/change")
@allow(Role.USER, Role.VO_ADMIN)
def change_jobs(page: PageOf, change: Annotated[ConfirmedChange, Form()]) -> HTMLResponse:
    """Change the jobs and show the result."""
    which = _select(page, change)
    with database.reading(page.parts.engine) as conn:
        total = search.sum_counts(search.count_by_status(conn, which, most=_MOST))
    if total.more or total.jobs > _MOST:
        message = (
            f"these are more than {_MOST:,} jobs: narrow the filter, or use "
            f"`pilotage job {change.do}` with --status, --owner, --vo, --site or --pool"
        )
        raise InvalidRequest([Problem(path="jobs", message=message)])
    changed = jobs.change_many(page.parts, page.caller, change.filter, _WANTED[change.do])
    return page.render("jobs/changed.html", change=change, changed=changed, most=_SHOWN)


def _select(page: PageContext, change: JobChangeForm) -> JobSelector:
    """The jobs to change; `InvalidRequest` without any condition."""
    if change.filter.is_empty:
        message = "no job is selected: tick some, or filter the list first"
        raise InvalidRequest([Problem(path="jobs", message=message)])
    return jobs.concerned(page.caller, change.filter, _WANTED[change.do])


#: Job ids in the address of the list after a submission.
_LISTED = 100
#: Initial content of the form.
_EXAMPLE = """Executable = "/bin/echo";
Arguments = "Hello from the grid";
StdOutput = "std.out";
OutputSandbox = {"std.out"};
CPUTime = 600;
"""

Text = Annotated[str, Form()]
Key = Annotated[str, Form(max_length=64, pattern="^[0-9a-f-]*$")]


@router.get("/jobs/new")
@router.get("/explain")
@allow(Role.USER, Role.VO_ADMIN)
def show_new_job_form(page: PageOf) -> HTMLResponse:
    """Show an empty form."""
    return _form(page, _EXAMPLE)


@router.post("/jobs/new")
@allow(Role.USER, Role.VO_ADMIN)
def submit_form(
    page: PageOf, do: Annotated[Literal["explain", "submit"], Form()], jdl: Text = "", key: Key = ""
) -> Response:
    """Explain where the job would run; or submit it, only once even if the form is sent again."""
    try:
        if do == "explain":
            return _form(page, jdl, explained=_dry_run(page, jdl), key=key)
        return _submit(page, jdl, key)
    except (InvalidInput, QuotaExceeded, IdempotencyConflict) as error:
        new_key = "" if isinstance(error, IdempotencyConflict) else key
        return _form(page, jdl, refused=error, key=new_key, status=400)


def _dry_run(page: PageContext, jdl: str) -> ExplainedJob:
    parts = page.parts
    config, now = parts.live.current, parts.clock()
    foreseen = dry_run.dry_run_source(config, submitter_of(page.caller), jdl, now=now)
    question = explanations.ask_about_dry_run(config, foreseen)
    with database.reading(parts.engine) as conn:
        found = explanations.explain_job(conn, config, question, forwarding=True, now=now)
    ranked = explanations.rank_queues(config, question, Random(0))
    return ExplainedJob(found=found, ranked=ranked[: job.LISTED_QUEUES])


def _submit(page: PageContext, jdl: str, key: str) -> RedirectResponse:
    job_ids = jobs.submit(page.parts, page.caller, [jdl], key=f"page:{key}" if key else None).job_ids
    if len(job_ids) == 1:
        return RedirectResponse(f"/jobs/{job_ids[0]}", 303)
    query = {"ids": ",".join(map(str, job_ids[:_LISTED]))}
    return RedirectResponse(f"/jobs?{urlencode(query)}", 303)


def _form(
    page: PageContext,
    jdl: str,
    *,
    explained: ExplainedJob | None = None,
    refused: Exception | None = None,
    key: str = "",
    status: int = 200,
) -> HTMLResponse:
    return page.render(
        "jobs/new.html",
        status=status,
        jdl=jdl,
        explained=explained,
        refused=str(refused) if refused else None,
        key=key or str(uuid4()),
    )
