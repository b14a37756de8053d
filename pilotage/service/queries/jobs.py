"""Submit, show, change and delete jobs, and send their output."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final

from fastapi.responses import StreamingResponse
from sqlalchemy import Connection

from cs_config.options import bounds
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.description import changes, jdl, parametric
from optimizers.submit import editing, submission
from optimizers.submit.checking import CheckJob, Source, check_sources
from optimizers.submit.editing import EditedJobs
from optimizers.submit.submission import Accepted
from optimizers.submit.submitter import Submitter, resolve_ownership
from pilotage.service.auth import access, audit, visibility
from pilotage.service.auth.callers import Caller
from pilotage.service.http_errors import TooManyRequests
from pilotage.service.models.jobs import (
    ChangedJob,
    ChangedJobs,
    CopiedJobs,
    JobFilter,
    RefusedJob,
    SetValues,
    UnknownValue,
)
from pilotage.service.queries import archives, explanations, resource_use, unknown_values
from pilotage.service.queries.archives import ArchiveListing
from pilotage.service.queries.resource_use import AttemptUse
from pilotage.service.services import Services
from requirements.errors import InvalidJob, InvalidRequest, NotAllowed, PilotageError, Problem
from requirements.job_fields import JOB_ID
from requirements.states import FINAL, JobStatus
from requirements.values import fold
from taskqueue.accounting import wait_times
from taskqueue.db import database
from taskqueue.errors import (
    BlobNotFound,
    IdempotencyConflict,
    IllegalTransition,
    JobKept,
    JobNotFound,
    NotHeld,
    RescheduleLimit,
)
from taskqueue.jobs import control, dependencies, descriptions, jobs, log, search, withheld
from taskqueue.jobs.control import ControlVerb
from taskqueue.jobs.dependencies import Parent
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.jobs import Job
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.relaxing import RELAXED
from taskqueue.jobs.search import JobSelector, SearchPage
from taskqueue.leases import attempts
from taskqueue.leases.retries import RETRIED

_SOURCE = "JobManager"
#: Jobs changed in one transaction, and pages of such jobs that one request looks through.
_BATCH = 1000
_BATCHES = 10
#: Jobs found by a filter for which an answer has the reason why they are not edited.
_TOLD = 20
#: The place of a job in a submission, as problems name it.
_PLACE: Final = re.compile(r"^jobs\[\d+\]/")


def reading(parts: Services, wanted: JobFilter) -> AbstractContextManager[Connection]:
    """A transaction for a list or count of jobs: of the primary if they are named by id, else of the replica.

    Who names them has just submitted them, or waits for them beside a stream of changes: what is late would
    be no job at all, or an end that no event announces any more.
    """
    is_named = wanted.get(JOB_ID) is not None
    return database.reading(parts.engine) if is_named else parts.replica.reading()


def change_many(
    parts: Services,
    caller: Caller,
    which: JobFilter,
    change: ControlVerb,
    *,
    after: int | None = None,
    values: SetValues | None = None,
    dry_run: bool = False,
) -> ChangedJobs:
    """Change the jobs that match the filter and whose status allows it, newest first.

    `after`: the `next` of the answer before, where the filter matches more jobs than one request changes.
    `values`: of descriptions, for an edit; `dry_run`: nothing is changed, the jobs are those that would be.
    """
    if which.is_empty:
        message = "names no job: give ids, or a filter such as status or owner"
        raise InvalidRequest([Problem(path="body", message=message)])
    if change.makes_due:
        access.admit_jobs(parts, caller)
    named = which.get(JOB_ID) or ()
    changed: list[int] = []
    refused: dict[int, str] = {}
    begins_later = after is not None
    checked: list[EditedJobs] = []
    selector = concerned(caller, which, change, now=parts.clock())
    for _ in range(_BATCHES):
        # As to write, which a database that has lost commits refuses: it may have other jobs under these ids.
        with database.writing(parts.engine) as conn:
            seen = search.read_page(conn, selector, limit=_BATCH, after=after)
            if values is not None and not named:
                seen = _as_many_as_are_read(conn, seen)
        if values is None:
            done, errors = _change(parts, caller, seen.jobs, change)
        else:
            done, errors, foreseen = _edit(parts, caller, seen.jobs, values, dry_run=dry_run)
            checked += foreseen[: max(0, explanations.MOST_FORESEEN - len(checked))]
        changed += done
        told = {
            job_id: str(error)
            for job_id, error in errors.items()
            if named or isinstance(error, InvalidJob)  # of an edit: the values, which the caller can correct
        }
        refused |= told if named else dict(islice(told.items(), max(0, _TOLD - len(refused))))
        after = seen.next
        if after is None:
            break
    # Named ids are never more than one page.
    unknown = set(named).difference(changed, refused)
    refused |= {job_id: f"job {job_id} does not exist" for job_id in sorted(unknown)}
    filled = which.model_dump_json(exclude_none=True)
    if not dry_run:
        audit.done(caller, f"jobs {change.result}", jobs=len(changed), filter=filled)
    has_found = bool(changed) or after is not None or begins_later
    misspelt: list[UnknownValue] = []
    with database.after_commit("find misspelt values of the filter"):
        misspelt = unknown_values.find_unknown(
            parts, caller, which, partial(_select, caller, parts.clock()), has_found=has_found
        )
    return ChangedJobs(
        job_ids=sorted(changed),
        refused=[RefusedJob(job_id=job_id, reason=reason) for job_id, reason in refused.items()],
        next=after,
        unknown=misspelt,
        warnings=explanations.warn_of_changed_jobs(parts, checked),
    )


def _as_many_as_are_read(conn: Connection, page: SearchPage) -> SearchPage:
    """The first jobs of a page whose descriptions may be read together; the others are of the next one."""
    number = descriptions.count_readable(conn, [job.job_id for job in page.jobs])
    if number == len(page.jobs):
        return page
    return replace(page, jobs=page.jobs[:number], next=page.jobs[number - 1].job_id)


def _select(caller: Caller, now: datetime, which: JobFilter, _by: Collection[str]) -> JobSelector:
    return visibility.visible_jobs(caller, which, now=now)


def concerned(caller: Caller, which: JobFilter, change: ControlVerb, *, now: datetime) -> JobSelector:
    """The jobs to change; jobs that are not named by id only if their state allows the change."""
    found = visibility.visible_jobs(caller, which, now=now)
    if which.get(JOB_ID) is None:
        for field, values in change.conditions.items():
            found = found.where(field, values)
    return found


def _change(
    parts: Services,
    caller: Caller,
    batch: Sequence[Job],
    change: ControlVerb,
) -> tuple[list[int], dict[int, PilotageError]]:
    """Change the jobs that allow it: their ids, and why others are as they were."""
    by_vo: defaultdict[str, list[int]] = defaultdict(list)
    for job in batch:
        by_vo[job.vo].append(job.job_id)
    source = name_source(caller)
    changed: list[int] = []
    refused: dict[int, PilotageError] = {}
    for vo, ids in by_vo.items():
        done, others = _change_of_vo(parts, vo, ids, change, source)
        changed += done
        refused |= {job.job_id: _describe_refusal(parts, job, change) for job in others}
    if change.makes_due:
        access.count_jobs(parts, caller, len(changed))
        parts.notify(sorted(changed))
    return sorted(changed), refused


def _edit(
    parts: Services, caller: Caller, batch: Sequence[Job], values: SetValues, *, dry_run: bool
) -> tuple[list[int], dict[int, PilotageError], Sequence[EditedJobs]]:
    """Edit the jobs that allow it: their ids, why others are as they were, and what they become."""
    able = [job for job in batch if job.status in control.EDIT.changeable]
    if dry_run:
        others = {job.job_id: _describe_refusal(parts, job, control.EDIT) for job in batch if job not in able}
        plan = editing.plan(parts.engine, parts.live.current, able, values)
        ids = sorted([*(each.job_id for each in plan.edited), *plan.result.unchanged])
        return ids, {**plan.result.refused, **others}, plan.result.checked
    edit = database.retry_on_conflict(editing.edit)
    source = name_source(caller)
    result = edit(parts.engine, parts.live.current, able, values, source=source, now=parts.clock())
    access.count_jobs(parts, caller, len(result.done))
    parts.notify(result.done)
    is_taken = set(result.taken)
    late = [job for job in batch if job not in able or job.job_id in is_taken]
    with database.reading(parts.engine) as conn:
        refused = {
            job.job_id: _describe_refusal(parts, jobs.get_job(conn, job.job_id), control.EDIT) for job in late
        }
    return sorted([*result.done, *result.unchanged]), {**result.refused, **refused}, result.checked


@database.retry_on_conflict
def _change_of_vo(
    parts: Services, vo: str, ids: Sequence[int], change: ControlVerb, source: str
) -> tuple[list[int], list[Job]]:
    """Change the jobs of one VO that allow it: their ids, and the others as they are now."""
    bound = {"maximum": max_reschedules(parts, vo)} if change is control.RESCHEDULE else {}
    with database.writing(parts.engine) as conn:
        done = change.apply(conn, ids, source=source, now=parts.clock(), **bound)
        left = frozenset(ids).difference(done)
        return done, search.list_jobs(
            conn, JobSelector().where(JOB_ID, left), limit=len(left)
        ) if left else []


def _describe_refusal(parts: Services, job: Job, change: ControlVerb) -> PilotageError:
    """Why a job was not changed."""
    if change is control.RELEASE:
        return NotHeld(job.job_id, current=job.status)
    if change.status is JobStatus.RESCHEDULED and (kept_for := withheld.find_reason(job)):
        remedy = kept_for.remedy.format(job_id=job.job_id)
        return JobKept(job.job_id, minor=job.minor_status, remedy=remedy)
    if change is control.RESCHEDULE and job.status in change.changeable:
        return RescheduleLimit(job.job_id, maximum=max_reschedules(parts, job.vo))
    return IllegalTransition(job.job_id, current=job.status, wanted=change.result)


def change_one(parts: Services, caller: Caller, job_id: int, change: ControlVerb) -> ChangedJob:
    """Change a job of the caller's, or one that the caller controls.

    No effect if it is killed or deleted already.
    """
    if change.makes_due:
        access.admit_jobs(parts, caller)
    with database.writing(parts.engine) as conn:  # as for many
        job = visibility.require_job(caller, jobs.get_job(conn, job_id))
    changed, refused = _change(parts, caller, [job], change)
    if not changed:
        error = refused.get(job_id, JobNotFound(job_id))
        if not change.is_end or error.details.get("current") != change.status:
            raise error
    _audit_change(caller, job, change.result)
    return ChangedJob(job_id=job_id, status=change.status)


def complete_one(parts: Services, caller: Caller, job_id: int, status: JobStatus, minor: str) -> ChangedJob:
    """End a Completed job as Done or Failed."""
    with database.writing(parts.engine) as conn:
        job = visibility.require_job(caller, jobs.get_job(conn, job_id))
        source = name_source(caller)
        control.complete_job(conn, job_id, status, minor=minor, source=source, now=parts.clock())
    _audit_change(caller, job, status)
    return ChangedJob(job_id=job_id, status=status)


def name_source(caller: Caller) -> str:
    """The source of a change in the log of a job: who made it."""
    return f"{_SOURCE}, {caller.user or caller.subject}"


def _audit_change(caller: Caller, job: Job, result: str) -> None:
    """Audit the change of another's job; as for many at once."""
    if (job.owner, job.vo) != (caller.user, caller.vo):
        audit.done(caller, f"jobs {result}", jobs=1, job_id=job.job_id, owner=job.owner, vo=job.vo)


