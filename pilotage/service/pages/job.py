"""Pages of one job: its timeline, description, attempts and output; and the form for a new job."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from random import Random
from typing import Annotated, Literal
from urllib.parse import urlencode
from uuid import uuid4

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from matcher.explain.eligible_queues import RankedQueue
from optimizers.submit import dry_run
from pilotage.service.auth.access import allow
from pilotage.service.auth.callers import Role
from pilotage.service.models.jobs import AttemptAnswer, JobIdPath
from pilotage.service.pages import explanation
from pilotage.service.pages.explanation import Explained
from pilotage.service.pages.page import PageContext, PageOf, PageRoute
from pilotage.service.queries import explanations, jobs
from pilotage.service.queries.jobs import JobStory, submitter_of
from requirements.errors import InvalidInput
from taskqueue.db import database
from taskqueue.errors import IdempotencyConflict, QuotaExceeded
from taskqueue.jobs.log import LogEntry
from taskqueue.states import FINAL, PREPARING, JobStatus, may_become

#: Smallest share of the timeline for a span, so that it is visible.
_LEAST = 0.02
#: Share of the timeline from which a label fits.
_ROOM = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """A period in one status."""

    status: JobStatus
    since: datetime
    lasted: timedelta | None  #: None: the final status
    minors: Sequence[str]  #: its minor statuses, in order
    epoch: int  #: the attempt at its end
    is_new_attempt: bool  #: a pilot other than before
    x: float  #: start, in percent of the timeline
    width: float  #: in percent; longer than its share of time if that would be invisible

    @property
    def has_room(self) -> bool:
        """Whether its label fits."""
        return self.width >= 100 * _ROOM


def spans(entries: Sequence[LogEntry], *, now: datetime) -> list[TimelineSpan]:
    """The timeline of a job until now; empty if retention has removed its log."""
    stays = [list(stay) for _, stay in groupby(entries, key=lambda entry: (entry.to_status, entry.epoch))]
    ends: list[datetime | None] = [stay[0].at for stay in stays[1:]]
    if stays:
        ends.append(None if stays[-1][0].to_status in FINAL else max(now, stays[-1][0].at))
    widths = _widths([_seconds(stay[0].at, end) for stay, end in zip(stays, ends, strict=True)])
    found: list[TimelineSpan] = []
    for stay, end, width in zip(stays, ends, widths, strict=True):
        before = found[-1] if found else None
        found.append(_span(stay, end, width, before))
    return found


def _span(
    stay: Sequence[LogEntry], end: datetime | None, width: float, before: TimelineSpan | None
) -> TimelineSpan:
    first, last = stay[0], stay[-1]
    return TimelineSpan(
        status=first.to_status,
        since=first.at,
        lasted=None if end is None else end - first.at,
        minors=list(dict.fromkeys(entry.minor_status for entry in stay if entry.minor_status)),
        epoch=last.epoch,
        is_new_attempt=last.epoch > (before.epoch if before else 0),
        x=round(before.x + before.width, 3) if before else 0.0,
        width=round(100 * width, 3),
    )


def _seconds(since: datetime, end: datetime | None) -> float:
    return 0.0 if end is None else max(0.0, (end - since).total_seconds())


def _widths(seconds: Sequence[float]) -> list[float]:
    """Shares of the timeline with a visible minimum; their sum is one."""
    total = sum(seconds)
    parts = [max(_LEAST, each / total if total else 0.0) for each in seconds]
    return [each / sum(parts) for each in parts]


router = APIRouter(route_class=PageRoute)

#: Latest changes of status that are listed.
_LOG = 500
#: Latest spans that are listed beside the timeline.
_SPANS = 30
#: Shortest wait in seconds that is shown.
_SHORTEST_WAIT = 0.05


@router.get("/jobs/{job_id}")
@allow(Role.USER, Role.VO_ADMIN)
def show(page: PageOf, job_id: JobIdPath) -> HTMLResponse:
    """Show a job."""
    now = page.parts.clock()
    with database.reading(page.parts.engine) as conn:
        story = jobs.read(conn, page.caller, job_id, now=now)
    job, latest = story.job, story.latest
    return page.render(
        "jobs/live.html" if page.is_fragment else "jobs/job.html",
        job=job,
        story=story,
        most_spans=_SPANS,
        spans=spans(story.log, now=now),
        latest=AttemptAnswer.model_validate(latest) if latest else None,
        log=story.log[-_LOG:],
        description=_list_fields(story.description.body),
        has_output=latest is not None and latest.output is not None,
        is_over=job.status in FINAL,
        is_waiting=job.status in PREPARING | {JobStatus.WAITING},
        may_be_killed=job.status is not JobStatus.KILLED and may_become(job.status, JobStatus.KILLED),
        may_be_rescheduled=may_become(job.status, JobStatus.RESCHEDULED)
        and job.status is not JobStatus.RESCHEDULED,
        causes=_causes(story),
    )


@router.get("/jobs/{job_id}/output")
@allow(Role.USER, Role.VO_ADMIN)
def output(page: PageOf, job_id: JobIdPath) -> HTMLResponse:
    """Show the files of the output archive and the beginnings of its texts."""
    return page.render(
        "jobs/output.html", job_id=job_id, listing=jobs.listing(page.parts, page.caller, job_id)
    )


@router.get("/jobs/{job_id}/output.tar", response_class=StreamingResponse)
@allow(Role.USER, Role.VO_ADMIN)
def download(page: PageOf, job_id: JobIdPath) -> StreamingResponse:
    """Download the output archive."""
    return jobs.send(page.parts, page.caller, job_id)


def _list_fields(body: Mapping[str, object]) -> list[tuple[str, str]]:
    """The checked description as names and values."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in body.items()
    ]


