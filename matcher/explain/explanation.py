"""Why queues are not eligible for a job: every failing requirement and the number of queues it excludes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cs_config.tree.address import QueueAddress
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_columns import QueueView
from matcher.explain.queue_set import QueueSet
from matcher.explain.unmet_conditions import UnmetCondition
from requirements.classad import evaluation
from requirements.values import fold, format_value

#: Requirement name for queues with contradictory parameters.
FAULTY = "Configuration"
MEANINGFUL = "parameters with which its pilots can request jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementExclusion:
    """The effect of one requirement on the queues of a VO."""

    requirement: str
    wanted: str  #: demanded value, as text for people
    excluded: int  #: queues that fail it
    only_this: int  #: queues that fail it and nothing else
    example: QueueAddress  #: one of them, if possible one that fails nothing else
    has: str | None  #: the example's value; None: it has no such parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Eligible and excluded queues of a VO for one job."""

    eligible_queues: int
    candidate_queues: int  #: all that the VO may use now
    exclusions: tuple[RequirementExclusion, ...]  #: largest exclusion first


def explain(survey: QueueSet, vo: str, demand: JobDemand) -> Explanation:
    """Eligible and excluded queues among those that the VO may use now.

    If none is eligible, queues closed to the VO and disabled queues are listed, too.
    """
    failures = survey.failures(demand)
    failed = 0
    for failure in failures:
        failed |= failure.queues
    eligible = survey.candidates & ~failed
    found = [*_exclusions(failures, survey.candidates, survey), *_faulty(survey, failed)]
    if not eligible:
        found += _closed(survey, vo, failed)
    return Explanation(
        eligible_queues=eligible.bit_count(),
        candidate_queues=survey.candidates.bit_count(),
        exclusions=tuple(sorted(found, key=lambda each: (-each.excluded, -each.only_this, each.requirement))),
    )


def queues_failing_one(failures: Sequence[UnmetCondition]) -> int:
    """The queues that fail exactly one condition."""
    once = twice = 0
    for failure in failures:
        twice |= once & failure.queues
        once |= failure.queues
    return once & ~twice


def _exclusions(
    failures: Sequence[UnmetCondition], candidates: int, survey: QueueSet
) -> list[RequirementExclusion]:
    single = queues_failing_one(failures) & candidates
    return [
        _exclusion(failure, candidates, single, survey) for failure in failures if failure.queues & candidates
    ]


def _exclusion(
    failure: UnmetCondition, candidates: int, single: int, survey: QueueSet
) -> RequirementExclusion:
    """The example fails nothing else and has a value, if there is such a queue."""
    has, mask = _typical_value(survey.failed.list_values(failure), candidates, single)
    example = survey.first(mask & single or mask)
    return RequirementExclusion(
        requirement=failure.requirement,
        wanted=failure.wanted,
        excluded=(failure.queues & candidates).bit_count(),
        only_this=(failure.queues & single).bit_count(),
        example=example.address,
        has=survey.failed.describe(failure, example, has),
    )


def _typical_value(
    seen: Iterable[tuple[str | None, int]], candidates: int, single: int
) -> tuple[str | None, int]:
    """The most informative value among the candidates; the search ends at the first fully informative one."""
    most: tuple[bool, bool] = (False, False)
    found: tuple[str | None, int] = (None, 0)
    for has, mask in seen:
        if not mask & candidates:
            continue
        tells = bool(mask & candidates & single), has is not None and evaluation.ABSENT not in has
        if tells > most or not found[1]:
            most, found = tells, (has, mask & candidates)
        if all(tells):
            break
    return found


def _faulty(survey: QueueSet, failed: int) -> Iterator[RequirementExclusion]:
    """Queues that are excluded only because their parameters contradict each other."""
    if queues := survey.enabled & survey.admitted & survey.faulty:
        example = survey.first(queues & ~failed or queues)
        yield RequirementExclusion(
            requirement=FAULTY,
            wanted=MEANINGFUL,
            excluded=queues.bit_count(),
            only_this=(queues & ~failed).bit_count(),
            example=example.address,
            has=example.fault,
        )


def _closed(survey: QueueSet, vo: str, failed: int) -> list[RequirementExclusion]:
    """Queues that fail nothing but are closed to the VO or disabled."""
    found = []
    others, off = survey.everything & ~survey.admitted, survey.everything & ~survey.enabled
    for requirement, wanted, closed, open_else in (
        ("VO", f"a queue for {vo}", others, survey.enabled),
        ("Enabled", "a queue that is switched on", off, survey.admitted),
    ):
        only = closed & open_else & ~failed
        if only or (closed and not survey.candidates):
            queue = survey.first(only or closed)
            has = "false" if requirement == "Enabled" else _vos(queue)
            found.append(
                RequirementExclusion(
                    requirement=requirement,
                    wanted=wanted,
                    excluded=closed.bit_count(),
                    only_this=only.bit_count(),
                    example=queue.address,
                    has=has,
                )
            )
    return found


def _vos(queue: QueueView) -> str:
    return next((format_value(value) for name, value in queue.values.items() if fold(name) == "vo"), "")
