"""What the chain said about jobs, remembered for those that ask the same."""

import json
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Final

from cs_config import keywords
from cs_config.configuration import Configuration
from optimizers import chain, own_side
from optimizers.chain import Passage, Step
from optimizers.context import Context
from optimizers.outcome import Done
from optimizers.stored_job import candidate_of
from taskqueue.preparing import PreparingJob

#: Passages that are kept; one is some kilobytes.
_MOST_KEPT: Final = 20_000
#: Characters of a stored description up to which that holds; what is longer is remembered for its batch.
_SHORT: Final = 16_384

#: Of a job that nobody has looked at: no step held it, it was never taken back, its sandbox is there.
_NEW: Final = (None, 0, False)


class Passages:
    """Those through the same steps in front of one configuration; safe in several threads."""

    def __init__(self, config: Configuration, steps: Mapping[str, Step]) -> None:
        self.config = config
        self.steps = steps
        self._known: OrderedDict[Hashable, Passage] = OrderedDict()
        self._bounded: dict[str, bool] = {}  # by VO: its options limit what each job has for itself
        self._lock = Lock()

    def of(self, jobs: Sequence[PreparingJob], context: Context) -> list[tuple[PreparingJob, Passage]]:
        """Each of the jobs with its passage, which those that ask the same share."""
        here: dict[Hashable, Passage] = {}
        return [(job, self._of(job, context, here)) for job in jobs]

    def of_new(self, body: str, vo: str, context: Context, *, shared: bool) -> Passage | None:
        """What the chain will say of new jobs with this description; None: it has to be asked.

        Args:
            body: JSON object, the description.
            vo: Of the jobs.
            context: What there is to ask now.
            shared: Whether the description has placeholders, for which each job has values of its own.
        """
        kind = self._kind(body, vo, context, shared=shared)
        return None if kind is None else self._known.get((*kind, *_NEW))

    def _of(self, job: PreparingJob, context: Context, here: dict[Hashable, Passage]) -> Passage:
        """The passage of one job; `here` are those of its batch."""
        key = self._key(job, context)
        known = here.get(key) or self._known.get(key)
        if known is not None:
            return known
        passage = chain.run(candidate_of(job, context), self.steps, context)
        if passage.alike and key is not None:
            here[key] = passage
            if len(job.body) <= _SHORT:
                self._keep(key, passage)
        return passage

    def _keep(self, key: Hashable, passage: Passage) -> None:
        """Remember what went well for later batches; a refusal is found anew."""
        if not isinstance(passage.outcome, Done):
            return
        with self._lock:
            self._known[key] = passage
            if len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)

    def _key(self, job: PreparingJob, context: Context) -> Hashable | None:
        """What jobs that ask the same have in common; None: nobody asks the same."""
        shared = job.parameters is not None
        kind = self._kind(job.body, job.vo, context, shared=shared)
        if kind is None or (job.parameters is not None and not _readable(job.parameters)):
            return None
        return (*kind, job.step, job.reschedules, job.sandbox_gone)

    def _kind(self, body: str, vo: str, context: Context, *, shared: bool) -> tuple[str, str] | None:
        """The same of descriptions; None: it may be another for each job."""
        asked = _asked(body)
        if shared and (asked == body or "%" in asked):
            return None
        if vo not in self._bounded:
            bounds = context.operations(vo).job_description.bounds
            self._bounded[vo] = not keywords.PARTICULAR_FOLDED.isdisjoint(bounds)
        return None if self._bounded[vo] else (asked, vo)


_latest: list[Passages] = []


def of(config: Configuration, steps: Mapping[str, Step]) -> Passages:
    """Those of this configuration, shared by all batches of the process while it is current."""
    for known in _latest:
        if known.config is config and known.steps == steps:
            return known
    made = Passages(config, steps)
    _latest[:] = [made]
    return made


def _asked(body: str) -> str:
    """What of a description says what it asks; all of it where that cannot be told apart."""
    return (_asked_shortly if len(body) <= _SHORT else _asked_at_length)(body)


def _read(body: str) -> str:
    try:
        asked = json.dumps(keywords.without_particulars(json.loads(body)))
    except (ValueError, AttributeError):
        return body
    # With `MY.X` in an expression a particular may change what is asked after all.
    return body if own_side.may_be_asked(asked) else asked


#: Few of those that may be long: the jobs of a batch often share one.
_asked_shortly, _asked_at_length = lru_cache(maxsize=4096)(_read), lru_cache(maxsize=16)(_read)


def _readable(parameters: str) -> bool:
    try:
        return isinstance(json.loads(parameters), dict)
    except ValueError:
        return False
