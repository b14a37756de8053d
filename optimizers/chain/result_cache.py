"""Cache of chain results, shared by equal jobs, and the conversion of stored jobs to the chain's input."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from cs_config.cache import Cache, derived
from cs_config.options import keywords
from cs_config.tree.configuration import Configuration
from optimizers.chain import chain
from optimizers.chain.chain import ChainContext, ChainResult, Done, JobContext, Step
from optimizers.description import description
from optimizers.description.description import JobDescription
from optimizers.description.parametric import JobMember
from optimizers.submit.submitter import Ownership
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


#: Cached results; one takes some kilobytes.
_MOST_KEPT: Final = 20_000
#: Characters of a stored description; results of longer ones are cached for their batch only.
_SHORT: Final = 16_384

#: Attributes of the keywords on which no result depends.
_PARTICULAR: Final = frozenset(keywords.BY_NAME[name].attribute for name in keywords.PARTICULAR)
#: What the result depends on: description, VO, step that held the job, reschedulings, whether it was matched,
#: whether its sandbox is missing.
_JobKey = tuple[str, str, str | None, int, bool, bool]


@derived
def _known_results(_config: Configuration) -> Cache[Hashable, ChainResult]:
    """Successes by cache key, with the installed steps as generation; failures are computed again."""
    return Cache(_MOST_KEPT)


def run_or_reuse(
    jobs: Sequence[PreparingJob], steps: Mapping[str, Step], context: ChainContext
) -> list[tuple[PreparingJob, ChainResult]]:
    """Return each job with its chain result, which equal jobs share."""
    here: dict[Hashable, ChainResult] = {}  # results of this batch
    return [(job, _run_or_reuse(job, steps, context, here)) for job in jobs]


def _run_or_reuse(
    job: PreparingJob, steps: Mapping[str, Step], context: ChainContext, here: dict[Hashable, ChainResult]
) -> ChainResult:
    key = _job_key(job)
    known = _known_results(context.config)
    found = None if key is None else here.get(key) or known.find(key, steps)
    if found is None:
        found = chain.run_chain(job_context_from_row(job, context), steps, context)
        if key is not None and found.pure:
            here[key] = found
            if isinstance(found.outcome, Done) and len(key[0]) <= _SHORT:
                known.store(key, found, steps)
    return found


def decide(
    members: Iterable[tuple[Ownership, JobMember]], steps: Mapping[str, Step], context: ChainContext
) -> list[ChainResult | None]:
    """Run the chain for jobs before they are stored, without any I/O; a result for each.

    It is the result of `run_or_reuse` for the stored job: both run `run_chain` for an equal description.
    None: a step is not pure; it was not run. Jobs of one description, which have one owner, share a result
    if they differ in particular keywords only; it is not cached, since the pure steps take microseconds.
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


def _job_key(job: PreparingJob) -> _JobKey | None:
    kind = _description_key(job.body, job.vo, shared=job.parameters is not None)
    if kind is None or (job.parameters is not None and not _readable(job.parameters)):
        return None
    return (*kind, job.step, job.reschedules, job.epoch > 0, job.sandbox_gone)


def _description_key(body: str, vo: str, *, shared: bool) -> tuple[str, str] | None:
    """Cache key of a description; None: the result may differ between its jobs."""
    asked = (_cached_short if len(body) <= _SHORT else _cached_long)(body)
    if shared and (asked == body or "%" in asked):
        return None
    return asked, vo


def _read_body(body: str) -> str:
    """Return the part of a description that determines the result; all of it if that cannot be separated."""
    try:
        stated = json.loads(body).items()
        asked = json.dumps({name: value for name, value in stated if name not in keywords.PARTICULAR})
    except (ValueError, AttributeError):
        return body
    # An expression with `MY.X` may depend on keywords that jobs do not share.
    return body if description.may_refer_to_own(asked) else asked


#: Fewer entries for long descriptions: the jobs of a batch often share one.
_cached_short, _cached_long = lru_cache(maxsize=4096)(_read_body), lru_cache(maxsize=16)(_read_body)


def _readable(parameters: str) -> bool:
    try:
        return isinstance(json.loads(parameters), dict)
    except ValueError:
        return False
