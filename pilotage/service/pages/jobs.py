"""Pages of many jobs: the filtered list, changing a selection of them, and the form for a new job."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Annotated, Any, Literal
from urllib.parse import urlencode
from uuid import uuid4

from fastapi import APIRouter, Form, Header, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from pydantic import BeforeValidator, Field, Json, ValidationError, model_validator
from starlette.datastructures import QueryParams

from optimizers.submit import checking
from pilotage.service import error_statuses
from pilotage.service.auth import visibility
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Capability, Role
from pilotage.service.http_errors import describe_refusal
from pilotage.service.job_events import EventStream
from pilotage.service.models import MOST
from pilotage.service.models.jobs import (
    MAX_ID,
    ChangedJobs,
    EventQuery,
    JobAnswer,
    JobFilter,
    RefusedJob,
    SetValues,
    words,
)
from pilotage.service.pages import job
from pilotage.service.pages.job import ExplainedJob
from pilotage.service.pages.page import (
    PageContext,
    PageOf,
    PageRoute,
    PageUrl,
    RefusedForm,
    UploadRoute,
    add_to_navigation,
    shows_filter,
)
from pilotage.service.queries import accounting, explanations, jobs
from pilotage.service.queries.jobs import submitter_of
from pilotage.service.routes import archives
from pilotage.service.routes.archives import StoredSandbox
from requirements.assignments import parse_assignments
from requirements.errors import InvalidInput, InvalidRequest, PilotageError, Problem
from requirements.job_fields import (
    FIELDS,
    FILTERED,
    FILTERS,
    JOB_ID,
    JOB_NAME,
    OWNER,
    STATUS,
    VO,
    AnyField,
    Filter,
)
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.errors import IdempotencyConflict, QuotaExceeded
from taskqueue.jobs import control, dependencies, descriptions, search
from taskqueue.jobs import jobs as stored_jobs
from taskqueue.jobs.control import ControlVerb
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.search import JobSelector

_ALL = frozenset({Role.USER, Role.VO_ADMIN, Role.OPERATOR})
_ADMINS = _ALL - {Role.USER}


#: Fields that are the same in all jobs that other roles list, so that only these filter by them.
_ROLES: Mapping[AnyField, frozenset[Role]] = {VO: frozenset({Role.OPERATOR}), OWNER: _ADMINS}
#: Columns that can be chosen. The name of a job comes first.
COLUMNS = sorted(
    (field for field in FIELDS if field.is_answered and field is not JOB_ID),
    key=lambda field: field is not JOB_NAME,
)


def _is_for(field: AnyField, role: Role) -> bool:
    return role in _ROLES.get(field, _ALL)


def _list_inputs(role: Role) -> list[Filter]:
    """Inputs of the filter form; statuses have links."""
    return [
        each
        for name, each in FILTERS.items()
        if FILTERED[name] is not STATUS and _is_for(FILTERED[name], role)
    ]


router = APIRouter(route_class=PageRoute)
upload_router = APIRouter(route_class=UploadRoute)


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
        """The conditions alone, without page and order."""
        return JobFilter.model_validate(self.given)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The conditions as fields of a query."""
        found = self.model_dump(mode="json", include=set(FILTERS), exclude_none=True)
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

    sort: str = Field(default="-job", max_length=40, description="`job` or a column; `-` reverses.")
    columns: Annotated[list[str], BeforeValidator(words), Field(max_length=50)] = Field(default_factory=list)
    limit: int = Field(default=50, ge=1, le=200)
    after: int | None = Field(default=None, ge=1, le=MAX_ID)

    @property
    def is_by_id(self) -> bool:
        """Whether the order is that of the ids."""
        return search.is_by_id(self.sort)


@router.get("/jobs")
@add_to_navigation("Jobs")
@allow(Role.USER, Role.VO_ADMIN)
@shows_filter
def list_jobs(page: PageOf, query: Annotated[ListQuery, Query()]) -> HTMLResponse:
    """List jobs, newest first: users their own, VO admins those of the VO."""
    return _show_list(page, query)