def max_reschedules(parts: Services, vo: str) -> int:
    """How often a job of the VO may be rescheduled."""
    return options_for(parts.live.current, vo).job_scheduling.max_rescheduling


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """A job with its description and history."""

    job: Job
    description: Description
    log: Sequence[LogEntry]  #: in order
    parameters: Mapping[str, str]  #: by name, as pilots reported them
    attempts: Sequence[AttemptUse]  #: the latest first
    waited: Mapping[str, float]  #: seconds by cause, the longest first
    parents: Sequence[Parent]  #: jobs that it waits for, or waited for

    @property
    def latest(self) -> AttemptUse | None:
        """The latest attempt; None: never matched."""
        return self.attempts[0] if self.attempts else None

    @property
    def retries(self) -> Sequence[LogEntry]:
        """The times that a rule let it run again."""
        return [each for each in self.log if each.minor_status == RETRIED]

    @property
    def relaxations(self) -> Sequence[LogEntry]:
        """The times that it gave something up by a rule, for it waited long."""
        return [each for each in self.log if each.minor_status == RELAXED]


def read(conn: Connection, config: Configuration, caller: Caller, job_id: int, *, now: datetime) -> JobStory:
    """Read the story until `now`; `JobNotFound` if the caller may not control the job.

    The description of a job that is not final has the defaults that it would get now.
    """
    job = visibility.require_job(caller, jobs.get_job(conn, job_id))
    entries = log.read_log(conn, job_id)
    description = descriptions.read_description(conn, job_id)
    operations = options_for(config, job.vo)
    stated = resource_use.read_stated(description, operations)
    if job.status not in FINAL:
        defaults = operations.job_description.list_defaults(description.body)
        description = replace(description, body={**defaults, **description.body})
    return JobStory(
        job=job,
        description=description,
        log=entries,
        parameters=descriptions.read_parameters(conn, [job_id]).get(job_id, {}),
        attempts=[AttemptUse.from_attempt(each, stated) for each in attempts.list_newest(conn, job_id)],
        waited=wait_times.sum_until_now(conn, job, entries, now=now),
        parents=dependencies.list_parents(conn, [job_id]).get(job_id, ()),
    )


