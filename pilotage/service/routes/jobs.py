"""Jobs: submit, list, show, change and complete.

Explanations: why a job does not run, and which waiting jobs a queue could run.
"""

from collections.abc import Collection
from dataclasses import replace
from random import Random
from typing import Annotated

from fastapi import APIRouter, Header, Query

from optimizers.submit import checking
from optimizers.submit.checking import Source
from pilotage.service import routing
from pilotage.service.auth import visibility
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Capability, Role
from pilotage.service.job_events import EventStream
from pilotage.service.models.explain import (
    EndAnswer,
    GroupQuery,
    JobExplanation,
    QueueExplanation,
    RankedQueues,
    StartAnswer,
)
from pilotage.service.models.jobs import (
    BulkChange,
    ChangedJob,
    ChangedJobs,
    ChangePageAnswer,
    ChangeQuery,
    CopiedJobs,
    CopyRequest,
    EditRequest,
    EventQuery,
    JobAnswer,
    JobDetails,
    JobEnd,
    JobFilter,
    JobIdPath,
    JobLog,
    JobPage,
    JobQuery,
    JobSummary,
    JobSummaryRow,
    LocalJobBody,
    LocalJobPage,
    LocalJobQuery,
    LogLine,
    LogQuery,
    ParentAnswer,
    RefusedJob,
    RelaxationAnswer,
    RetryAnswer,
    Submission,
    SubmittedJobs,
    SummaryQuery,
)
from pilotage.service.queries import explanations, jobs, unknown_values
from pilotage.service.queries.jobs import submitter_of
from pilotage.service.routing import ApiRoute, CallerOf, PartsOf, QueueOf
from requirements import job_fields
from requirements.errors import InvalidRequest, Problem
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import control, grid_jobs, log, search
from taskqueue.jobs import jobs as jobs_jobs
from taskqueue.jobs import jobs as stored_jobs
from taskqueue.jobs.control import ControlVerb
from taskqueue.jobs.search import JobSelector
from taskqueue.leases import attempts

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)


@router.get("")
@allow(Role.USER, Role.VO_ADMIN)
def list_jobs(parts: PartsOf, caller: CallerOf, query: Annotated[JobQuery, Query()]) -> JobPage:
    """List jobs, newest first by default: users their own, VO admins those of the VO."""
    now = parts.clock()

    def select(which: JobFilter, _by: Collection[str] = ()) -> JobSelector:
        return visibility.visible_jobs(caller, which, now=now)

    # Of the primary: programs change or copy what they find, which is not to be late.
    with database.reading(parts.engine) as conn:
        wanted = select(query.filter)
        seen = search.read_ordered(conn, wanted, sort=query.sort, limit=query.limit, after=query.after)
    has_found = bool(seen.jobs) or seen.next is not None or query.after is not None
    return JobPage(
        jobs=[JobAnswer.model_validate(job) for job in seen.jobs],
        next=seen.next,
        unknown=unknown_values.find_unknown(parts, caller, query, select, has_found=has_found),
    )


@router.get("/summary")
@allow(Role.USER, Role.VO_ADMIN, Role.SITE_ADMIN, is_expensive=True)
def summary(parts: PartsOf, caller: CallerOf, query: Annotated[SummaryQuery, Query()]) -> JobSummary:
    """Count jobs by some of their columns; counts above 100,000 may be up to a minute old.

    Site admins count those at their sites, not by owner.
    """
    by = tuple(name.strip() for name in query.by.split(",") if name.strip())
    now = parts.clock()

    def select(which: JobFilter, by: Collection[str]) -> JobSelector:
        return visibility.countable(caller, which, by, now=now)

    wanted = select(query, by)

    def count() -> JobSummary:
        with jobs.reading(parts, query) as conn:
            counts = search.count_by_columns(conn, by, wanted)
            waits = search.sum_waits(conn, by, wanted)
        rows = [
            JobSummaryRow.model_validate(
                {**dict(zip(by, values, strict=True)), "count": jobs}
                | ({"waited": waits[values]} if values in waits else {})
            )
            for values, jobs in counts.items()
        ]
        return JobSummary(summary=rows)

    # By the text of an age: the time that it means is another one at each request.
    key = (by, replace(wanted, periods={}), query.model_dump_json(include=set(job_fields.TIMES)))
    found = parts.summaries.get(key, count, now=now)
    unknown = unknown_values.find_unknown(parts, caller, query, select, has_found=bool(found.summary))
    return found.model_copy(update={"unknown": unknown})


