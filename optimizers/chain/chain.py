"""The optimizer chain: runs the steps for one job, one after the other. Pure; `batch` stores the result.

A job that was held goes through all steps again with the configuration of that time; only delays that have
already passed are skipped (`JobContext.held_by`).

A *pure* step does no I/O, and depends only on the context and on what jobs can have in common: the
description without the keywords of `keywords.PARTICULAR`, the VO, the number of reschedulings, the step that
held the job, and whether its sandbox is missing. It runs once for all jobs that are equal in these, and small
submissions run it before they are stored.

Steps are found by the entry point `pilotage.optimizers`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final, TypeVar

from cs_config.classes.queue_class_index import EligibleClasses, classes_of_pool
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from cs_config.tree.configuration import Configuration
from optimizers.description.description import JobDescription
from optimizers.steps import replica_catalogue
from optimizers.steps.replica_catalogue import CatalogueOpener, ReplicaCatalogue, open_catalogue
from requirements.canonical import Requirements
from requirements.errors import Problem
from requirements.requirement_class import RequirementClass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainContext:
    """One version of the configuration at one time, shared by all jobs of a batch."""

    config: Configuration
    now: datetime
    catalogues: Mapping[str, CatalogueOpener]  #: plug-ins by name
    #: Folded names of the sites that operators have banned now; read where a VO fails jobs for them.
    banned_sites: frozenset[str] = frozenset()

    def operations(self, vo: str) -> VoOptions:
        """The options of a VO."""
        return options_for(self.config, vo)

    def catalogue(self, vo: str) -> ReplicaCatalogue | None:
        """The VO's replica catalogue, or CatalogueUnavailableError; None: none is configured."""
        setting = self.operations(vo).job_scheduling.input_data_catalogue
        return open_catalogue(setting, self.catalogues) if setting else None

    def find_queue_classes(self, pool: "ResolvedPool", vo: str) -> EligibleClasses:
        """The queue classes of the VO that are eligible for a pool, computed when they are first needed."""
        return classes_of_pool(self.config, vo, pool.pool_id, pool.requirements)


def make_context(
    config: Configuration, now: datetime, banned_sites: frozenset[str] = frozenset()
) -> ChainContext:
    """Create the context of a batch."""
    config = config.at_moment(now)
    return ChainContext(
        config=config,
        now=now,
        catalogues=replica_catalogue.installed_catalogues(),
        banned_sites=banned_sites,
    )


#: Minor status of a job that waits for a pilot, in DIRAC's terms.
WAITS_FOR_PILOT = "Pilot Agent Submission"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPool:
    """The SubmitPool of a job."""

    pool_id: str
    requirements: Requirements  #: as evaluated, see `canonical.pool_form`
    canonical: str  #: canonical form, from which the id is computed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """A job in the chain, with the findings of the steps so far; immutable, a step returns a changed copy."""

    job_id: int
    vo: str
    owner: str
    owner_group: str
    description: JobDescription
    problems: tuple[Problem, ...] = ()  #: why its description cannot be read
    config_fault: str | None = None  #: why the configured defaults contradict the description, which is valid
    sandbox_gone: bool = False  #: its input sandbox is not stored any more
    reschedules: int = 0  #: number of times it was rescheduled
    was_matched: bool = False  #: whether a pilot has had it
    held_by: str | None = None  #: the step that held it last time; that delay has passed
    path: tuple[str, ...] = ()  #: names of the steps after JobPath, in order
    #: Places of each file of its input data: storage elements or sites.
    replicas: frozenset[frozenset[str]] = frozenset()
    pool: ResolvedPool | None = None  #: None: no Requirements
    requirement_class: RequirementClass | None = None  #: its attributes used in matching
    site: str = "ANY"  #: displayed as its site until it is matched
    minor_status: str = WAITS_FOR_PILOT

    @property
    def is_back(self) -> bool:
        """Whether it has passed the chain before: it was accepted, and no step fails it any more."""
        return self.reschedules > 0 or self.was_matched

    @property
    def is_new(self) -> bool:
        """Whether options that judge submissions apply: it is in the chain for the first time."""
        return not self.is_back and self.held_by is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The step accepts the job; the next step follows."""

    candidate: JobContext  #: with the step's findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The job waits for a temporary problem to pass; the step is then repeated."""

    reason: str  #: shown to the owner
    delay: timedelta | None = None  #: time until the next try; None: the configured `HoldTime`


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job can never run in its present form; one that has passed the chain before is held instead."""

    reason: str  #: shown to the owner


Outcome = Done | Hold | Failed

_MARK: Final = "_pure"

_Step = TypeVar("_Step", bound=Callable[..., Any])


def pure(step: _Step) -> _Step:
    """Mark a step as pure, as defined in the module docstring."""
    setattr(step, _MARK, True)
    return step


def is_pure(step: object) -> bool:
    """Whether a step is marked as pure."""
    return getattr(step, _MARK, False) is True


Step = Callable[[JobContext, ChainContext], Outcome]

#: The first step of every job; it determines the steps that follow.
FIRST = "JobPath"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainResult:
    """Outcome of a chain, and how far the job came."""

    outcome: Outcome
    step: str  #: the last step, which gave the outcome
    passed: tuple[str, ...]  #: the steps that accepted the job, in order
    pure: bool = False  #: all steps were, so the result holds for equal jobs

    @property
    def candidate(self) -> JobContext | None:
        """The job after all steps; None if it was held or failed."""
        return self.outcome.candidate if isinstance(self.outcome, Done) else None


def run_chain(candidate: JobContext, steps: Mapping[str, Step], context: ChainContext) -> ChainResult:
    """Run `JobPath` and the steps in the path it returns, until one of them holds or fails the job."""
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
        outcome = Failed(reason=f"{name} is the last optimizer and has not set the job's requirement class")
    # A sandbox that is gone is no matter of the configuration: nothing brings it back.
    if isinstance(outcome, Failed) and candidate.is_back and not candidate.sandbox_gone:
        outcome = Hold(reason=outcome.reason)
    same = all(is_pure(steps.get(each)) for each in asked)
    return ChainResult(outcome=outcome, step=name, passed=tuple(passed), pure=same)


def _run_step(name: str, candidate: JobContext, steps: Mapping[str, Step], context: ChainContext) -> Outcome:
    """Run one step; an exception holds this job only, not its batch.

    A step that is not installed fails a new job whose description names it; if only the configuration names
    it, or it was installed before, the job waits.
    """
    step = steps.get(name)
    if step is None:
        reason = f"there is no optimizer {name}, installed are {', '.join(sorted(steps))}"
        fails = candidate.is_new and name in candidate.description.job_path
        return Failed(reason=reason) if fails else Hold(reason=reason)
    try:
        return step(candidate, context)
    except Exception as error:
        log.exception("optimizer %s failed on job %d", name, candidate.job_id)
        return Hold(reason=f"error in the optimizer: {type(error).__name__}: {error}"[:500])


@cache
def installed_steps() -> Mapping[str, Step]:
    """All installed steps by name; ours are entry points like any other."""
    return MappingProxyType({point.name: point.load() for point in entry_points(group="pilotage.optimizers")})