def _show_list(page: PageContext, query: ListQuery, **context: Any) -> HTMLResponse:
    now = page.parts.clock()
    wanted = visibility.visible_jobs(page.caller, query, now=now)
    with jobs.reading(page.parts, query) as conn:
        seen = search.read_ordered(conn, wanted, sort=query.sort, limit=query.limit, after=query.after)
        counts = search.count_by_status(conn, wanted.without(STATUS))
    role = page.caller.role
    chosen = [each for each in COLUMNS if each.name in query.columns]
    return page.render(
        "jobs/part.html" if page.is_fragment else "jobs/list.html",
        seen=seen,
        counts=[(status, counts[status]) for status in JobStatus if status in counts],
        total=search.sum_counts(counts),
        query=query,
        is_sorted=not query.is_by_id,
        columns=chosen or [each for each in COLUMNS if _is_for(each, role) and not each.is_rare],
        every_column=COLUMNS,
        sortable=frozenset(search.SORT_COLUMNS),
        fields=_list_inputs(role),
        filters=dict(query.fields),
        matching=urlencode(query.fields),
        changes=list(control.CHANGES.values()),
        longest_query=_LONGEST_QUERY,
        **{"refused": None} | context,
    )


_NONE_SELECTED = "none is selected: tick some, or filter the list first"
#: Characters of the query of a list that its forms send along.
_LONGEST_QUERY = 4000


class SelectionForm(FilledFilter):
    """Jobs that were ticked in a list, or that a filter selects."""

    #: Query of the list, to show it again if none is ticked.
    from_list: str = Field(default="", max_length=_LONGEST_QUERY)


def _ask_for_selection(page: PageContext, form: SelectionForm) -> HTMLResponse:
    """The list again, as it was, with what to do: no job is ticked."""
    shown = QueryParams(form.from_list)
    named = {name: shown.getlist(name) for name in shown}
    given = {name: values if len(values) > 1 else values[0] for name, values in named.items()}
    try:
        query = ListQuery.model_validate(given)
    except ValidationError as invalid:  # not of a page of ours
        raise describe_refusal(invalid.errors()) from None
    error = InvalidRequest([Problem(path="jobs", message=_NONE_SELECTED)])
    return _show_list(
        page,
        query,
        status=error_statuses.status_of(error),
        refused=RefusedForm(name="selection", values={}, error=error),
        here=PageUrl(path="/jobs", query=tuple(shown.multi_items())),
    )


