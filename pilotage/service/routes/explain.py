"""Why a job runs or does not."""

from fastapi import APIRouter
from sqlalchemy import Connection

from cs_config.configuration import Configuration
from cs_config.operations import operations
from matcher import explain
from matcher.explain import Exclusion
from optimizers import description
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf
from pilotage.service.models.explain import Example, JobExplanation, ReasonAnswer
from pilotage.service.routes.jobs import JobIdPath
from requirements import canonical
from requirements.canonical import Requirements
from taskqueue import database, descriptions, jobs, pools
from taskqueue.errors import JobNotFound, PoolNotFound
from taskqueue.jobs import Job

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
        requirements = _requirements(conn, config, job)
    found = explain.explain(config, job.vo, requirements)
    return JobExplanation(
        job_id=job_id,
        status=job.status,
        eligible_queues=found.eligible_queues,
        candidate_queues=found.candidate_queues,
        reasons=[_reason(each) for each in found.exclusions],
        changes=[],
        now=list(explain.holding_back(job, eligible_queues=found.eligible_queues)),
    )


def _requirements(conn: Connection, config: Configuration, job: Job) -> Requirements | None:
    """Those of the job's pool; before it has one, those of its description."""
    if job.submit_pool is not None:
        try:
            return canonical.from_json(pools.get(conn, job.submit_pool).original)
        except PoolNotFound:
            pass  # a final job outlives its pool
    body = descriptions.of_job(conn, job.job_id).body
    return description.parse(body, operations(config, job.vo)).requirements


def _reason(found: Exclusion) -> ReasonAnswer:
    return ReasonAnswer(
        requirement=found.requirement,
        wanted=found.wanted,
        excluded=found.excluded,
        only_this=found.only_this,
        example=Example(queue=str(found.example), has=found.has),
    )
