"""Cache of chain results, shared by equal jobs, and the conversion of stored jobs to the chain's input."""

import json
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from cs_config.cache import Cache, derived
from cs_config.options import keywords
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.chain import chain
from optimizers.chain.chain import ChainContext, ChainResult, Done, JobContext, Step
from optimizers.description import description
from optimizers.description.description import JobDescription
from requirements.errors import InvalidInput, Problem
from taskqueue.jobs import placeholders
from taskqueue.jobs.optimizer_queue import PreparingJob

#: Replaces a description that cannot be read; JobSanity fails its job.
_UNREADABLE = JobDescription(executable="", cpu_time=0)


def job_context_from_row(job: PreparingJob, context: ChainContext) -> JobContext:
    """Convert a stored job to the input of the chain; its description is parsed with the current options."""
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
            return description.parse_description(filled, options), (), None
        except InvalidInput as invalid:
            description.parse_description(filled, options, with_defaults=False)
            return _UNREADABLE, (), "; ".join(str(problem) for problem in invalid.problems)
    except InvalidInput as invalid:
        return _UNREADABLE, invalid.problems, None
    except (ValueError, TypeError, AttributeError) as error:
        return _UNREADABLE, (Problem(path="description", message=f"cannot be read: {error}"),), None


#: Cached results; one takes some kilobytes.
_MOST_KEPT: Final = 20_000
#: Characters of a stored description; results of longer ones are cached for their batch only.
_SHORT: Final = 16_384

#: Key of a new job: not held by any step, never rescheduled, sandbox present.
_NEW: Final = (None, 0, False)


@derived
def _known_results(_config: Configuration) -> Cache[Hashable, ChainResult]:
    """Successes by cache key, with the installed steps as generation; failures are computed again."""
    return Cache(_MOST_KEPT)


@derived
def _limits_particulars(config: Configuration, vo: str) -> bool:
    """Whether options of the VO limit keywords that jobs do not share."""
    return not keywords.PARTICULAR_FOLDED.isdisjoint(options_for(config, vo).job_description.declared_by_name)


def run_or_reuse(
    jobs: Sequence[PreparingJob], steps: Mapping[str, Step], context: ChainContext
) -> list[tuple[PreparingJob, ChainResult]]:
    """Return each job with its chain result, which equal jobs share."""
    here: dict[Hashable, ChainResult] = {}  # results of this batch
    return [(job, _run_or_reuse(job, steps, context, here)) for job in jobs]


def _run_or_reuse(
    job: PreparingJob, steps: Mapping[str, Step], context: ChainContext, here: dict[Hashable, ChainResult]
) -> ChainResult:
    key = _job_key(job, context)
    known = _known_results(context.config)
    found = here.get(key) or known.find(key, steps)
    if found is not None:
        return found
    chain_result = chain.run_chain(job_context_from_row(job, context), steps, context)
    if chain_result.alike and key is not None:
        here[key] = chain_result
        if isinstance(chain_result.outcome, Done) and len(job.body) <= _SHORT:
            known.store(key, chain_result, steps)
    return chain_result


def find_result(
    body: str, vo: str, steps: Mapping[str, Step], context: ChainContext, *, shared: bool
) -> ChainResult | None:
    """Return the cached result for new jobs with this description; None: the chain has to run.

    `shared`: the description has placeholders that each job fills with its own values.
    """
    kind = _description_key(body, vo, context, shared=shared)
    return None if kind is None else _known_results(context.config).find((*kind, *_NEW), steps)


def _job_key(job: PreparingJob, context: ChainContext) -> Hashable | None:
    kind = _description_key(job.body, job.vo, context, shared=job.parameters is not None)
    if kind is None or (job.parameters is not None and not _readable(job.parameters)):
        return None
    return (*kind, job.step, job.reschedules, job.sandbox_gone)


def _description_key(body: str, vo: str, context: ChainContext, *, shared: bool) -> tuple[str, str] | None:
    """Cache key of a description; None: the result may differ between its jobs."""
    asked = (_cached_short if len(body) <= _SHORT else _cached_long)(body)
    if shared and (asked == body or "%" in asked):
        return None
    return None if _limits_particulars(context.config, vo) else (asked, vo)


def _read_body(body: str) -> str:
    """Return the part of a description that determines the result; all of it if that cannot be separated."""
    try:
        asked = json.dumps(keywords.without_particulars(json.loads(body)))
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