def send(parts: Services, caller: Caller, job_id: int) -> StreamingResponse:
    """Stream the output archive of the latest attempt; `BlobNotFound` or `JobNotFound`."""
    with database.reading(parts.engine) as conn:
        job = visibility.require_job(caller, jobs.get_job(conn, job_id))
        attempt = attempts.get_latest(conn, job_id)
    digest = attempt.output if attempt else None
    return archives.answer(parts, digest, vo=job.vo, name=f"output-{job_id}.tar")


def listing(parts: Services, caller: Caller, job_id: int) -> ArchiveListing:
    """List the files of the output archive; `BlobNotFound` or `JobNotFound`."""
    with database.reading(parts.engine) as conn:
        visibility.require_job(caller, jobs.get_job(conn, job_id))
        attempt = attempts.get_latest(conn, job_id)
    if attempt is None or attempt.output is None:
        raise BlobNotFound(f"output-{job_id}.tar")
    with parts.blobs.open(attempt.output) as archive:
        return archives.read(archive)


def submitter_of(caller: Caller) -> Submitter:
    """The submitter named in the token."""
    return Submitter(
        subject=caller.subject,
        vo=caller.vo or "",
        owner=caller.user or caller.role.value,
        owner_group=caller.group,
        operator=caller.is_operator,
    )


