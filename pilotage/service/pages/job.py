"""Pages of one job: its timeline, description, attempts and output; and why it is waiting.

The page of a group of jobs shows failures by site and exit code, and the progress of a campaign.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from random import Random
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, Field

from matcher.explain import headline
from matcher.explain.eligible_queues import RankedQueue
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Role
from pilotage.service.models.explain import GroupQuery, JobExplanation
from pilotage.service.models.jobs import LOCAL_STATE, JobFilter, JobIdPath
from pilotage.service.pages.page import PageOf, PageRoute, add_to_navigation, shows_filter
from pilotage.service.queries import explanations, jobs
from requirements.states import FINAL, PREPARING, JobStatus
from taskqueue.db import database
from taskqueue.jobs import control, grid_jobs, groups
from taskqueue.jobs import jobs as stored_jobs
from taskqueue.jobs.control import ControlVerb
from taskqueue.jobs.groups import FailureGroup
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE

#: Smallest share of the timeline for a span, so that it is visible.
_LEAST = 0.02


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


def spans(entries: Sequence[LogEntry], *, now: datetime) -> list[TimelineSpan]:
    """The timeline of a job until now; empty if retention has removed its log."""
    stays = [list(stay) for _, stay in groupby(entries, key=lambda entry: (entry.to_status, entry.epoch))]
    ends: list[datetime | None] = [stay[0].at for stay in stays[1:]]
    if stays:
        ends.append(None if stays[-1][0].to_status in FINAL else max(now, stays[-1][0].at))
    lengths = [None if end is None else end - stay[0].at for stay, end in zip(stays, ends, strict=True)]
    widths = _widths([max(0.0, length.total_seconds()) if length else 0.0 for length in lengths])
    found: list[TimelineSpan] = []
    x, epoch = 0.0, 0
    for stay, length, width in zip(stays, lengths, widths, strict=True):
        first, last = stay[0], stay[-1]
        span = TimelineSpan(
            status=first.to_status,
            since=first.at,
            lasted=length,
            minors=list(dict.fromkeys(entry.minor_status for entry in stay if entry.minor_status)),
            epoch=last.epoch,
            is_new_attempt=last.epoch > epoch,
            x=round(x, 3),
            width=round(100 * width, 3),
        )
        found.append(span)
        x, epoch = x + span.width, last.epoch
    return found


def _widths(seconds: Sequence[float]) -> list[float]:
    """Shares of the timeline with a visible minimum; their sum is one."""
    total = sum(seconds)
    parts = [max(_LEAST, each / total if total else 0.0) for each in seconds]
    return [each / sum(parts) for each in parts]


router = APIRouter(route_class=PageRoute)

#: Local jobs of a grid job that are listed.
_LOCAL_JOBS: Final = 100
#: Latest changes of status that are listed.
_LOG = 500
#: Latest spans that are listed beside the timeline.
_SPANS = 30
#: Shortest wait in seconds that is shown.
_SHORTEST_WAIT = 0.05


@router.get("/jobs/{job_id}")
@allow(Role.USER, Role.VO_ADMIN)
def show(
    page: PageOf, job_id: JobIdPath, local: Annotated[str | None, Query(pattern=LOCAL_STATE)] = None
) -> HTMLResponse:
    """Show a job; `local` selects the state of the local jobs that are listed."""
    now = page.parts.clock()
    with database.reading(page.parts.engine) as conn:
        story = jobs.read(conn, page.parts.live.current, page.caller, job_id, now=now)
        job, latest = story.job, story.latest
        epoch = latest.attempt.epoch if latest and latest.attempt.local_jobs else 0
        local_jobs = grid_jobs.list_local_jobs(conn, job_id, epoch, limit=_LOCAL_JOBS, state=local)
    return page.render(
        "jobs/live.html" if page.is_fragment else "jobs/job.html",
        job=job,
        story=story,
        most_spans=_SPANS,
        spans=spans(story.log, now=now),
        latest=latest.to_answer() if latest else None,
        local_jobs=local_jobs,
        local_state=local,
        most_local_jobs=_LOCAL_JOBS,
        log=story.log[-_LOG:],
        description=[
            (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for name, value in story.description.body.items()
        ],
        has_output=latest is not None and latest.attempt.output is not None,
        is_over=job.status in FINAL,
        has_failed=job.status is JobStatus.FAILED,
        is_waiting=job.status in PREPARING | {JobStatus.WAITING},
        changes=_list_changes(job),
        causes={cause: each for cause, each in story.waited.items() if each > _SHORTEST_WAIT},
    )


def _list_changes(job: Job) -> list[ControlVerb]:
    """The changes for which the page of a job has a button."""
    return [
        change
        for change in control.CHANGES.values()
        if change is not control.RESET and control.may_change(job, change)
    ]


@router.get("/jobs/{job_id}/output")
@allow(Role.USER, Role.VO_ADMIN)
def output(page: PageOf, job_id: JobIdPath) -> HTMLResponse:
    """Show the files of the output archive and the beginnings of its texts."""
    return page.render(
        "jobs/output.html", job_id=job_id, listing=jobs.listing(page.parts, page.caller, job_id)
    )


#: Lines of the standard error on the page of a failed job.
_LAST_LINES = 20
#: The file of the standard error unless the description names another.
_STDERR = "std.err"


@router.get("/jobs/{job_id}/stderr")
@allow(Role.USER, Role.VO_ADMIN)
def show_stderr(page: PageOf, job_id: JobIdPath) -> HTMLResponse:
    """Show the end of the standard error, for the page of a failed job."""
    with database.reading(page.parts.engine) as conn:
        story = jobs.read(conn, page.parts.live.current, page.caller, job_id, now=page.parts.clock())
    name = str(story.description.body.get("StdError") or _STDERR)
    members = jobs.listing(page.parts, page.caller, job_id).members
    file = next((each for each in members if each.name.removeprefix("./") == name), None)
    lines = (file.head or "").splitlines()[-_LAST_LINES:] if file else []
    return page.render("jobs/stderr.html", job_id=job_id, file=file, lines=lines)


@router.get("/jobs/{job_id}/output.tar", response_class=StreamingResponse)
@allow(Role.USER, Role.VO_ADMIN)
def download(page: PageOf, job_id: JobIdPath) -> StreamingResponse:
    """Download the output archive."""
    return jobs.send(page.parts, page.caller, job_id)


#: Eligible queues that are listed.
LISTED_QUEUES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedJob:
    """Where a job, submitted or not, would run, and what excludes the other queues."""

    found: JobExplanation
    ranked: Sequence[RankedQueue]  #: the first of the eligible queues

    @property
    def is_to_go(self) -> bool:
        """Whether the job still needs a queue."""
        return self.found.status in headline.STILL_TO_GO

    @property
    def tone(self) -> str:
        """The tone of its headline."""
        if self.is_to_go and not self.found.eligible_queues:
            return "bad"
        return "warn" if self.found.is_held else "good"


@router.get("/jobs/{job_id}/why")
@allow(*EVERY_ROLE, is_expensive=True)
def explain(page: PageOf, job_id: JobIdPath) -> HTMLResponse:
    """Show what excludes which queues, what would help, and what blocks the job now."""
    config, now = page.parts.live.current, page.parts.clock()
    with page.parts.replica.reading(job_id) as conn:
        job = visibility.require_readable(page.caller, stored_jobs.get_job(conn, job_id))
        question = explanations.ask_about_job(conn, config, job, now=now)
        found = explanations.explain_job(conn, config, question, forwarding=True, now=now)
        ranked = explanations.rank_queues(conn, config, question, Random(job_id), now=now)
    return page.render(
        "jobs/explained.html" if page.is_fragment else "jobs/why.html",
        job=job,
        has_page=(controls := visibility.controls(page.caller, vo=job.vo, owner=job.owner)),
        may_edit=controls and control.may_change(job, control.EDIT),
        may_release=controls and control.may_change(job, control.RELEASE),
        explained=ExplainedJob(found=found, ranked=ranked[:LISTED_QUEUES]),
    )


group_router = APIRouter(route_class=PageRoute)

#: Groups on a page.
_LISTED = 200
#: Period over which the rate of a campaign is averaged.
_LATELY = timedelta(hours=1)


class FailuresShown(BaseModel):
    """Query of the page; empty texts are ignored."""

    vo: str = Field(default="", max_length=255)
    site: str = Field(default="", max_length=255)
    hours: float = Field(default=24, gt=0, le=24 * 366)


def _query_of(shown: FailuresShown, group: FailureGroup) -> str:
    """The query of the list of the jobs of a group."""
    given = {
        "status": JobStatus.FAILED,
        "vo": shown.vo,
        "site": group.site,
        "minor_status": group.minor_status,
        "exit_code": "none" if group.exit_code is None else group.exit_code,
        "updated_since": f"{shown.hours * 3600:.0f}s",
    }
    return urlencode({name: value for name, value in given.items() if value != ""})


@group_router.get("/failures")
@add_to_navigation("Failures")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
@shows_filter
def list_failures(page: PageOf, query: Annotated[FailuresShown, Query()]) -> HTMLResponse:
    """Show why jobs failed: grouped by site, exit code and minor status, without names of persons."""
    given = {"vo": query.vo, "site": query.site}
    wanted = JobFilter.model_validate({name: value for name, value in given.items() if value})
    now = page.parts.clock()
    which = visibility.countable(page.caller, wanted, ("site", "minor_status"), now=now)
    since = now - timedelta(hours=query.hours)
    with page.parts.replica.reading() as conn:
        found = groups.group_failures(conn, which, since=since, limit=_LISTED)
    return page.render(
        "groups/failures.html",
        found=found,
        query=query,
        list_of=partial(_query_of, query),
        total=sum(each.count for each in found.groups),
        most=groups.MAX_FAILED,
        vos=visibility.pool_vos(page.caller, page.parts.live.current.vos),
        may_list=page.caller.role is not Role.SITE_ADMIN,
    )


@group_router.get("/campaigns/end")
@allow(Role.USER, Role.VO_ADMIN, is_expensive=True)
def forecast_end(page: PageOf, group: Annotated[GroupQuery, Query()]) -> HTMLResponse:
    """Show when the jobs of a group are probably done."""
    found = explanations.forecast_end(page.parts, page.caller, group)
    return page.render("groups/end.html", found=found, group=group, waiting=groups.BEFORE_PILOTS)


class CampaignsShown(BaseModel):
    """Query of the page; empty texts are ignored."""

    q: str = Field(default="", max_length=255, description="Part of the names.")


@group_router.get("/campaigns")
@add_to_navigation("Campaigns")
@allow(Role.USER, Role.VO_ADMIN, is_expensive=True)
@shows_filter
def list_campaigns(page: PageOf, query: Annotated[CampaignsShown, Query()]) -> HTMLResponse:
    """Show the groups of the caller's jobs, one line each: how many are done, failed, left, and the rate."""
    now = page.parts.clock()
    which = visibility.visible_jobs(page.caller, JobFilter(), now=now)
    since = now - _LATELY
    with page.parts.replica.reading() as conn:
        found = groups.list_progress(conn, which, since=since, limit=_LISTED, part=query.q.strip())
    return page.render(
        "groups/campaigns_live.html" if page.is_fragment else "groups/campaigns.html",
        found=found,
        query=query,
        parts=groups.PARTS,
        stuck=NO_ELIGIBLE_QUEUE,
        most=groups.MAX_OF_STATUS,
        lately=_LATELY,
    )
