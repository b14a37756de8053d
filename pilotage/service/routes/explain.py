"""Why a job runs or does not."""

from fastapi import APIRouter
from sqlalchemy import Connection

from cs_config.configuration import Configuration
from cs_config.operations import operations
from matcher import explain
from matcher.explain import Asked, Exclusion
from optimizers import description
from optimizers.description import JobDescription
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf
from pilotage.service.models.explain import Example, JobExplanation, ReasonAnswer
from pilotage.service.routes.jobs import JobIdPath
from requirements.errors import InvalidInput
from taskqueue import database, descriptions, job_classes, jobs
from taskqueue.errors import JobNotFound
from taskqueue.jobs import Job

#: DIRAC's words for no site in particular.
_ANY = frozenset({"ANY", "Any", "any"})

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)


@router.get("/{job_id}/explain")
@allow(*EVERY_ROLE)
def explain_job(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> JobExplanation:
    """Say which requirements exclude which queues, and what holds the job back now."""
    config = parts.live.current
    with database.reading(parts.engine) as conn:
        job = jobs.get(conn, job_id)
        if not caller.may_read(job.vo):
            raise JobNotFound(job_id)
        asked = _asked(conn, config, job)
    found = explain.explain(config, job.vo, asked)
    return JobExplanation(
        job_id=job_id,
        status=job.status,
        eligible_queues=found.eligible_queues,
        candidate_queues=found.candidate_queues,
        reasons=[_reason(each) for each in found.exclusions],
        changes=[],
        now=list(explain.holding_back(job, eligible_queues=found.eligible_queues)),
    )


def _asked(conn: Connection, config: Configuration, job: Job) -> Asked:
    """What matching looks at; before the job is in a task queue, what its description says."""
    described = _described(conn, config, job)
    requirements = described.requirements if described else None
    found = None if job.task_queue_id is None else job_classes.of_task_queue(conn, job.task_queue_id)
    if found is not None:
        return Asked(
            requirements=requirements,
            sites=found.sites,
            banned_sites=found.banned_sites,
            grid_ces=found.grid_ces,
        )
    if described is None:
        return Asked()
    return Asked(
        requirements=requirements,
        sites=frozenset(described.sites) - _ANY,
        banned_sites=frozenset(described.banned_sites),
        grid_ces=frozenset(described.grid_ces),
    )


def _described(conn: Connection, config: Configuration, job: Job) -> JobDescription | None:
    """The description read with the options of today; None: these do not allow it any more."""
    body = descriptions.of_job(conn, job.job_id).body
    try:
        return description.parse(body, operations(config, job.vo))
    except InvalidInput:
        return None


def _reason(found: Exclusion) -> ReasonAnswer:
    return ReasonAnswer(
        requirement=found.requirement,
        wanted=found.wanted,
        excluded=found.excluded,
        only_this=found.only_this,
        example=Example(queue=str(found.example), has=found.has),
    )
