"""Cache of chain results, shared by equal jobs, and the conversion of stored jobs to the chain's input."""

import json
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Final

from cs_config.options import keywords
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


class ResultCache:
    """Chain results for one set of steps and one configuration; thread-safe."""

    def __init__(self, config: Configuration, steps: Mapping[str, Step]) -> None:
        self.config = config
        self.steps = steps
        self._known: OrderedDict[Hashable, ChainResult] = OrderedDict()
        self._bounded: dict[str, bool] = {}  # by VO: its options limit keywords that jobs do not share
        self._lock = Lock()

    def result_of(
        self, jobs: Sequence[PreparingJob], context: ChainContext
    ) -> list[tuple[PreparingJob, ChainResult]]:
        """Return each job with its chain result, which equal jobs share."""
        here: dict[Hashable, ChainResult] = {}
        return [(job, self._result_of(job, context, here)) for job in jobs]

    def result_of_new(self, body: str, vo: str, context: ChainContext, *, shared: bool) -> ChainResult | None:
        """Return the cached result for new jobs with this description; None: the chain has to run.

        Args:
            body: The description as a JSON object.
            vo: VO of the jobs.
            context: Context of the chain.
            shared: Whether the description has placeholders that each job fills with its own values.
        """
        kind = self._kind(body, vo, context, shared=shared)
        return None if kind is None else self._known.get((*kind, *_NEW))

    def _result_of(
        self, job: PreparingJob, context: ChainContext, here: dict[Hashable, ChainResult]
    ) -> ChainResult:
        """Return the result for one job; `here` holds the results of its batch."""
        key = self._key(job, context)
        known = here.get(key) or self._known.get(key)
        if known is not None:
            return known
        chain_result = chain.run_chain(job_context_from_row(job, context), self.steps, context)
        if chain_result.alike and key is not None:
            here[key] = chain_result
            if len(job.body) <= _SHORT:
                self._keep(key, chain_result)
        return chain_result

    def _keep(self, key: Hashable, chain_result: ChainResult) -> None:
        """Cache a success for later batches; failures are computed again."""
        if not isinstance(chain_result.outcome, Done):
            return
        with self._lock:
            self._known[key] = chain_result
            if len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)

    def _key(self, job: PreparingJob, context: ChainContext) -> Hashable | None:
        """Cache key of a job; None: not cacheable."""
        shared = job.parameters is not None
        kind = self._kind(job.body, job.vo, context, shared=shared)
        if kind is None or (job.parameters is not None and not _readable(job.parameters)):
            return None
        return (*kind, job.step, job.reschedules, job.sandbox_gone)

    def _kind(self, body: str, vo: str, context: ChainContext, *, shared: bool) -> tuple[str, str] | None:
        """Cache key of a description; None: the result may differ between its jobs."""
        asked = _cache_key(body)
        if shared and (asked == body or "%" in asked):
            return None
        if vo not in self._bounded:
            bounds = context.operations(vo).job_description.bounds
            self._bounded[vo] = not keywords.PARTICULAR_FOLDED.isdisjoint(bounds)
        return None if self._bounded[vo] else (asked, vo)


_latest: list[ResultCache] = []


def result_cache_of(config: Configuration, steps: Mapping[str, Step]) -> ResultCache:
    """Return the cache of this configuration, shared by all batches of the process while it is current."""
    for known in _latest:
        if known.config is config and known.steps == steps:
            return known
    made = ResultCache(config, steps)
    _latest[:] = [made]
    return made


def _cache_key(body: str) -> str:
    """Return the part of a description that determines the result; all of it if that cannot be separated."""
    return (_cached_short if len(body) <= _SHORT else _cached_long)(body)


def _read_body(body: str) -> str:
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