@router.get("/jobs/events")
@allow(Role.USER, Role.VO_ADMIN)
async def follow(
    page: PageOf,
    query: Annotated[EventQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> EventStream:
    """Send the changes after which a page is to refresh, also of jobs that leave a status which it shows."""
    changing = [name for name, field in FILTERED.items() if field.is_of_change or field.is_of_attempt]
    query = query.model_copy(update=dict.fromkeys(changing))
    now = page.parts.clock()
    return await page.parts.job_events.open_stream(page.caller, query, last_event_id, now=now)


class DownloadQuery(ListQuery):
    """Query of a download: the filter of the list and the format."""

    format: Literal["csv", "json"] = "csv"


#: Most jobs of a download.
_MOST_DOWNLOADED = 100_000
_PAGE = 1000


@router.get("/jobs/download", response_class=StreamingResponse)
@allow(Role.USER, Role.VO_ADMIN)
def download(page: PageOf, query: Annotated[DownloadQuery, Query()]) -> StreamingResponse:
    """Download the jobs that match the filter, newest first: at most 100,000."""
    wanted = visibility.visible_jobs(page.caller, query, now=page.parts.clock())
    rows = (JobAnswer.model_validate(each).model_dump(mode="json") for each in _iterate(page, wanted))
    headers = {
        "Content-Disposition": f'attachment; filename="jobs.{query.format}"',
        "Cache-Control": "no-store",
    }
    if query.format == "json":
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        text = chain(["[\n"], (f"{',' if n else ''}{line}\n" for n, line in enumerate(lines)), ["]\n"])
        return StreamingResponse(text, media_type="application/json", headers=headers)
    return StreamingResponse(_as_csv(rows), media_type=accounting.MEDIA_TYPE, headers=headers)


def _iterate(page: PageContext, wanted: JobSelector) -> Iterator[Job]:
    """Jobs page by page, each in a transaction of its own: a download may take long."""
    left, after = _MOST_DOWNLOADED, None
    while left > 0:
        with page.parts.replica.reading() as conn:
            seen = search.read_page(conn, wanted, limit=min(_PAGE, left), after=after)
        yield from seen.jobs
        left, after = left - max(1, len(seen.jobs)), seen.next
        if after is None:
            return


def _as_csv(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    names = list(JobAnswer.model_fields)
    yield accounting.csv_line(names)
    for row in rows:
        yield accounting.csv_line(["" if row[name] is None else row[name] for name in names])


#: Most jobs changed by a page, since a browser does not wait for millions; the command line has no limit.
_MOST = search.MAX_COUNTED
#: Jobs listed before and after a change.
_SHOWN = 20


class JobChangeForm(SelectionForm):
    """An action and the jobs to change."""

    do: str = Field(pattern=f"^({'|'.join(control.CHANGES)})$")

    @property
    def change(self) -> ControlVerb:
        """What is done."""
        return control.CHANGES[self.do]


class ConfirmedChange(JobChangeForm):
    """The submitted confirmation."""

    csrf: str = ""  #: checked by `PageRoute`


@router.get("/jobs/change")
@allow(Role.USER, Role.VO_ADMIN)
def confirm(page: PageOf, change: Annotated[JobChangeForm, Query()]) -> HTMLResponse:
    """Show which jobs would change; nothing is changed."""
    if change.filter.is_empty:
        return _ask_for_selection(page, change)
    which = _select(page, change)
    with database.reading(page.parts.engine) as conn:
        counts = search.count_by_status(conn, which, most=_MOST)
        seen = search.read_page(conn, which, limit=_SHOWN)
    possible = {status: count for status, count in counts.items() if status in change.change.changeable}
    return page.render(
        "jobs/change.html",
        change=change,
        past=change.change.done,
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
    changed = jobs.change_many(page.parts, page.caller, change.filter, change.change)
    return page.render(
        "jobs/changed.html", change=change, past=change.change.done, changed=changed, most=_SHOWN
    )


class WarnedForm(FilledFilter):
    """An action with other values, of which warnings are shown before."""

    sure: bool = Field(default=False, description="Also if no queue is eligible for the jobs then.")


class EditForm(WarnedForm):
    """Values for the descriptions of jobs, as a form sends them."""

    set: Json[SetValues]
    csrf: str = ""  #: checked by `PageRoute`


@router.post("/jobs/edit")
@allow(Role.USER, Role.VO_ADMIN)
def edit_jobs(page: PageOf, form: Annotated[EditForm, Form()]) -> Response:
    """Edit the jobs: back to the page of a job, or why others are as they were.

    Where no queue is eligible for them with the new values, it is said and asked before.
    """
    if not form.sure:
        foreseen = jobs.change_many(
            page.parts, page.caller, form.filter, control.EDIT, values=form.set, dry_run=True
        )
        if foreseen.warnings:
            again = {"set": json.dumps(form.set)}
            return page.render("jobs/warned.html", form=form, what="Edit", fields=again, foreseen=foreseen)
    changed = jobs.change_many(page.parts, page.caller, form.filter, control.EDIT, values=form.set)
    if len(changed.job_ids) == 1 and not (changed.refused or changed.warnings):
        return RedirectResponse(f"/jobs/{changed.job_ids[0]}", 303)
    past = control.EDIT.done
    return page.render("jobs/changed.html", change=form, past=past, changed=changed, most=_SHOWN)


#: Errors that are shown beside the form, which keeps what was typed.
_REFUSALS = (InvalidInput, QuotaExceeded, IdempotencyConflict)


def _choose_key(key: str, error: PilotageError) -> str:
    """The key of a form that was refused: another one if it belongs to another submission."""
    return key if key and not isinstance(error, IdempotencyConflict) else str(uuid4())


#: Characters of the values of copies.
_LONGEST_VALUES = 10_000


class CopiesForm(SelectionForm):
    """The jobs to copy."""


class ConfirmedCopies(WarnedForm):
    """The submitted confirmation, with what differs."""

    set: str = Field(default="", max_length=_LONGEST_VALUES, description="`NAME=VALUE`, one a line.")
    key: str = Field(default="", max_length=64, pattern="^[0-9a-f-]*$")
    csrf: str = ""  #: checked by `PageRoute`


@router.get("/jobs/resubmit")
@allow(Role.USER, Role.VO_ADMIN)
def confirm_copies(page: PageOf, form: Annotated[CopiesForm, Query()]) -> HTMLResponse:
    """Show how many jobs would be copied, and ask what is to differ; nothing is submitted."""
    if form.filter.is_empty:
        return _ask_for_selection(page, form)
    return _show_copies(page, form, str(uuid4()))


def _show_copies(
    page: PageContext, form: FilledFilter, key: str, refused: RefusedForm | None = None
) -> HTMLResponse:
    which = _require_some(form, visibility.visible_jobs(page.caller, form.filter, now=page.parts.clock()))
    with database.reading(page.parts.engine) as conn:
        counts = search.count_by_status(conn, which, most=MOST + 1)
    return page.render(
        "jobs/resubmit.html",
        status=200 if refused is None else error_statuses.status_of(refused.error),
        form=form,
        refused=refused,
        key=key,
        counts=counts,
        total=search.sum_counts(counts),
        most=MOST,
        longest=_LONGEST_VALUES,
    )


@router.post("/jobs/resubmit")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE)
def submit_copies(page: PageOf, form: Annotated[ConfirmedCopies, Form()]) -> HTMLResponse:
    """Submit the copies, only once even if the form is sent again, and show the result.

    Where no queue is eligible for them with the other values, it is said and asked before.
    """
    try:
        return _submit_copies(page, form)
    except _REFUSALS as error:
        refused = RefusedForm(name="copies", values={"set": form.set}, error=error)
        return _show_copies(page, form, _choose_key(form.key, error), refused)


def _submit_copies(page: PageContext, form: ConfirmedCopies) -> HTMLResponse:
    which = _require_some(form, visibility.visible_jobs(page.caller, form.filter, now=page.parts.clock()))
    try:
        values = parse_assignments(line for line in form.set.splitlines() if line.strip())
    except ValueError as error:
        message = f"{error!s:.80}: write NAME=VALUE, such as Memory=6000"
        raise InvalidRequest([Problem(path="set", message=message)]) from None
    with database.reading(page.parts.engine) as conn:
        seen = search.read_page(conn, which, limit=MOST, oldest_first=True)
    if seen.next is not None:
        message = f"these are more than {MOST:,} jobs: narrow the filter, or use `pilotage job resubmit`"
        raise InvalidRequest([Problem(path="jobs", message=message)])
    if not seen.jobs:
        raise InvalidRequest([Problem(path="jobs", message="there are none")])
    ids = [job.job_id for job in seen.jobs]
    if values and not form.sure:
        foreseen = jobs.foresee_copies(page.parts, page.caller, ids, values)
        if foreseen.warnings:
            again = {"set": form.set, "key": form.key}
            return page.render(
                "jobs/warned.html", form=form, what="Resubmit", fields=again, foreseen=foreseen
            )
    key = f"page:{form.key}" if form.key else None
    copies = jobs.resubmit(page.parts, page.caller, ids, key=key, values=values)
    changed = ChangedJobs(
        job_ids=copies.accepted.job_ids,
        warnings=explanations.warn_of_jobs(page.parts, copies.accepted),
        refused=[RefusedJob(job_id=job_id, reason=str(why)) for job_id, why in copies.refused.items()],
    )
    return page.render("jobs/changed.html", change=form, past="submitted again", changed=changed, most=_SHOWN)


def _select(page: PageContext, change: JobChangeForm) -> JobSelector:
    """The jobs to change; `InvalidRequest` without any condition."""
    which = jobs.concerned(page.caller, change.filter, change.change, now=page.parts.clock())
    return _require_some(change, which)


def _require_some(form: FilledFilter, which: JobSelector) -> JobSelector:
    if form.filter.is_empty:
        raise InvalidRequest([Problem(path="jobs", message=_NONE_SELECTED)])
    return which


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


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """The input files of a new job: sent with the form, or those of the job that it copies."""

    copied: int | None = None  #: id of that job
    sandbox: str = ""  #: `sha256:<digest>`; empty: none were sent
    names: str = ""  #: of the files that were sent, for people
    vo: str = ""  #: that they were sent for; empty: the caller has one VO


@router.get("/jobs/new")
@router.get("/explain")
@allow(Role.USER, Role.VO_ADMIN)
def show_new_job_form(
    page: PageOf, copied: Annotated[int | None, Query(alias="from", ge=1, le=MAX_ID)] = None
) -> HTMLResponse:
    """Show an empty form, or one with the description of an earlier job."""
    if copied is None:
        vos = _list_vos(page)
        return _form(page, _EXAMPLE + (f'VO = "{vos[0]}";\n' if vos else ""))
    old, found = _read_copied(page, copied)
    with database.reading(page.parts.engine) as conn:
        parents = dependencies.list_parents(conn, [copied]).get(copied, ())
    return _form(page, jobs.write_copy(old.vo, found, parents), files=InputFiles(copied=copied, vo=old.vo))


def _read_copied(page: PageContext, job_id: int) -> tuple[Job, Description]:
    with database.reading(page.parts.engine) as conn:
        job = visibility.require_job(page.caller, stored_jobs.get_job(conn, job_id))
        return job, descriptions.read_submitted(conn, job_id)


@router.post("/jobs/new")
@allow(Role.USER, Role.VO_ADMIN)
def submit_form(
    page: PageOf,
    do: Annotated[Literal["explain", "submit"], Form()],
    jdl: Text = "",
    key: Key = "",
    copied: Annotated[str, Form(max_length=19, pattern="^[0-9]*$")] = "",
    sandbox: Annotated[str, Form(pattern="^(sha256:[0-9a-f]{64})?$")] = "",
    files: Annotated[str, Form(max_length=2000)] = "",
    files_vo: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Explain where the job would run; or submit it, only once even if the form is sent again."""
    sent = InputFiles(copied=int(copied) if copied else None, sandbox=sandbox, names=files, vo=files_vo)
    try:
        if do == "explain":
            return _form(page, jdl, explained=_dry_run(page, jdl), key=key, files=sent)
        return _submit(page, jdl, key, sent)
    except _REFUSALS as error:
        return _form(page, jdl, refused=error, key=_choose_key(key, error), status=400, files=sent)


@upload_router.put("/jobs/new/sandbox")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE)
async def store_sandbox(
    page: PageOf, request: Request, vo: Annotated[str | None, Query(max_length=200)] = None
) -> StoredSandbox:
    """Store the archive of the files that were chosen in the form, for its next submission."""
    return await archives.store(page.parts, page.caller, request, vo)


def _dry_run(page: PageContext, jdl: str) -> ExplainedJob:
    parts = page.parts
    config, now = parts.live.current, parts.clock()
    foreseen = checking.dry_run_source(config, submitter_of(page.caller), jdl, now=now)
    question = explanations.ask_about_dry_run(config, foreseen)
    with parts.replica.reading() as conn:
        found = explanations.explain_job(conn, config, question, forwarding=True, now=now)
        ranked = explanations.rank_queues(conn, config, question, Random(0), now=now)
    return ExplainedJob(found=found, ranked=ranked[: job.LISTED_QUEUES])


def _submit(page: PageContext, jdl: str, key: str, files: InputFiles) -> RedirectResponse:
    sandbox = files.sandbox or None
    if sandbox is None and files.copied is not None:
        sandbox = jobs.name_sandbox(_read_copied(page, files.copied)[1])
    job_ids = jobs.submit(
        page.parts, page.caller, [jdl], key=f"page:{key}" if key else None, sandbox=sandbox
    ).job_ids
    if len(job_ids) == 1:
        return RedirectResponse(f"/jobs/{job_ids[0]}", 303)
    query = {"ids": ",".join(map(str, job_ids[:_LISTED]))}
    return RedirectResponse(f"/jobs?{urlencode(query)}", 303)


def _list_vos(page: PageContext) -> list[str]:
    """The VOs that a new job may be of; empty: the caller has one."""
    caller = page.caller
    if caller.vo:
        return []
    return sorted(page.parts.live.current.vos if caller.is_operator else caller.visible_vos or ())


def _form(
    page: PageContext,
    jdl: str,
    *,
    explained: ExplainedJob | None = None,
    refused: Exception | None = None,
    key: str = "",
    status: int = 200,
    files: InputFiles = InputFiles(),
) -> HTMLResponse:
    return page.render(
        "jobs/new.html",
        status=status,
        vos=_list_vos(page),
        jdl=jdl,
        explained=explained,
        refused=str(refused) if refused else None,
        key=key or str(uuid4()),
        files=files,
    )
