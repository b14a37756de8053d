"""Why a job runs or does not, and what a queue is to those that wait."""

from random import Random
from typing import Annotated

from fastapi import APIRouter, Query

from optimizers import foresight
from pilotage.service import explanations, job_scope, queue_explanations
from pilotage.service.access import EVERY_ROLE, allow
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf, QueueOf
from pilotage.service.callers import Capability, Role
from pilotage.service.models.explain import (
    JobExplanation,
    QueueExplanation,
    RankedQueue,
    RankedQueues,
)
from pilotage.service.models.job_filter import JobIdPath
from pilotage.service.models.submission import Submission
from pilotage.service.routes.submission import sources_of
from pilotage.service.submitters import submitter_of
from requirements.errors import InvalidRequest
from requirements.problem import Problem
from taskqueue import database, jobs

#: FastAPI reads it from the query.
Forwarding = Annotated[
    bool, Query(description="Also what is decided at the queue, by the batch system, by the matcher.")
]

Most = Annotated[int, Query(ge=1, le=1000, description="Queues that are told.")]

router = APIRouter(tags=["explanations"], route_class=ApiRoute)


@router.get("/jobs/{job_id}/explain")
@allow(*EVERY_ROLE)
def explain_job(
    parts: PartsOf, caller: CallerOf, job_id: JobIdPath, *, forwarding: Forwarding = False
) -> JobExplanation:
    """Say which requirements exclude which queues, what would help, and what holds the job back now."""
    with database.reading(parts.engine) as conn:
        job = job_scope.require_readable(caller, jobs.get(conn, job_id))
        config, now = parts.live.current, parts.clock()
        return explanations.of_job(conn, config, job, forwarding=forwarding, now=now)


@router.get("/jobs/{job_id}/queues")
@allow(*EVERY_ROLE)
def queues_of_job(parts: PartsOf, caller: CallerOf, job_id: JobIdPath, *, limit: Most = 100) -> RankedQueues:
    """List the queues that a job may run in, in the order of its `Rank`."""
    with database.reading(parts.engine) as conn:
        job = job_scope.require_readable(caller, jobs.get(conn, job_id))
        found = explanations.ranked_queues(conn, parts.live.current, job, random=Random(), now=parts.clock())
    told = [RankedQueue(queue=str(each.queue), rank=each.rank) for each in found[:limit]]
    return RankedQueues(eligible=len(found), queues=told)


@router.post("/explain")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.READ)
def explain_description(
    parts: PartsOf, caller: CallerOf, body: Submission, *, forwarding: Forwarding = False
) -> JobExplanation:
    """Say the same of a description that is not submitted; of several jobs that it makes, of the first."""
    sources = sources_of(body)
    if len(sources) != 1:
        raise InvalidRequest([Problem(path="body", message=f"{len(sources)} descriptions, allowed is one")])
    config, now = parts.live.current, parts.clock()
    foreseen = foresight.of_source(config, submitter_of(caller), sources[0], now=now)
    with database.reading(parts.engine) as conn:
        return explanations.of_foreseen(conn, config, foreseen, forwarding=forwarding, now=now)


@router.get("/resources/queues/{site}/{ce}/{queue}/explain")
@allow(*EVERY_ROLE)
def explain_queue(parts: PartsOf, caller: CallerOf, address: QueueOf) -> QueueExplanation:
    """Say which waiting jobs a queue may run, what excludes the rest, and what it could offer to run more."""
    return queue_explanations.of_queue(parts, caller, parts.live.current.require(address))
