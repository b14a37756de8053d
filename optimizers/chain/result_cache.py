"""From a stored job to a candidate of the chain.

What the chain said about jobs, remembered for those that ask the same.
"""

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
from taskqueue.jobs import descriptions
from taskqueue.jobs.optimizer_queue import PreparingJob

#: Stands for a description that cannot be read; JobSanity fails its job.
_UNREADABLE = JobDescription(executable="", cpu_time=0)


def job_context_from_row(job: PreparingJob, context: ChainContext) -> JobContext:
    """The job as the steps see it, its description read with the options of today."""
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
    """The description, what is wrong with it, and what of that is a fault of the configuration."""
    options = context.operations(job.vo)
    try:
        members = json.loads(job.parameters) if job.parameters else None
        filled = descriptions.fill_placeholders(json.loads(job.body), members)
        try:
            return description.parse_description(filled, options), (), None
        except InvalidInput as invalid:
            description.parse_description(filled, options, with_defaults=False)
            return _UNREADABLE, (), "; ".join(str(problem) for problem in invalid.problems)
    except InvalidInput as invalid:
        return _UNREADABLE, invalid.problems, None
    except (ValueError, TypeError, AttributeError) as error:
        return _UNREADABLE, (Problem(path="description", message=f"cannot be read: {error}"),), None


#: Passages that are kept; one is some kilobytes.
_MOST_KEPT: Final = 20_000
#: Characters of a stored description up to which that holds; what is longer is remembered for its batch.
_SHORT: Final = 16_384

#: Of a job that nobody has looked at: no step held it, it was never taken back, its sandbox is there.
_NEW: Final = (None, 0, False)


class ResultCache:
    """Those through the same steps in front of one configuration; safe in several threads."""

    def __init__(self, config: Configuration, steps: Mapping[str, Step]) -> None:
        self.config = config
        self.steps = steps
        self._known: OrderedDict[Hashable, ChainResult] = OrderedDict()
        self._bounded: dict[str, bool] = {}  # by VO: its options limit what each job has for itself
        self._lock = Lock()

    def result_of(
        self, jobs: Sequence[PreparingJob], context: ChainContext
    ) -> list[tuple[PreparingJob, ChainResult]]:
        """Each of the jobs with its passage, which those that ask the same share."""
        here: dict[Hashable, ChainResult] = {}
        return [(job, self._result_of(job, context, here)) for job in jobs]

    def result_of_new(self, body: str, vo: str, context: ChainContext, *, shared: bool) -> ChainResult | None:
        """What the chain will say of new jobs with this description; None: it has to be asked.

        Args:
            body: JSON object, the description.
            vo: Of the jobs.
            context: What there is to ask now.
            shared: Whether the description has placeholders, for which each job has values of its own.
        """
        kind = self._kind(body, vo, context, shared=shared)
        return None if kind is None else self._known.get((*kind, *_NEW))

    def _result_of(
        self, job: PreparingJob, context: ChainContext, here: dict[Hashable, ChainResult]
    ) -> ChainResult:
        """The passage of one job; `here` are those of its batch."""
        key = self._key(job, context)
        known = here.get(key) or self._known.get(key)
        if known is not None:
            return known
        passage = chain.run_chain(job_context_from_row(job, context), self.steps, context)
        if passage.alike and key is not None:
            here[key] = passage
            if len(job.body) <= _SHORT:
                self._keep(key, passage)
        return passage

    def _keep(self, key: Hashable, passage: ChainResult) -> None:
        """Remember what went well for later batches; a refusal is found anew."""
        if not isinstance(passage.outcome, Done):
            return
        with self._lock:
            self._known[key] = passage
            if len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)

    def _key(self, job: PreparingJob, context: ChainContext) -> Hashable | None:
        """What jobs that ask the same have in common; None: nobody asks the same."""
        shared = job.parameters is not None
        kind = self._kind(job.body, job.vo, context, shared=shared)
        if kind is None or (job.parameters is not None and not _readable(job.parameters)):
            return None
        return (*kind, job.step, job.reschedules, job.sandbox_gone)

    def _kind(self, body: str, vo: str, context: ChainContext, *, shared: bool) -> tuple[str, str] | None:
        """The same of descriptions; None: it may be another for each job."""
        asked = _cache_key(body)
        if shared and (asked == body or "%" in asked):
            return None
        if vo not in self._bounded:
            bounds = context.operations(vo).job_description.bounds
            self._bounded[vo] = not keywords.PARTICULAR_FOLDED.isdisjoint(bounds)
        return None if self._bounded[vo] else (asked, vo)


_latest: list[ResultCache] = []


def result_cache_of(config: Configuration, steps: Mapping[str, Step]) -> ResultCache:
    """Those of this configuration, shared by all batches of the process while it is current."""
    for known in _latest:
        if known.config is config and known.steps == steps:
            return known
    made = ResultCache(config, steps)
    _latest[:] = [made]
    return made


def _cache_key(body: str) -> str:
    """What of a description says what it asks; all of it where that cannot be told apart."""
    return (_asked_shortly if len(body) <= _SHORT else _asked_at_length)(body)


def _read_body(body: str) -> str:
    try:
        asked = json.dumps(keywords.without_particulars(json.loads(body)))
    except (ValueError, AttributeError):
        return body
    # With `MY.X` in an expression a particular may change what is asked after all.
    return body if description.may_refer_to_own(asked) else asked


#: Few of those that may be long: the jobs of a batch often share one.
_asked_shortly, _asked_at_length = lru_cache(maxsize=4096)(_read_body), lru_cache(maxsize=16)(_read_body)


def _readable(parameters: str) -> bool:
    try:
        return isinstance(json.loads(parameters), dict)
    except ValueError:
        return False
