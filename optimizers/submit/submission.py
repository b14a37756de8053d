"""Submission of jobs below HTTP: checked and stored as a whole or not at all, once per idempotency key.

The fast path: jobs with a cached chain result are stored as Waiting right away. Results are cached in the
process that ran the chain. If the optimizers run in worker processes, the service has none, and all jobs go
to the workers.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, Engine

from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch, chain, enqueue, result_cache
from optimizers.chain.batch import BatchResult, status_update_from
from optimizers.chain.chain import ChainContext, ChainResult, make_context
from optimizers.description.expansion import JobMember
from optimizers.description.template_cache import DescriptionTemplate
from optimizers.submit.checking import CheckedJobs, Source, check_sources, record_as_text
from optimizers.submit.submitter import Submitter
from requirements.errors import InvalidJob, Problem
from taskqueue import blobs
from taskqueue.db import database
from taskqueue.errors import QuotaExceeded
from taskqueue.jobs import placeholders, submission
from taskqueue.jobs.descriptions import Description
from taskqueue.jobs.submission import DescribedJob, KnownResult, KnownResults, NewJob
from taskqueue.pools import pools
from taskqueue.task_queues import task_queues
from taskqueue.task_queues.task_queues import TaskQueueKey

__all__ = ["Accepted", "Source", "Submitter", "accept", "check_sources", "submit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Stored jobs of a submission."""

    job_ids: list[int]  #: in the order of the sources
    passed: BatchResult = field(default_factory=BatchResult)  #: result for the jobs that are Waiting already

    @property
    def due(self) -> list[int]:
        """Ids of the jobs that the optimizers have to process: notify them after the commit."""
        waiting = set(self.passed.waiting)
        return [job_id for job_id in self.job_ids if job_id not in waiting]


def accept(
    engine: Engine,
    config: Configuration,
    submitter: Submitter,
    sources: Sequence[Source],
    *,
    now: datetime,
    key: str | None = None,
    sandbox: str | None = None,
) -> Accepted:
    """Check a submission, then store it in a short transaction of its own; otherwise like `submit`."""

    def require_room(declared: Mapping[tuple[str, str], int]) -> None:
        with database.reading(engine) as conn:
            _require_room(conn, config, declared, now)

    checked = None
    try:
        checked = check_sources(config, submitter, sources, sandbox=sandbox, require_room=require_room)
    except (InvalidJob, QuotaExceeded):
        # It may have been accepted under this key before, with another configuration or when there was room.
        if key is None:
            raise
    with database.writing(engine) as conn:
        return submit(conn, config, submitter, sources, now=now, key=key, sandbox=sandbox, checked=checked)


def submit(
    conn: Connection,
    config: Configuration,
    submitter: Submitter,
    sources: Sequence[Source],
    *,
    now: datetime,
    key: str | None = None,
    sandbox: str | None = None,
    checked: Sequence[CheckedJobs] | None = None,
) -> Accepted:
    """Store the jobs of a submission of JDL, YAML or JSON texts, or records; each may make many jobs.

    `key`: idempotency key, repeating the submission with it returns the same ids. `sandbox`: reference of
    the archive that is the input sandbox of all jobs that name no other. Raises InvalidJob with the problems
    of every description, QuotaExceeded, or IdempotencyConflict; nothing is stored then. `checked`: the same
    submission, if it has been checked already.
    """
    if key is not None:
        digest = _digest(sources, sandbox)
        known = submission.reserve_key(conn, subject=submitter.subject, key=key, body_digest=digest, now=now)
        if known is not None:
            return Accepted(job_ids=known)

    def require_room(declared: Mapping[tuple[str, str], int]) -> None:
        _require_room(conn, config, declared, now)

    if checked is None:
        checked = check_sources(config, submitter, sources, sandbox=sandbox, require_room=require_room)
    stored = _store(conn, config, checked, now)
    if key is not None:
        submission.fulfil_key(conn, subject=submitter.subject, key=key, job_ids=stored.job_ids)
    return stored