def submit(
    parts: Services,
    caller: Caller,
    sources: Sequence[Source],
    *,
    key: str | None,
    sandbox: str | None = None,
    check_job: CheckJob | None = None,
    origins: Sequence[str] = (),
) -> Accepted:
    """Store the jobs of a submission, each checked by `check_job`, and notify the optimizers."""
    submitter, accepted = submitter_of(caller), None
    parts.blobs.check_space()
    try:
        access.admit_jobs(parts, caller)
    except TooManyRequests:
        # It may have been accepted under this key before, and its answer lost.
        if key is not None:
            accepted = submission.find_accepted(parts.engine, submitter, sources, key=key, sandbox=sandbox)
        if accepted is None:
            raise
    if accepted is None:
        accepted = submission.submit(
            parts.engine,
            parts.live.current,
            submitter,
            sources,
            now=parts.clock(),
            key=key,
            sandbox=sandbox,
            check_job=check_job,
            origins=origins,
        )
    amount = len(accepted.job_ids) + accepted.edges // bounds.EDGES_OF_JOB
    access.count_jobs(parts, caller, 0 if accepted.is_repeated else amount)
    parts.metrics.optimized(accepted.decided)
    parts.notify(accepted.due)
    return accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """What is submitted as the copy of a job."""

    described: Mapping[str, object]
    origin: str  #: the job that it repeats, and what differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copies of jobs."""

    accepted: Accepted  #: the new jobs, in the order of the old ones
    refused: Mapping[int, PilotageError]  #: why others were not copied


