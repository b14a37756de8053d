"""Why is it waiting: the explanation of a job as a picture."""

from random import Random

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from pilotage.service import explanations, job_scope, told
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.models.job_filter import JobIdPath
from pilotage.service.pages import explained
from pilotage.service.pages.page_route import PageOf, PageRoute
from taskqueue import database, jobs

router = APIRouter(route_class=PageRoute)

#: Eligible queues that are named.
_NAMED = 10


@router.get("/jobs/{job_id}/why")
@allow(*EVERY_ROLE)
def why(page: PageOf, job_id: JobIdPath) -> HTMLResponse:
    """What excludes which queues, what would help, and what holds the job back at this moment."""
    config, now = page.parts.live.current, page.parts.clock()
    with database.reading(page.parts.engine) as conn:
        job = job_scope.require_readable(page.caller, jobs.get(conn, job_id))
        found = explanations.of_job(conn, config, job, forwarding=True, now=now)
        ranked = explanations.ranked_queues(conn, config, job, random=Random(job_id), now=now)
    return page.render(
        "jobs/explained.html" if page.is_fragment else "jobs/why.html",
        job=job,
        has_page=told.controls(page.caller, vo=job.vo, owner=job.owner),
        explained=explained.of(found),
        ranked=ranked[:_NAMED],
    )
