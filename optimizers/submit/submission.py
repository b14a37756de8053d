"""Submission of jobs below HTTP: checked and stored as a whole or not at all, once per idempotency key.

The jobs of a small submission go through the optimizer chain before they are stored, in one transaction and
in their final state: Waiting, Failed or held. Stored as Received, for the optimizers, are jobs with a step
that is not pure, those whose pool is not resolved or is being changed (`enqueue.lock_resolved_pools`), larger
submissions, and those with a result that cannot be stored: the optimizers find the job at fault and hold it.
If the process is killed before the commit, nothing is stored.
"""

import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from sqlalchemy import Connection, Engine

from cs_config.options import bounds
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch, chain, decisions, enqueue
from optimizers.chain.batch import BatchResult
from optimizers.chain.chain import ChainContext, ChainResult, Failed, JobContext, Step
from optimizers.description.description import list_misplaced_files
from optimizers.description.parametric import JobMember
from optimizers.description.template_cache import DescriptionTemplate
from optimizers.steps.job_scheduling import derive_requirement_class
from optimizers.submit import dependencies
from optimizers.submit.checking import CheckedJobs, CheckJob, Source, check_sources, record_as_text
from optimizers.submit.dependencies import Dependents
from optimizers.submit.submitter import Ownership, Submitter
from requirements import canonical
from requirements.canonical import Requirements
from requirements.errors import InvalidJob, PilotageError, Problem, format_count
from requirements.job_fields import WITH_JOB_ID
from requirements.requirement_class import RequirementClass
from requirements.states import JobStatus
from taskqueue import blobs
from taskqueue.db import database
from taskqueue.errors import QuotaExceeded
from taskqueue.jobs import placeholders, submission
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.optimizer_queue import DecidedState
from taskqueue.jobs.submission import DescribedJob, NewJob
from taskqueue.task_queues.class_derivation import CLASSIFIED

log = logging.getLogger(__name__)


#: Jobs whose requirements are listed with the result.
_MOST_ASKED = 1000
_OUTPUTS = ("std_output", "std_error", "output_sandbox")
#: Attributes of a description that decide where its job may run.
_MATCHED = (*sorted(CLASSIFIED), "requirements")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedClass:
    """A requirement class with stored jobs of a submission."""

    asked: RequirementClass
    requirements: Requirements | None
    first_job: int  #: id
    jobs: int

    @property
    def identity(self) -> str:
        """The same for equal demands."""
        return identify(self.asked, self.requirements)


def identify(asked: RequirementClass, requirements: Requirements | None) -> str:
    """An identity of what jobs demand; a class that has no pool yet does not show its Requirements."""
    is_shown = requirements is None or asked.submit_pool is not None
    pool = "" if is_shown or requirements is None else canonical.pool_id(requirements, asked.vo)
    return f"{asked.digest}{pool}"


