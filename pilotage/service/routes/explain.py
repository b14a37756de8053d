"""Explanations: why a job runs or does not, and which waiting jobs a queue could run."""

from random import Random
from typing import Annotated

from fastapi import APIRouter, Query

from optimizers.submit import dry_run
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Capability, Role
from pilotage.service.models.explain import JobExplanation, QueueExplanation, RankedQueues
from pilotage.service.models.jobs import JobIdPath, Submission
from pilotage.service.queries import explanations
from pilotage.service.queries.jobs import submitter_of
from pilotage.service.routes.jobs import sources_of
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf, QueueOf
from requirements.errors import InvalidRequest, Problem
from taskqueue.db import database
from taskqueue.jobs import jobs

#: Query parameter.
Forwarding = Annotated[
    bool, Query(description="Also show what is decided by the queue, the batch system and the matcher.")
]
Most = Annotated[int, Query(ge=1, le=1000, description="Most queues in the answer.")]

router = APIRouter(tags=["explanations"], route_class=ApiRoute)


@router.get("/jobs/{job_id}/explain")
@allow(*EVERY_ROLE)
def explain_job(
    parts: PartsOf, caller: CallerOf, job_id: JobIdPath, *, forwarding: Forwarding = False
) -> JobExplanation:
    """Explain which requirements exclude which queues, what would help, and what blocks the job now."""
    with database.reading(parts.engine) as conn:
        job = visibility.require_readable(caller, jobs.get_job(conn, job_id))
        config, now = parts.live.current, parts.clock()
        question = explanations.ask_about_job(conn, config, job, now=now)
        return explanations.explain_job(conn, config, question, forwarding=forwarding, now=now)


@router.get("/jobs/{job_id}/queues")
@allow(*EVERY_ROLE)
def list_queues(parts: PartsOf, caller: CallerOf, job_id: JobIdPath, *, limit: Most = 100) -> RankedQueues:
    """List the queues that a job may run in, ordered by its `Rank`."""
    with database.reading(parts.engine) as conn:
        job = visibility.require_readable(caller, jobs.get_job(conn, job_id))
        config = parts.live.current
        question = explanations.ask_about_job(conn, config, job, now=parts.clock())
    found = explanations.rank_queues(config, question, Random())
    return RankedQueues(eligible=len(found), queues=found[:limit])


@router.post("/explain")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.READ)
def explain_description(
    parts: PartsOf, caller: CallerOf, body: Submission, *, forwarding: Forwarding = False
) -> JobExplanation:
    """Explain a description without submitting it; of several jobs that it makes, the first."""
    sources = sources_of(body)
    if len(sources) != 1:
        raise InvalidRequest([Problem(path="body", message=f"{len(sources)} descriptions, allowed is one")])
    config, now = parts.live.current, parts.clock()
    foreseen = dry_run.dry_run_source(config, submitter_of(caller), sources[0], now=now)
    question = explanations.ask_about_dry_run(config, foreseen)
    with database.reading(parts.engine) as conn:
        return explanations.explain_job(conn, config, question, forwarding=forwarding, now=now)


@router.get("/resources/queues/{site}/{ce}/{queue}/explain")
@allow(*EVERY_ROLE)
def explain_queue(parts: PartsOf, caller: CallerOf, address: QueueOf) -> QueueExplanation:
    """Explain which waiting jobs a queue may run, what excludes the rest, and what would attract more."""
    return explanations.explain_queue(parts, caller, parts.live.current.require(address))
