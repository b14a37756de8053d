"""A job on its way through the chain, with what the steps have found out about it."""

from collections.abc import Collection
from dataclasses import dataclass

from cs_config.eligible_classes import EligibleClass
from optimizers.description import JobDescription
from requirements.canonical import Requirements
from requirements.problem import Problem
from taskqueue.classes import RequirementClass

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
class Candidate:
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