def resubmit(
    parts: Services,
    caller: Caller,
    job_ids: Collection[int],
    *,
    key: str | None,
    values: SetValues | None = None,
) -> Copies:
    """Submit copies of jobs for their owners; NotAllowed if that is another, except for operators.

    `values`: what differs in the copies. The log of a copy names its job, and what was changed.

    Of jobs with the same input sandbox those that are valid are copied as a whole or not at all. `key`:
    idempotency key of these jobs' copies. Raises the first error if no job could be copied that exists.
    """
    wanted = list(dict.fromkeys(job_ids))
    groups, refused = _read_copies(parts, caller, wanted, values or {})
    done: dict[int, int] = {}
    stored: list[Accepted] = []
    for (_, sandbox), sources in groups.items():
        named = key and f"resubmit {next(iter(sources))} {key}"
        accepted, invalid = _submit_valid(parts, caller, sources, key=named, sandbox=sandbox)
        refused |= invalid
        if accepted is not None:
            copied = [job_id for job_id in sources if job_id not in invalid]
            done |= zip(copied, accepted.job_ids, strict=True)
            stored.append(accepted)
    if refused and not done:
        job_id, error = next(iter(refused.items()))
        if len(wanted) > 1:
            error.args = (f"job {job_id}: {error}",)
        raise error
    missing = {job_id: JobNotFound(job_id) for job_id in wanted if job_id not in done.keys() | refused}
    together = Accepted(
        job_ids=[done[job_id] for job_id in wanted if job_id in done],
        asked=[asked for each in stored for asked in each.asked],
        tags=[tags for each in stored for tags in each.tags],
        misplaced=[name for each in stored for name in each.misplaced],
        classes=submission.merge_classes(found for each in stored for found in each.classes),
    )
    return Copies(accepted=together, refused=missing | refused)


def foresee_copies(
    parts: Services, caller: Caller, job_ids: Collection[int], values: SetValues
) -> CopiedJobs:
    """What `resubmit` with other values would do: the jobs that it would copy, the others, and warnings."""
    wanted = list(dict.fromkeys(job_ids))
    selector = visibility.visible_jobs(caller, JobFilter.model_validate({"ids": wanted}), now=parts.clock())
    with database.reading(parts.engine) as conn:
        found = search.read_page(conn, selector, limit=len(wanted)).jobs
    plan = editing.plan(parts.engine, parts.live.current, found, values, of_copies=True)
    missing: dict[int, PilotageError] = {job_id: JobNotFound(job_id) for job_id in wanted}
    refused = missing | plan.result.refused
    done = {*(each.job_id for each in plan.edited), *plan.result.unchanged}
    return CopiedJobs(
        job_ids=[job_id for job_id in wanted if job_id in done],
        warnings=explanations.warn_of_changed_jobs(parts, plan.result.checked[: explanations.MOST_FORESEEN]),
        refused=[
            RefusedJob(job_id=job_id, reason=str(why))
            for job_id, why in refused.items()
            if job_id not in done
        ],
    )


def _submit_valid(
    parts: Services,
    caller: Caller,
    sources: Mapping[int, CopySource],
    *,
    key: str | None,
    sandbox: str | None,
) -> tuple[Accepted | None, dict[int, PilotageError]]:
    """Submit the copies of jobs that are valid each by itself; with the reasons for the others, by job.

    Also after a conflict: without those that are invalid this may be a request that was answered before.
    """
    try:
        described = [each.described for each in sources.values()]
        origins = [each.origin for each in sources.values()]
        return submit(parts, caller, described, key=key, sandbox=sandbox, origins=origins), {}
    except (InvalidJob, IdempotencyConflict) as error:
        refused = _find_invalid(parts, caller, sources)
        if not refused:
            return None, dict.fromkeys(sources, _without_places(error))
    except PilotageError as error:
        return None, dict.fromkeys(sources, error)
    valid = {job_id: source for job_id, source in sources.items() if job_id not in refused}
    if not valid:
        return None, refused
    accepted, others = _submit_valid(parts, caller, valid, key=key, sandbox=sandbox)
    return accepted, {**refused, **others}


