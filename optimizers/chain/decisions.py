"""Decisions of the chain on new and on stored jobs: equal jobs of a batch share a result."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cs_config.options import keywords
from optimizers.chain import chain
from optimizers.chain.chain import ChainContext, ChainResult, JobContext, Step
from optimizers.description import description
from optimizers.description.description import JobDescription
from optimizers.description.parametric import JobMember
from optimizers.submit.submitter import Ownership
from requirements import kept
from requirements.errors import InvalidInput, Problem
from taskqueue.jobs import placeholders
from taskqueue.jobs.optimizer_queue import PreparingJob

#: Replaces a description that cannot be read; JobSanity fails its job.
_UNREADABLE = JobDescription(executable="", cpu_time=0)


def job_context_from_row(job: PreparingJob, context: ChainContext) -> JobContext:
    """Convert a stored job to the input of the chain, with the current defaults in its description."""
    read, problems, fault = _read_description(job, context)
    return JobContext(
        job_id=job.job_id,
        vo=job.vo,
        owner=job.owner,
        owner_group=job.owner_group,
        description=read,
        problems=problems,
        config_fault=fault,
        sandbox_gone=job.sandbox_gone,
        reschedules=job.reschedules,
        was_matched=job.epoch > 0,
        held_by=job.step,
    )


def _read_description(
    job: PreparingJob, context: ChainContext
) -> tuple[JobDescription, tuple[Problem, ...], str | None]:
    """Return the description, its problems, and the problem that the configured defaults cause."""
    options = context.operations(job.vo)
    try:
        members = json.loads(job.parameters) if job.parameters else None
        filled = placeholders.fill_placeholders(json.loads(job.body), members)
        try:
            return description.parse_description(filled, options, is_accepted=True), (), None
        except InvalidInput as invalid:
            description.parse_description(filled, options, with_defaults=False, is_accepted=True)
            return _UNREADABLE, (), "; ".join(str(problem) for problem in invalid.problems)
    except InvalidInput as invalid:
        return _UNREADABLE, invalid.problems, None
    except (ValueError, TypeError, AttributeError) as error:
        return _UNREADABLE, (Problem(path="description", message=f"cannot be read: {error}"),), None


#: Attributes of the keywords on which no result depends.
_PARTICULAR: Final = frozenset(keywords.BY_NAME[name].attribute for name in keywords.PARTICULAR)


def decide_stored(
    jobs: Sequence[PreparingJob], steps: Mapping[str, Step], context: ChainContext
) -> list[tuple[PreparingJob, ChainResult]]:
    """Run the chain for stored jobs; each with its result, which equal jobs share."""
    kinds = {body: _read_kind(body) for body in {job.body for job in jobs}}
    shared: dict[_JobKey, ChainResult] = {}
    decided: list[tuple[PreparingJob, ChainResult]] = []
    for job in jobs:
        key = _find_key(job, kinds[job.body])
        found = None if key is None else shared.get(key)
        if found is None:
            with kept.count_for(job.vo):
                found = chain.run_chain(job_context_from_row(job, context), steps, context)
        if key is not None and found.pure:
            shared[key] = found
        decided.append((job, found))
    return decided


#: What the result depends on: description, VO, step that held the job, reschedulings, whether it was matched,
#: whether its sandbox is missing.
_JobKey = tuple[str, str, str | None, int, bool, bool]


def _find_key(job: PreparingJob, kind: str) -> _JobKey | None:
    """What a job's result depends on; None: the result may differ from that of any other job."""
    depends_on_own = kind == job.body or "%" in kind
    if job.parameters is not None and (depends_on_own or not _is_readable(job.parameters)):
        return None
    return kind, job.vo, job.step, job.reschedules, job.epoch > 0, job.sandbox_gone


def _read_kind(body: str) -> str:
    """Return the part of a description that determines the result; all of it if that cannot be separated."""
    try:
        stated = json.loads(body).items()
        kind = json.dumps({name: value for name, value in stated if name not in keywords.PARTICULAR})
    except (ValueError, AttributeError):
        return body
    # An expression with `MY.X` may depend on keywords that jobs do not share.
    return body if description.may_refer_to_own(kind) else kind


def _is_readable(parameters: str) -> bool:
    try:
        return isinstance(json.loads(parameters), dict)
    except ValueError:
        return False


def decide(
    members: Iterable[tuple[Ownership, JobMember]], steps: Mapping[str, Step], context: ChainContext
) -> list[ChainResult | None]:
    """Run the chain for jobs before they are stored, without any I/O; a result for each.

    It is the result of `decide_stored` for the stored job: both run `run_chain` for an equal description.
    None: a step is not pure; it was not run. Jobs of one description, which have one owner, share a result
    if they differ in particular keywords only.
    """
    # A step that is not pure is missing here, and so the result is not pure either.
    pure = {name: step for name, step in steps.items() if chain.is_pure(step)}
    shared: dict[int, ChainResult] = {}  # by description
    decided: list[ChainResult | None] = []
    for whose, member in members:
        is_shared = member.own.keys() <= _PARTICULAR
        found = shared.get(id(member.description)) if is_shared else None
        if found is None:
            candidate = JobContext(
                job_id=0,
                vo=whose.vo,
                owner=whose.owner,
                owner_group=whose.owner_group,
                description=member.whole,
            )
            found = chain.run_chain(candidate, pure, context)
        if is_shared:
            shared[id(member.description)] = found
        decided.append(found if found.pure else None)
    return decided