def merge_classes(found: Iterable[AcceptedClass]) -> Sequence[AcceptedClass]:
    """Each demand once, with the number of its jobs."""
    merged: dict[str, AcceptedClass] = {}
    for each in found:
        known = merged.setdefault(each.identity, each)
        if known is not each:
            merged[each.identity] = replace(known, jobs=known.jobs + each.jobs)
    return tuple(merged.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Stored jobs of a submission."""

    job_ids: list[int]  #: in the order of the sources
    due: list[int] = field(default_factory=list)  #: those for the optimizers: notify them after the commit
    decided: BatchResult = field(default_factory=BatchResult)  #: result of the optimizers for the others
    #: Different requirements of the jobs with their VO, of very many the first.
    asked: Sequence[tuple[str, Requirements]] = ()
    tags: Sequence[tuple[str, str]] = ()  #: their expressions over tags with their VO, of very many the first
    #: Keywords with names of output outside the work directory, of very many the first.
    misplaced: Sequence[tuple[str, str]] = ()
    classes: Sequence["AcceptedClass"] = ()  #: of the jobs; of very many the first
    is_repeated: bool = False  #: they were stored before, under the same key
    edges: int = 0  #: pairs of a job and one that it waits for


def submit(
    engine: Engine,
    config: Configuration,
    submitter: Submitter,
    sources: Sequence[Source],
    *,
    now: datetime,
    key: str | None = None,
    sandbox: str | None = None,
    steps: Mapping[str, Step] | None = None,
    check_job: CheckJob | None = None,
    origins: Sequence[str] = (),
) -> Accepted:
    """Store the jobs of a submission of JDL, YAML or JSON texts, or records; each may make many jobs.

    `key`: idempotency key, repeating the submission with it returns the same ids. `sandbox`: reference of
    the archive that is the input sandbox of all jobs that name no other. Raises InvalidJob with the problems
    of every description, QuotaExceeded, or IdempotencyConflict; nothing is stored then. Without `steps` the
    installed ones are run. `check_job` checks each job in addition. `origins`: where each job comes from, for
    its log, if each source makes one.

    Everything but the transaction itself comes before it, so that its locks are held for a short time.
    """

    def require_room(declared: Mapping[tuple[str, str], int]) -> None:
        with database.reading(engine) as conn:
            limits = {vo: options_for(config, vo).limits for vo, _ in declared}
            submission.check_quota(conn, declared, limits, now=now)

    new: _NewJobs | InvalidJob | QuotaExceeded
    try:
        checked = check_sources(
            config, submitter, sources, sandbox=sandbox, require_room=require_room, check_job=check_job
        )
        context = batch.read_context(engine, config, now)
        new = _decide(checked, chain.installed_steps() if steps is None else steps, context)
        new = replace(new, origins=origins)
    except (InvalidJob, QuotaExceeded) as error:
        # It may have been accepted under this key before, with another configuration or when there was room.
        if key is None:
            raise
        new = error

    idempotency = None if key is None else (submitter.subject, key, _digest(sources, sandbox))
    try:
        return _store_once(engine, new, idempotency, now)
    except Exception as error:  # of any kind: a result that cannot be stored is no reason to refuse the jobs
        if not isinstance(new, _NewJobs) or not any(new.results) or _refuses_jobs(error):
            raise
        jobs = format_count(len(new.jobs), "job")
        log.exception("%s could not be stored with results, the optimizers decide on them", jobs)
        return _store_once(engine, replace(new, results=[None] * len(new.jobs)), idempotency, now)


def find_accepted(
    engine: Engine, submitter: Submitter, sources: Sequence[Source], *, key: str, sandbox: str | None = None
) -> Accepted | None:
    """The jobs of an equal submission that was stored under this key; IdempotencyConflict as for `submit`."""
    digest = _digest(sources, sandbox)
    with database.reading(engine) as conn:
        known = submission.find_key(conn, subject=submitter.subject, key=key, body_digest=digest)
    return None if known is None else Accepted(job_ids=known, due=known, is_repeated=True)


def _store_once(
    engine: Engine,
    new: "_NewJobs | InvalidJob | QuotaExceeded",
    idempotency: tuple[str, str, str] | None,
    now: datetime,
) -> Accepted:
    """Store jobs, or raise why there are none, unless the subject, key and digest were stored before."""
    with database.writing(engine) as conn:
        if idempotency is not None:
            subject, key, digest = idempotency
            known = submission.reserve_key(conn, subject=subject, key=key, body_digest=digest, now=now)
            if known is not None:
                # The notification may have been lost.
                return Accepted(job_ids=known, due=known, is_repeated=True)
        if not isinstance(new, _NewJobs):
            raise new
        stored = _store(conn, new)
        if idempotency is not None:
            submission.fulfil_key(conn, subject=subject, key=key, job_ids=stored.job_ids)
        return stored


def _refuses_jobs(error: Exception) -> bool:
    """Whether the jobs could not be stored without their results, either."""
    return isinstance(error, PilotageError) or database.is_unavailable(error) or database.is_conflict(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewJobs:
    """Jobs that are ready to be stored."""

    checked: Sequence[CheckedJobs]
    context: ChainContext
    descriptions: Sequence[Description]
    members: Sequence[tuple[Ownership, JobMember]]  #: each job with its owner
    jobs: Sequence[DescribedJob]  #: the same jobs, as they are stored
    dependents: Dependents
    results: Sequence[ChainResult | None]  #: of the chain for each job; None: for the optimizers
    origins: Sequence[str] = ()  #: where each job comes from; empty: not from another


def _decide(checked: Sequence[CheckedJobs], steps: Mapping[str, Step], context: ChainContext) -> _NewJobs:
    descriptions, jobs = _group_descriptions(checked)
    members = [(each.submitted.whose, member) for each in checked for member in each.submitted.members]
    is_small = len(jobs) <= bounds.DECIDED_JOBS
    return _NewJobs(
        checked=checked,
        context=context,
        descriptions=descriptions,
        members=members,
        jobs=jobs,
        dependents=dependencies.find_dependents(checked),
        results=decisions.decide(members, steps, context) if is_small else [None] * len(jobs),
    )


def _store(conn: Connection, new: _NewJobs) -> Accepted:
    now = new.context.now
    _check_sandboxes(conn, new.checked, now)
    counts: Counter[tuple[str, str]] = Counter()
    for each in new.checked:
        counts[each.submitted.whose.vo, each.submitted.whose.owner] += len(each.submitted.members)
    limits = {vo: new.context.operations(vo).limits for vo, _ in counts}
    submission.check_quota(conn, counts, limits, now=now, stored_next=True)
    new.dependents.require_stored(conn)
    states = new.dependents.withhold(_lock_places(conn, new))
    job_ids = submission.store_jobs(
        conn, new.descriptions, new.jobs, decided=states, origins=new.origins, now=now
    )
    new.dependents.store(conn, job_ids)
    return _build_result(new, states, job_ids)


def _digest(sources: Sequence[Source], sandbox: str | None) -> str:
    texts = [source if isinstance(source, str) else record_as_text(source) for source in sources]
    return hashlib.sha256(json.dumps([texts, sandbox]).encode()).hexdigest()


def _check_sandboxes(conn: Connection, checked: Sequence[CheckedJobs], now: datetime) -> None:
    """Require that every archive is stored for the VO, and mark it as used, so that retention keeps it."""
    asked: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for each in reversed(checked):
        if each.submitted.sandbox is not None:
            asked[each.submitted.whose.vo][each.submitted.sandbox] = each.path
    problems = [
        Problem(
            path=f"{path}InputSandbox",
            message=f"sha256:{digest} is not stored for {vo}; send it to /sandboxes",
        )
        for vo, paths in asked.items()
        for digest, path in sorted(paths.items())
        if not blobs.touch_blob(conn, digest, vo=vo, now=now)
    ]
    if problems:
        raise InvalidJob(problems)


def _group_descriptions(
    checked: Sequence[CheckedJobs],
) -> tuple[list[Description], list[DescribedJob]]:
    """Return the descriptions to store, and the jobs with the index of theirs.

    Jobs from one text, or with one template, share a description; a single job needs no placeholders.
    """
    template_uses = Counter(id(each.template) for each in checked)
    places: dict[Hashable, int] = {}
    descriptions: list[Description] = []
    jobs: list[DescribedJob] = []
    for each in checked:
        shared = each.template if template_uses[id(each.template)] > 1 else None
        key = id(shared) if shared else (each.source, id(each.submitted))
        if key not in places:
            places[key] = len(descriptions)
            descriptions.append(_description(each, shared))
        alone = each.template is not None and shared is None
        jobs += ((places[key], _new_job(each, member, alone=alone)) for member in each.submitted.members)
    return descriptions, jobs


def _description(checked: CheckedJobs, shared: DescriptionTemplate | None) -> Description:
    submitted = checked.submitted
    body = submitted.body
    if checked.template is not None and shared is None:
        [member] = submitted.members
        body = placeholders.fill_placeholders(body, member.parameters)
    source = shared.source if shared else checked.source
    if submitted.is_own:  # not the text of all jobs once more for each
        source = record_as_text({"VO": submitted.whose.vo, **body})
    first = submitted.members[0].description
    return Description(
        source=source,
        body=body,
        sandbox=submitted.sandbox,
        rank=None if first.rank is None else first.rank.text,
        waiting_ttl=first.waiting_ttl or None,
        relax_after=first.relax_after,
    )


def _new_job(checked: CheckedJobs, member: JobMember, *, alone: bool) -> NewJob:
    whose, description = checked.submitted.whose, member.description
    return NewJob(
        vo=whose.vo,
        owner=whose.owner,
        owner_group=whose.owner_group,
        job_type=description.job_type,
        priority=description.priority,
        parameters=None if alone else member.parameters,
        site=description.sites[0]
        if len(description.sites) == 1
        else "Multiple"
        if description.sites
        else "ANY",
        **{name: member.own.get(name, getattr(description, name)) for name in WITH_JOB_ID},
    )


def _lock_places(conn: Connection, new: _NewJobs) -> list[DecidedState | None]:
    """Return the state of each job, None: for the optimizers; locks their pools and task queues."""
    results = {index: each for index, each in enumerate(new.results) if each}
    failed = {index for index, each in results.items() if isinstance(each.outcome, Failed)}
    if failed and batch.is_outdated(conn, new.context):
        # Failures by an old configuration are left to the optimizers, which have the current one by then.
        results = {index: each for index, each in results.items() if index not in failed}
    distinct = {id(each): each for each in results.values()}.values()
    candidates = [candidate for each in distinct if (candidate := each.candidate)]
    has_queue = enqueue.lock_resolved_pools(conn, candidates, new.context)
    matchable = frozenset(pool_id for pool_id, has in has_queue.items() if has)
    unresolved = {id(each) for each in candidates if each.pool and each.pool.pool_id not in has_queue}
    usable = {index: each for index, each in results.items() if id(each.candidate) not in unresolved}
    decided = [(new.jobs[index][1], each) for index, each in usable.items()]
    states = dict(zip(usable, batch.decide_states(conn, decided, new.context, matchable), strict=True))
    return [states.get(index) for index in range(len(new.jobs))]


def _list_classes(new: _NewJobs, job_ids: Sequence[int]) -> Iterator[AcceptedClass]:
    """The classes that the chain has found; of jobs that it has not seen those of their descriptions."""
    alike: defaultdict[Hashable, list[int]] = defaultdict(list)  # indexes
    for index, ((whose, member), result) in enumerate(zip(new.members, new.results, strict=True)):
        key = id(result) if result else (whose.vo, id(member.description), _list_own(member))
        alike[key].append(index)
    for indexes in islice(alike.values(), _MOST_ASKED):
        asked, requirements = _find_class(new, indexes[0])
        if asked is not None:
            yield AcceptedClass(
                asked=asked, requirements=requirements, first_job=job_ids[indexes[0]], jobs=len(indexes)
            )


def _find_class(new: _NewJobs, index: int) -> tuple[RequirementClass | None, Requirements | None]:
    """The class of a job, None: it has none, and its Requirements."""
    if result := new.results[index]:
        found = result.candidate
        pool = found.pool if found else None
        return found.requirement_class if found else None, pool.requirements if pool else None
    # Without what its input data decide.
    whose, member = new.members[index]
    described = member.whole
    candidate = JobContext(
        job_id=0, vo=whose.vo, owner=whose.owner, owner_group=whose.owner_group, description=described
    )
    asked = described.requirements
    required = None if asked is None else canonical.pool_form(asked)
    return derive_requirement_class(candidate, new.context), required


def _list_own(member: JobMember) -> Hashable:
    """What decides about matching and differs from the shared description."""
    return tuple((name, repr(member.own[name])) for name in _MATCHED if name in member.own)


def _build_result(new: _NewJobs, states: Sequence[DecidedState | None], job_ids: Sequence[int]) -> Accepted:
    """Return the same result as if the optimizers had processed the jobs."""
    by_status: defaultdict[JobStatus, list[int]] = defaultdict(list)
    for job_id, state in zip(job_ids, states, strict=True):
        by_status[state.update.status if state else JobStatus.RECEIVED].append(job_id)
    decided = (each for each, state in zip(new.results, states, strict=True) if each and state)
    asked = (
        (whose.vo, requirements)
        for whose, member in new.members
        if (requirements := member.description.requirements) is not None
    )
    tags = (
        (whose.vo, expression)
        for whose, member in new.members
        if (expression := member.description.tag_expression)
    )
    # A job's own values, not those of what it shares with others, which may be placeholders of a template.
    outputs = (
        tuple(member.own.get(name, getattr(member.description, name)) for name in _OUTPUTS)
        for _, member in islice(new.members, _MOST_ASKED)
    )
    misplaced = (each for names in dict.fromkeys(outputs) for each in list_misplaced_files(*names))
    return Accepted(
        job_ids=list(job_ids),
        edges=new.dependents.edges,
        due=by_status[JobStatus.RECEIVED],
        asked=tuple(dict.fromkeys(islice(asked, _MOST_ASKED))),
        tags=tuple(dict.fromkeys(islice(tags, _MOST_ASKED))),
        misplaced=tuple(islice(dict.fromkeys(misplaced), _MOST_ASKED)),
        classes=merge_classes(_list_classes(new, job_ids)),
        decided=BatchResult(
            waiting=tuple(by_status[JobStatus.WAITING]),
            held=tuple(by_status[JobStatus.CHECKING]),
            failed=tuple(by_status[JobStatus.FAILED]),
            outcomes=batch.count_outcomes(decided),
        ),
    )