@router.get("/end")
@allow(Role.USER, Role.VO_ADMIN, is_expensive=True)
def forecast_end(parts: PartsOf, caller: CallerOf, group: Annotated[GroupQuery, Query()]) -> EndAnswer:
    """Forecast when the last waiting job of a group starts, and when the group is done."""
    return explanations.forecast_end(parts, caller, group)


@router.get("/changes")
@allow(Role.USER, Role.VO_ADMIN)
def list_changes(
    parts: PartsOf, caller: CallerOf, query: Annotated[ChangeQuery, Query()]
) -> ChangePageAnswer:
    """List changes of status behind a cursor, in order, each exactly once.

    Without `after` there are none, but `next` is the present: get it first, then list the jobs, then ask for
    what changed since. A page may be short or empty and yet have more: one request searches 10,000 changes.
    """
    return parts.job_events.read_page(caller, query, now=parts.clock())


@router.get("/events", response_class=EventStream)
@allow(Role.USER, Role.VO_ADMIN)
async def follow(
    parts: PartsOf,
    caller: CallerOf,
    query: Annotated[EventQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> EventStream:
    """Send changes of status as server-sent events, as they happen.

    Events are called `job`, with data as an entry of `GET /jobs/changes` and a cursor as id. The stream ends
    after five minutes at most: continue with the id of the last event as `Last-Event-ID` or `after`.
    """
    return await parts.job_events.open_stream(caller, query, last_event_id, now=parts.clock())


@router.get("/{job_id}")
@allow(Role.USER, Role.VO_ADMIN)
def show(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> JobDetails:
    """Show a job with its description and its latest attempt."""
    with database.reading(parts.engine) as conn:
        story = jobs.read(conn, parts.live.current, caller, job_id, now=parts.clock())
    return JobDetails(
        **JobAnswer.model_validate(story.job).model_dump(),
        description=dict(story.description.body),
        parameters=dict(story.parameters),
        attempt=story.latest.to_answer() if story.latest else None,
        waited=dict(story.waited),
        after=[ParentAnswer.model_validate(each) for each in story.parents],
        retries=[RetryAnswer.model_validate(each) for each in story.retries],
        relaxations=[RelaxationAnswer.model_validate(each) for each in story.relaxations],
    )


@router.get("/{job_id}/log")
@allow(Role.USER, Role.VO_ADMIN)
def show_log(
    parts: PartsOf, caller: CallerOf, job_id: JobIdPath, query: Annotated[LogQuery, Query()]
) -> JobLog:
    """Show the changes of a job's status, in order."""
    with database.reading(parts.engine) as conn:
        visibility.require_job(caller, jobs_jobs.get_job(conn, job_id))
        entries, last = log.read_page(conn, job_id, after=query.after, limit=query.limit)
    return JobLog(job_id=job_id, log=[LogLine.model_validate(entry) for entry in entries], next=last)


@router.get("/{job_id}/local-jobs")
@allow(Role.USER, Role.VO_ADMIN)
def list_local_jobs(
    parts: PartsOf, caller: CallerOf, job_id: JobIdPath, query: Annotated[LocalJobQuery, Query()]
) -> LocalJobPage:
    """List the local jobs of a grid job's latest attempt, as its job manager reported them."""
    with database.reading(parts.engine) as conn:
        visibility.require_job(caller, jobs_jobs.get_job(conn, job_id))
        latest = attempts.get_latest(conn, job_id)
        found = latest and grid_jobs.list_local_jobs(
            conn, job_id, latest.epoch, limit=query.fetch_limit, after=query.after, state=query.state
        )
    shown, last = query.cut(found or ())
    rows = [LocalJobBody.model_validate(each) for each in shown]
    return LocalJobPage(job_id=job_id, local_jobs=rows, next=last.number if last else None)


control_router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)


#: What a token that is limited to capabilities needs for a change; for the others it is MODIFY.
_NEEDS = {control.KILL.name: Capability.CANCEL, control.DELETE.name: Capability.CANCEL}


def _add_routes(change: ControlVerb) -> None:
    """Add the routes of a change: of the jobs that match a filter, and of one job."""

    def change_many(parts: PartsOf, caller: CallerOf, which: BulkChange) -> ChangedJobs:
        return jobs.change_many(parts, caller, which, change, after=which.after)

    def change_one(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> ChangedJob:
        return jobs.change_one(parts, caller, job_id, change)

    change_many.__name__, change_one.__name__ = f"{change.name}_many", change.name
    change_many.__doc__ = f"{change.summary} Those that match the filter; of the others none is named."
    change_one.__doc__ = f"{change.summary} One job."
    needs = _NEEDS.get(change.name, Capability.MODIFY)
    for path, endpoint in ((f"/{change.name}", change_many), (f"/{{job_id}}/{change.name}", change_one)):
        control_router.post(path)(allow(Role.USER, Role.VO_ADMIN, needs=needs)(endpoint))


for _change in control.CHANGES.values():
    _add_routes(_change)


@control_router.post("/edit")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.MODIFY, keeps_numbers=True)
def edit_many(parts: PartsOf, caller: CallerOf, which: EditRequest) -> ChangedJobs:
    """Change values in the descriptions of jobs that match the filter and that no pilot has.

    Each job is checked as a submission is. It leaves its task queue in the same transaction, goes through the
    optimizers again, and keeps its place; a job that is held stays held. The log has the old and new values.
    """
    return jobs.change_many(
        parts, caller, which, control.EDIT, after=which.after, values=which.set, dry_run=which.dry_run
    )


@control_router.post("/{job_id}/complete")
@allow(Role.VO_ADMIN, needs=Capability.MODIFY)
def complete(parts: PartsOf, caller: CallerOf, job_id: JobIdPath, body: JobEnd) -> ChangedJob:
    """End a Completed job: the requests that it left are carried out, or have failed."""
    return jobs.complete_one(parts, caller, job_id, JobStatus(body.status), body.minor_status)


submission_router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=ApiRoute)

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255)]


