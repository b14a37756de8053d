"""One job: where it is on its way, what it asked, what its pilots did, and its output."""

import json
from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, StreamingResponse

from pilotage.service import job_output, job_story
from pilotage.service.access import allow
from pilotage.service.callers import Role
from pilotage.service.job_story import JobStory
from pilotage.service.models.job_filter import JobIdPath
from pilotage.service.models.jobs import AttemptAnswer
from pilotage.service.pages import timeline
from pilotage.service.pages.page_route import PageOf, PageRoute
from taskqueue import database
from taskqueue.states import FINAL, PREPARING, JobStatus, may_become

router = APIRouter(route_class=PageRoute)

#: Changes of status that are listed, the latest.
_LOG = 500
#: States that are named beside the line, the latest.
_SPANS = 30
#: Seconds of waiting that are worth a bar.
_WORTH = 0.05


@router.get("/jobs/{job_id}")
@allow(Role.USER, Role.VO_ADMIN)
def show(page: PageOf, job_id: JobIdPath) -> HTMLResponse:
    """The job as it stands."""
    now = page.parts.clock()
    with database.reading(page.parts.engine) as conn:
        story = job_story.read(conn, page.caller, job_id, now=now)
    job, latest = story.job, story.latest
    return page.render(
        "jobs/live.html" if page.is_fragment else "jobs/job.html",
        job=job,
        story=story,
        most_spans=_SPANS,
        spans=timeline.spans(story.log, now=now),
        latest=AttemptAnswer.model_validate(latest) if latest else None,
        log=story.log[-_LOG:],
        said=_told(story.description.body),
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
    """The files of the output archive, and how the texts among them begin."""
    return page.render(
        "jobs/output.html", job_id=job_id, listing=job_output.listing(page.parts, page.caller, job_id)
    )


@router.get("/jobs/{job_id}/output.tar", response_class=StreamingResponse)
@allow(Role.USER, Role.VO_ADMIN)
def download(page: PageOf, job_id: JobIdPath) -> StreamingResponse:
    """The archive itself."""
    return job_output.send(page.parts, page.caller, job_id)


def _told(body: Mapping[str, object]) -> list[tuple[str, str]]:
    """The checked description, word by word."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in body.items()
    ]


def _causes(story: JobStory) -> list[tuple[str, float, float]]:
    """What it waited for: the cause, seconds, and its part of all waiting in percent."""
    total = sum(story.waited.values())
    return [(cause, each, 100 * each / total) for cause, each in story.waited.items() if each > _WORTH]