def _find_invalid(
    parts: Services, caller: Caller, sources: Mapping[int, CopySource]
) -> dict[int, PilotageError]:
    """What is wrong with each description that is invalid by itself."""
    config, submitter = parts.live.current, submitter_of(caller)
    found: dict[int, PilotageError] = {}
    for job_id, source in sources.items():
        try:
            check_sources(config, submitter, [source.described])
        except InvalidJob as error:
            found[job_id] = error
    return found


def _without_places(error: PilotageError) -> PilotageError:
    """The error without the places in a submission, which the caller has not made."""
    if not isinstance(error, InvalidJob):
        return error
    return InvalidJob([replace(each, path=_PLACE.sub("", each.path)) for each in error.problems])


def _read_copies(
    parts: Services, caller: Caller, job_ids: Sequence[int], values: SetValues
) -> tuple[Mapping[tuple[str, str | None], Mapping[int, CopySource]], dict[int, PilotageError]]:
    """The descriptions of copies of the jobs that the caller controls, by VO, input sandbox and job.

    With the errors of those that the caller may not submit: these must not stop others.
    """
    selector = visibility.visible_jobs(caller, JobFilter.model_validate({"ids": job_ids}), now=parts.clock())
    with database.reading(parts.engine) as conn:
        found = {job.job_id: job for job in search.list_jobs(conn, selector, limit=len(job_ids))}
        described = descriptions.list_submitted(conn, found)
        dependencies.require_few_parents(conn, found)
        parents = dependencies.list_parents(conn, found)
    groups: defaultdict[tuple[str, str | None], dict[int, CopySource]] = defaultdict(dict)
    refused: dict[int, PilotageError] = {}
    for job_id in filter(described.__contains__, job_ids):
        description = _name_parents(described[job_id], parents.get(job_id, ()))
        try:
            copy = _describe_copy(parts, found[job_id], description, values)
            resolve_ownership(copy.described, submitter_of(caller), parts.live.current)
        except (NotAllowed, InvalidJob) as error:
            refused[job_id] = error
        else:
            groups[found[job_id].vo, name_sandbox(description)][job_id] = copy
    return groups, refused


def _name_parents(description: Description, parents: Sequence[Parent]) -> Description:
    """The description of a copy, which waits for the same jobs, by id, but for those that were Done."""
    if not parents:
        return description
    left = [str(each.job_id) for each in parents if each.status != JobStatus.DONE]
    return replace(description, body={**description.body, "After": left})


def _describe_copy(parts: Services, job: Job, description: Description, values: SetValues) -> CopySource:
    """The description of a copy as an object that names whose job it is."""
    whose = {"VO": job.vo, "Owner": job.owner, "OwnerGroup": job.owner_group}
    named = {fold(name) for name in whose}
    body = {name: value for name, value in description.body.items() if fold(name) not in named}
    changed = changes.change_body(body, values, options_for(parts.live.current, job.vo))
    differs = f" with {changed.note}" if changed.note else ""
    return CopySource(described={**changed.body, **whose}, origin=f"repeats job {job.job_id}{differs}")


def write_copy(vo: str, found: Description, parents: Sequence[Parent] = ()) -> str:
    """The text that describes a job as it was submitted; of one of many jobs, it alone.

    `parents`: jobs that it waited for. Their names mean nothing in another submission.
    """
    if parents:
        body = _name_parents(found, parents).body
        return json.dumps({"VO": vo, **body}, indent=2, ensure_ascii=False)
    try:
        read = json.loads(found.source)
    except ValueError:
        read = None
    # An object may be longer than a text.
    described = [read] if isinstance(read, dict) else jdl.read_descriptions(found.source)
    if len(described) > 1 or parametric.split_description(described[0]).parameters:
        read = {"VO": vo, **found.body}
    return found.source if read is None else json.dumps(read, indent=2, ensure_ascii=False)


def name_sandbox(description: Description) -> str | None:
    """The input sandbox of a job, as submissions name it."""
    return None if description.sandbox is None else f"sha256:{description.sandbox}"