def _store(
    conn: Connection, config: Configuration, checked: Sequence[CheckedJobs], now: datetime
) -> Accepted:
    _check_sandboxes(conn, checked, now)
    _require_room(conn, config, _count_new_jobs(checked), now)
    descriptions, new = _group_descriptions(checked)
    context = make_context(config, now)
    known = _skip_if_locked(conn, _find_known(descriptions, new, context))
    arrivals = _lock_arrivals(conn, known, new, context)
    job_ids = submission.store_jobs(conn, descriptions, new, arrivals=arrivals, now=now)
    return Accepted(job_ids=job_ids, passed=_build_result(known, new, job_ids))


def _require_room(
    conn: Connection, config: Configuration, new: Mapping[tuple[str, str], int], now: datetime
) -> None:
    submission.check_quota(conn, new, lambda vo: options_for(config, vo).limits, now=now)


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


def _count_new_jobs(checked: Sequence[CheckedJobs]) -> Counter[tuple[str, str]]:
    new: Counter[tuple[str, str]] = Counter()
    for each in checked:
        new[each.submitted.whose.vo, each.submitted.whose.owner] += len(each.submitted.members)
    return new


def _group_descriptions(checked: Sequence[CheckedJobs]) -> tuple[list[Description], list[DescribedJob]]:
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
    return Description(source=source, body=body, sandbox=submitted.sandbox)


def _new_job(checked: CheckedJobs, member: JobMember, *, alone: bool) -> NewJob:
    whose, description = checked.submitted.whose, member.description
    return NewJob(
        vo=whose.vo,
        owner=whose.owner,
        owner_group=whose.owner_group,
        job_name=member.own.get("job_name", description.job_name),
        job_type=description.job_type,
        job_group=member.own.get("job_group", description.job_group),
        priority=description.priority,
        parameters=None if alone else member.parameters,
        site=description.sites[0]
        if len(description.sites) == 1
        else "Multiple"
        if description.sites
        else "ANY",
    )


#: Cached chain result by index of the description.
_KnownJobs = Mapping[int, ChainResult]


def _find_known(
    described: Sequence[Description], placed: Sequence[DescribedJob], context: ChainContext
) -> _KnownJobs:
    """Return the cached chain results of jobs that are about to be stored.

    Empty for more jobs than one batch: other submissions would wait too long for locked task queues.
    """
    if len(placed) > batch.MOST_AT_ONCE:
        return {}
    steps = chain.installed_steps()
    found: dict[int, ChainResult] = {}
    for place, job in dict(placed).items():
        body = json.dumps(described[place].body)
        shared = job.parameters is not None
        if (known := result_cache.find_result(body, job.vo, steps, context, shared=shared)) is not None:
            found[place] = known
    return found


def _skip_if_locked(conn: Connection, known: _KnownJobs) -> _KnownJobs:
    """Return `known`, or nothing if another transaction holds one of the pools: submissions do not wait."""
    candidates = [each.candidate for each in known.values()]
    pool_ids = {each.pool.pool_id for each in candidates if each and each.pool}
    return known if pools.try_lock(conn, pool_ids) else {}


def _lock_arrivals(
    conn: Connection, known: _KnownJobs, placed: Sequence[DescribedJob], context: ChainContext
) -> KnownResults:
    """Return state and task queue of those jobs; their pools and task queues are locked from here on."""
    if not known:
        return {}
    candidates = {place: each for place, chain_result in known.items() if (each := chain_result.candidate)}
    matchable = enqueue.touch_pools(conn, candidates.values(), context)
    wanted: dict[int, TaskQueueKey] = {}
    for place, job in dict(placed).items():
        if place in candidates and (asked := candidates[place].requirement_class):
            wanted[place] = asked, job.owner_group, job.owner
    ids = task_queues.hold_task_queues(conn, set(wanted.values()), now=context.now)
    return {
        place: KnownResult(
            verdict=status_update_from(known[place], candidates[place].vo, context, matchable),
            task_queue_id=ids[where],
        )
        for place, where in wanted.items()
    }


def _build_result(known: _KnownJobs, placed: Sequence[DescribedJob], job_ids: Sequence[int]) -> BatchResult:
    """Return the same result as if the optimizers had processed the jobs."""
    jobs = Counter(place for place, _ in placed)
    return BatchResult(
        waiting=tuple(job_id for job_id, (place, _) in zip(job_ids, placed, strict=True) if place in known),
        outcomes=batch.count_outcomes((chain_result, jobs[place]) for place, chain_result in known.items()),
    )
