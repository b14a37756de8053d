"""Why queues are not eligible for a job: every requirement that fails, and how many queues it costs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.operations import operations
from cs_config.queue_classes import QueueClass, queue_classes
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.evaluator import Reason
from taskqueue.jobs import Job
from taskqueue.states import PREPARING, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """What one requirement does to the queues of a VO."""

    requirement: str
    wanted: str  #: what is asked, for a person
    excluded: int  #: queues that fail it
    only_this: int  #: queues that fail it and nothing else
    example: QueueAddress  #: one of them, if possible one that fails nothing else
    has: str | None  #: what the example has; None: nothing of that name


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How the queues that a VO may use stand to a job."""

    eligible_queues: int
    candidate_queues: int  #: all that the VO may use now
    exclusions: tuple[Exclusion, ...]  #: what excludes most first


@dataclass(slots=True, kw_only=True)
class _Count:
    wanted: str
    excluded: int = 0
    only_this: int = 0
    #: How good an example is, and the example: fails nothing else, has a value at all.
    example: tuple[tuple[bool, bool], QueueAddress, str | None] | None = None


def explain(config: Configuration, vo: str, requirements: Requirements | None) -> Explanation:
    """How the queues of the VO stand to the requirements; without any all queues are eligible."""
    declarations = operations(config, vo).job_description.declarations
    counts: dict[str, _Count] = {}
    eligible = candidates = 0
    for each in queue_classes(config, vo):
        failing = () if requirements is None else evaluator.failing(requirements, each.values, declarations)
        candidates += len(each.queues)
        eligible += 0 if failing else len(each.queues)
        _count(counts, each, failing)
    return Explanation(
        eligible_queues=eligible, candidate_queues=candidates, exclusions=tuple(_exclusions(counts.items()))
    )


def _count(counts: dict[str, _Count], queues: QueueClass, failing: Sequence[Reason]) -> None:
    alone = len({reason.requirement for reason in failing}) == 1
    seen: set[str] = set()
    for reason in failing:
        count = counts.setdefault(reason.requirement, _Count(wanted=reason.wanted))
        quality = (alone, reason.has is not None)
        if count.example is None or quality > count.example[0]:
            count.example = (quality, queues.queues[0], reason.has)
        if reason.requirement not in seen:
            seen.add(reason.requirement)
            count.excluded += len(queues.queues)
            count.only_this += len(queues.queues) if alone else 0


def _exclusions(counts: Iterable[tuple[str, _Count]]) -> list[Exclusion]:
    found = [
        Exclusion(
            requirement=name,
            wanted=count.wanted,
            excluded=count.excluded,
            only_this=count.only_this,
            example=count.example[1],
            has=count.example[2],
        )
        for name, count in counts
        if count.example is not None
    ]
    return sorted(found, key=lambda each: (-each.excluded, -each.only_this, each.requirement))


def holding_back(job: Job, *, eligible_queues: int) -> Iterator[str]:
    """What keeps a job from running at this moment, in words; nothing once it has run."""
    match job.status:
        case JobStatus.WAITING if not eligible_queues:
            yield "no eligible queue: it becomes matchable when the configuration has one"
        case JobStatus.WAITING:
            yield "no pilot of an eligible queue has asked for it yet"
        case JobStatus.CHECKING:
            yield f"held by the optimizers: {job.application_status or job.minor_status}"
        case JobStatus.STALLED:
            yield "its pilot is silent"
        case status if status in PREPARING:
            yield "the optimizers have not looked at it yet"