@submission_router.post("", status_code=201)
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE, keeps_numbers=True)
def submit(
    parts: PartsOf, caller: CallerOf, body: Submission, idempotency_key: IdempotencyKey = None
) -> SubmittedJobs:
    """Submit jobs: all are stored, or none.

    Repeating a request with the same `Idempotency-Key` returns the same ids.
    """
    key = _check_key(idempotency_key)
    accepted = jobs.submit(parts, caller, sources_of(body), key=key, sandbox=body.sandbox)
    warnings = explanations.warn_of_jobs(parts, accepted)
    return SubmittedJobs(job_ids=accepted.job_ids, warnings=warnings)


@submission_router.post("/resubmit", status_code=201)
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE, keeps_numbers=True)
def resubmit_many(
    parts: PartsOf, caller: CallerOf, which: CopyRequest, idempotency_key: IdempotencyKey = None
) -> CopiedJobs:
    """Submit copies of jobs, with their input sandboxes, as new jobs; the old ones are left as they are.

    Repeating a request with the same `Idempotency-Key` returns the same ids. Of jobs with the same input
    sandbox those whose descriptions are valid are copied as a whole or not at all.
    """
    key = _check_key(idempotency_key)
    if which.dry_run:
        return jobs.foresee_copies(parts, caller, which.ids, which.set)
    copies = jobs.resubmit(parts, caller, which.ids, key=key, values=which.set)
    return CopiedJobs(
        job_ids=copies.accepted.job_ids,
        warnings=explanations.warn_of_jobs(parts, copies.accepted),
        refused=[RefusedJob(job_id=job_id, reason=str(why)) for job_id, why in copies.refused.items()],
    )


@submission_router.post("/{job_id}/resubmit", status_code=201)
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.CREATE)
def resubmit(
    parts: PartsOf, caller: CallerOf, job_id: JobIdPath, idempotency_key: IdempotencyKey = None
) -> SubmittedJobs:
    """Submit a copy of a job, with its input sandbox, as a new job; the old one is left as it is.

    Repeating a request with the same `Idempotency-Key` returns the same id.
    """
    copies = jobs.resubmit(parts, caller, [job_id], key=_check_key(idempotency_key))
    for error in copies.refused.values():
        raise error
    warnings = explanations.warn_of_jobs(parts, copies.accepted)
    return SubmittedJobs(job_ids=copies.accepted.job_ids, warnings=warnings)


