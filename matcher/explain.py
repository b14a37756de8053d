"""Why queues are not eligible for a job: every requirement that fails, and how many queues it costs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.operations import operations
from cs_config.queue_classes import queue_classes
from requirements import evaluator
from requirements.canonical import Requirements
from requirements.evaluator import Reason, ReasonKind
from requirements.values import fold
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a job asks of the queue that it runs at; an empty set asks nothing."""

    requirements: Requirements | None = None
    sites: frozenset[str] = frozenset()
    banned_sites: frozenset[str] = frozenset()
    grid_ces: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class _Count:
    wanted: str
    excluded: int = 0
    only_this: int = 0
    #: How good an example is, and the example: fails nothing else, has a value at all.
    example: tuple[tuple[bool, bool], QueueAddress, str | None] | None = None


def explain(config: Configuration, vo: str, asked: Asked) -> Explanation:
    """How the queues that the VO may use now stand to what a job asks."""
    counts: dict[str, _Count] = {}
    eligible = candidates = 0
    for queue, failing in _failing(config, vo, asked):
        candidates += 1
        eligible += not failing
        _count(counts, queue, failing)
    return Explanation(
        eligible_queues=eligible, candidate_queues=candidates, exclusions=tuple(_exclusions(counts.items()))
    )


def _failing(
    config: Configuration, vo: str, asked: Asked
) -> Iterator[tuple[QueueAddress, tuple[Reason, ...]]]:
    """Each queue with all that it fails; the evaluator is asked once for queues that are the same."""
    declarations = operations(config, vo).job_description.declarations
    for each in queue_classes(config, vo):
        by_value: tuple[Reason, ...] = ()
        if asked.requirements is not None:
            by_value = evaluator.failing(asked.requirements, each.values, declarations)
        for queue in each.queues:
            yield queue, (*by_value, *_failing_by_place(asked, queue))


def _failing_by_place(asked: Asked, queue: QueueAddress) -> Iterator[Reason]:
    for name, allowed, has in (("Site", asked.sites, queue.site), ("GridCE", asked.grid_ces, queue.ce)):
        if allowed and not _among(has, allowed):
            yield _reason(name, ", ".join(sorted(allowed)), has)
    if _among(queue.site, asked.banned_sites):
        yield _reason("BannedSites", f"none of {', '.join(sorted(asked.banned_sites))}", queue.site)


def _among(name: str, names: frozenset[str]) -> bool:
    return any(fold(name) == fold(each) for each in names)


def _reason(requirement: str, wanted: str, has: str) -> Reason:
    return Reason(requirement=requirement, wanted=wanted, has=has, kind=ReasonKind.NOT_AMONG)


def _count(counts: dict[str, _Count], queue: QueueAddress, failing: Sequence[Reason]) -> None:
    by_name = {reason.requirement: reason for reason in reversed(failing)}
    alone = len(by_name) == 1
    for name, reason in by_name.items():
        count = counts.setdefault(name, _Count(wanted=reason.wanted))
        count.excluded += 1
        count.only_this += alone
        quality = (alone, reason.has is not None)
        if count.example is None or quality > count.example[0]:
            count.example = (quality, queue, reason.has)


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
    """What keeps a job from running at this moment, in words; nothing if it runs or is done."""
    match job.status:
        case JobStatus.WAITING if not eligible_queues:
            yield "no eligible queue: it becomes matchable when the configuration has one"
        case JobStatus.WAITING:
            yield "no pilot of an eligible queue has asked for it yet"
        case JobStatus.CHECKING:
            yield f"held by the optimizers: {job.application_status or job.minor_status}"
        case JobStatus.STALLED:
            yield "its pilot is silent"
        case JobStatus.FAILED:
            yield f"it has failed: {job.application_status or job.minor_status}"
        case status if status in PREPARING:
            yield "the optimizers have not looked at it yet"
