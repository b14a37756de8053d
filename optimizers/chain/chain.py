"""What the steps of a chain may ask besides the job itself.

A job on its way through the chain, with what the steps have found out about it.

What a step of the chain says about a job.

Steps to which jobs that ask the same are alike.

Such a step looks at nothing but the configuration and what a job asks: its description without the keywords
of `keywords.PARTICULAR`, its VO, how often it was taken back, which step held it, whether its sandbox is
gone. So it is asked once for all jobs that have these in common.

A job's way through the steps, one after the other. Pure: what is decided here is written by `batch`.

A job that was held goes through all steps again, in front of the configuration as it is then; only
delays that are over are not waited for twice (`Candidate.held_by`).

The optimizers of this installation, found by entry point `pilotage.optimizers`.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final, TypeVar

from cs_config.classes.class_index import EligibleClass
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.tree.configuration import Configuration
from optimizers.chain import eligibility
from optimizers.chain.eligibility import Eligibility
from optimizers.description.description import JobDescription
from optimizers.steps import replica_catalogue
from optimizers.steps.replica_catalogue import CatalogueOpener, ReplicaCatalogue, open_catalogue
from requirements.canonical import Requirements
from requirements.errors import Problem
from taskqueue.task_queues.requirement_class import RequirementClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainContext:
    """One version of the configuration at one time, the same for all jobs of a batch."""

    config: Configuration
    now: datetime
    eligibility: Eligibility
    catalogues: Mapping[str, CatalogueOpener]  #: plug-ins by name

    def operations(self, vo: str) -> VoOptions:
        """The options that hold for a VO."""
        return options_for(self.config, vo)

    def catalogue(self, vo: str) -> ReplicaCatalogue | None:
        """Where the VO's replicas are written down; None: nowhere.

        Raises:
            CatalogueUnavailableError: It cannot be opened now.
        """
        setting = self.operations(vo).job_scheduling.input_data_catalogue
        return open_catalogue(setting, self.catalogues) if setting else None


def make_context(config: Configuration, now: datetime) -> ChainContext:
    """What there is to ask at a time."""
    config = config.at_moment(now)
    return ChainContext(
        config=config,
        now=now,
        eligibility=eligibility.eligibility_of(config),
        catalogues=replica_catalogue.installed_catalogues(),
    )


#: Minor status of a job that waits for a pilot, as DIRAC calls it.
WAITS_FOR_PILOT = "Pilot Agent Submission"
#: Minor status of a job that no queue of the configuration is eligible for.
NO_ELIGIBLE_QUEUE = "No eligible queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPool:
    """The SubmitPool of a job with the queue classes that are eligible for it."""

    pool_id: str
    requirements: Requirements
    canonical: str  #: the form of them that the id is of
    queue_classes: Collection[EligibleClass]

    @property
    def digests(self) -> dict[str, bool]:
        """The digests of the queue classes, each with whether its nodes decide."""
        return {each.queue_class.digest: each.undecided for each in self.queue_classes}

    @property
    def sites(self) -> frozenset[str]:
        """The sites that own an eligible queue."""
        return frozenset(queue.site for each in self.queue_classes for queue in each.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """One job in front of the optimizers; immutable, a step hands on a changed copy."""

    job_id: int
    vo: str
    owner: str
    owner_group: str
    description: JobDescription
    problems: tuple[
        Problem, ...
    ] = ()  #: what is wrong with the description in front of today's configuration
    config_fault: str | None = None  #: why today's defaults do not go with the description, which is right
    sandbox_gone: bool = False  #: it has an input sandbox, and the blob is not stored any more
    reschedules: int = 0  #: how often it was taken back already
    held_by: str | None = None  #: the step that held it last time; its delay is over
    path: tuple[str, ...] = ()  #: names of the steps after JobPath, in order
    data_sites: frozenset[str] | None = None  #: sites with all its input data; None: it needs none
    pool: ResolvedPool | None = None  #: None: it has no Requirements
    requirement_class: RequirementClass | None = None  #: what matching will look at
    site: str = "ANY"  #: what is shown as its site until it has one
    minor_status: str = WAITS_FOR_PILOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The step has nothing against the job; the next one may look at it."""

    candidate: JobContext  #: with what the step found out


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The job has to wait for something that passes; the step looks again."""

    reason: str  #: shown to the owner
    delay: timedelta | None = None  #: when to look again; None: the configured `HoldTime`


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job can never run as it is."""

    reason: str  #: shown to the owner


Outcome = Done | Hold | Failed

_MARK: Final = "_alike"

_Step = TypeVar("_Step", bound=Callable[..., Any])


def cacheable(step: _Step) -> _Step:
    """Mark a step: what it says of one job it says of all that ask the same."""
    setattr(step, _MARK, True)
    return step


def is_cacheable(step: Callable[..., Any] | None) -> bool:
    """Whether a step has the mark."""
    return getattr(step, _MARK, False)


Step = Callable[[JobContext, ChainContext], Outcome]

#: The step that every job begins with: it says which others follow.
FIRST = "JobPath"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainResult:
    """How far a job came, and what the last step that looked at it said."""

    outcome: Outcome
    step: str  #: the one that said so
    passed: tuple[str, ...]  #: the steps that let it through, in order
    alike: bool = False  #: nothing was looked at that jobs which ask the same could differ in

    @property
    def candidate(self) -> JobContext | None:
        """The job as it came through; None: it did not."""
        return self.outcome.candidate if isinstance(self.outcome, Done) else None


def run_chain(candidate: JobContext, steps: Mapping[str, Step], context: ChainContext) -> ChainResult:
    """Lead a job through `JobPath` and the steps that this one names, until one holds or fails it."""
    passed: list[str] = []
    asked = [FIRST]
    outcome = _run_step(FIRST, candidate, steps, context)
    name = FIRST
    while isinstance(outcome, Done):
        passed.append(name)
        if len(passed) > len(outcome.candidate.path):
            break
        name = outcome.candidate.path[len(passed) - 1]
        asked.append(name)
        outcome = _run_step(name, outcome.candidate, steps, context)
    if isinstance(outcome, Done) and outcome.candidate.requirement_class is None:
        outcome = Failed(
            reason=f"{name} is the last optimizer and did not say what the job asks of a resource"
        )
    same = all(is_cacheable(steps.get(each)) for each in asked)
    return ChainResult(outcome=outcome, step=name, passed=tuple(passed), alike=same)


def _run_step(name: str, candidate: JobContext, steps: Mapping[str, Step], context: ChainContext) -> Outcome:
    """What a step says; a defect of a step holds the one job that shows it, not its batch.

    A job waits for a step that only the configuration names and nobody has installed.
    """
    step = steps.get(name)
    if step is None:
        reason = f"there is no optimizer {name}, installed are {', '.join(sorted(steps))}"
        return Failed(reason=reason) if name in candidate.description.job_path else Hold(reason=reason)
    try:
        return step(candidate, context)
    except Exception as error:
        log.exception("optimizer %s broke on job %d", name, candidate.job_id)
        return Hold(reason=f"the optimizer broke: {type(error).__name__}: {error}"[:500])


@cache
def installed_steps() -> Mapping[str, Step]:
    """Every installed step by its name; ours are entry points like any other."""
    return MappingProxyType({point.name: point.load() for point in entry_points(group="pilotage.optimizers")})