def _causes(story: JobStory) -> list[tuple[str, float, float]]:
    """Causes of waiting with seconds and percent of the total."""
    total = sum(story.waited.values())
    return [
        (cause, each, 100 * each / total) for cause, each in story.waited.items() if each > _SHORTEST_WAIT
    ]


new_job_router = APIRouter(route_class=PageRoute)

#: Eligible queues that are listed.
_LISTED_QUEUES = 10
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
class DryRunView:
    """Where a description would run."""

    explained: Explained
    ranked: list[RankedQueue]  #: the first of the eligible queues


@new_job_router.get("/jobs/new")
@new_job_router.get("/explain")
@allow(Role.USER, Role.VO_ADMIN)
def show_form(page: PageOf) -> HTMLResponse:
    """Show an empty form."""
    return _form(page, _EXAMPLE)


@new_job_router.post("/jobs/new")
@allow(Role.USER, Role.VO_ADMIN)
def answer(
    page: PageOf, do: Annotated[Literal["explain", "submit"], Form()], jdl: Text = "", key: Key = ""
) -> Response:
    """Explain where the job would run; or submit it, only once even if the form is sent again."""
    try:
        if do == "explain":
            return _form(page, jdl, dry_run_view=_dry_run(page, jdl), key=key)
        return _submit(page, jdl, key)
    except (InvalidInput, QuotaExceeded, IdempotencyConflict) as error:
        new_key = "" if isinstance(error, IdempotencyConflict) else key
        return _form(page, jdl, refused=error, key=new_key, status=400)


def _dry_run(page: PageContext, jdl: str) -> DryRunView:
    parts = page.parts
    config, now = parts.live.current, parts.clock()
    foreseen = dry_run.dry_run_source(config, submitter_of(page.caller), jdl, now=now)
    with database.reading(parts.engine) as conn:
        found = explanations.explain_dry_run(conn, config, foreseen, forwarding=True, now=now)
    ranked = explanations.ranked_queues_of_foreseen(config, foreseen, random=Random(0))
    return DryRunView(explained=explanation.explanation_view(found), ranked=ranked[:_LISTED_QUEUES])


def _submit(page: PageContext, jdl: str, key: str) -> RedirectResponse:
    job_ids = jobs.submit(page.parts, page.caller, [jdl], key=f"page:{key}" if key else None)
    if len(job_ids) == 1:
        return RedirectResponse(f"/jobs/{job_ids[0]}", 303)
    query = {"ids": ",".join(map(str, job_ids[:_LISTED]))}
    return RedirectResponse(f"/jobs?{urlencode(query)}", 303)


def _form(
    page: PageContext,
    jdl: str,
    *,
    dry_run_view: DryRunView | None = None,
    refused: Exception | None = None,
    key: str = "",
    status: int = 200,
) -> HTMLResponse:
    return page.render(
        "jobs/new.html",
        status=status,
        jdl=jdl,
        dry_run_view=dry_run_view,
        refused=str(refused) if refused else None,
        key=key or str(uuid4()),
    )