def _check_key(key: str | None) -> str | None:
    if key is not None:
        routing.check_text("Idempotency-Key", key)
    return key


def sources_of(body: Submission) -> list[Source]:
    """The descriptions in a body."""
    given = [each for each in ([body.jdl] if body.jdl is not None else None, body.jdls, body.jobs) if each]
    if len(given) != 1:
        raise InvalidRequest([Problem(path="body", message="needs exactly one of jdl, jdls and jobs")])
    return list(given[0])


#: Query parameter.
Forwarding = Annotated[
    bool, Query(description="Also show what is decided by the queue, the batch system and the matcher.")
]
Most = Annotated[int, Query(ge=1, le=1000, description="Most queues in the answer.")]

explain_router = APIRouter(tags=["explanations"], route_class=ApiRoute)


@explain_router.get("/jobs/{job_id}/explain")
@allow(*EVERY_ROLE, is_expensive=True)
def explain_job(
    parts: PartsOf, caller: CallerOf, job_id: JobIdPath, *, forwarding: Forwarding = False
) -> JobExplanation:
    """Explain which requirements exclude which queues, what would help, and what blocks the job now."""
    with parts.replica.reading(job_id) as conn:
        job = visibility.require_readable(caller, stored_jobs.get_job(conn, job_id))
        config, now = parts.live.current, parts.clock()
        question = explanations.ask_about_job(conn, config, job, now=now)
        return explanations.explain_job(conn, config, question, forwarding=forwarding, now=now)


@explain_router.get("/jobs/{job_id}/queues")
@allow(*EVERY_ROLE, is_expensive=True)
def list_queues(parts: PartsOf, caller: CallerOf, job_id: JobIdPath, *, limit: Most = 100) -> RankedQueues:
    """List the queues that a job may run in, ordered by its `Rank`."""
    with parts.replica.reading(job_id) as conn:
        job = visibility.require_readable(caller, stored_jobs.get_job(conn, job_id))
        config, now = parts.live.current, parts.clock()
        question = explanations.ask_about_job(conn, config, job, now=now)
        found = explanations.rank_queues(conn, config, question, Random(), now=now)
    return RankedQueues(eligible=len(found), queues=found[:limit])


@explain_router.get("/jobs/{job_id}/start")
@allow(*EVERY_ROLE, is_expensive=True)
def forecast_start(parts: PartsOf, caller: CallerOf, job_id: JobIdPath) -> StartAnswer:
    """Forecast when a waiting job starts, with the part of such forecasts that held."""
    with database.reading(parts.engine) as conn:
        job = visibility.require_readable(caller, stored_jobs.get_job(conn, job_id))
        return explanations.forecast_start(conn, parts.live.current, job, now=parts.clock())


@explain_router.post("/explain")
@allow(Role.USER, Role.VO_ADMIN, needs=Capability.READ, is_expensive=True, keeps_numbers=True)
def explain_description(
    parts: PartsOf, caller: CallerOf, body: Submission, *, forwarding: Forwarding = False
) -> JobExplanation:
    """Explain a description without submitting it; of several jobs that it makes, the first."""
    sources = sources_of(body)
    if len(sources) != 1:
        raise InvalidRequest([Problem(path="body", message=f"{len(sources)} descriptions, allowed is one")])
    config, now = parts.live.current, parts.clock()
    foreseen = checking.dry_run_source(config, submitter_of(caller), sources[0], now=now)
    question = explanations.ask_about_dry_run(config, foreseen)
    with parts.replica.reading() as conn:
        return explanations.explain_job(conn, config, question, forwarding=forwarding, now=now)


@explain_router.get("/resources/queues/{site}/{ce}/{queue}/explain")
@allow(*EVERY_ROLE, is_expensive=True)
def explain_queue(parts: PartsOf, caller: CallerOf, address: QueueOf) -> QueueExplanation:
    """Explain which waiting jobs a queue may run, what excludes the rest, and what would attract more."""
    return explanations.explain_queue(parts, caller, parts.live.current.require(address))
