"""Why queues are not eligible for a job: every failing requirement and the number of queues it excludes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_

from cs_config.tree.address import QueueAddress
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from matcher.explain.unmet_conditions import UnmetCondition
from requirements.classad import evaluation
from requirements.values import format_value, lookup

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
    failed = reduce(or_, (failure.queues for failure in failures), 0)
    eligible = survey.candidates & ~failed
    single = queues_failing_one(failures) & survey.candidates
    found = [
        _exclusion(failure, single, survey) for failure in failures if failure.queues & survey.candidates
    ]
    found += _list_closed(survey, vo, failed, only_faulty=bool(eligible))
    return Explanation(
        eligible_queues=eligible.bit_count(),
        candidate_queues=survey.candidates.bit_count(),
        exclusions=tuple(sorted(found, key=lambda each: (-each.excluded, -each.only_this, each.requirement))),
    )


def queues_failing_one(failures: Iterable[UnmetCondition]) -> int:
    """The queues that fail exactly one condition."""
    once = twice = 0
    for failure in failures:
        twice |= once & failure.queues
        once |= failure.queues
    return once & ~twice


def _exclusion(failure: UnmetCondition, single: int, survey: QueueSet) -> RequirementExclusion:
    """The example fails nothing else and has a value, if there is such a queue."""
    has, mask = _typical_value(survey.failed.list_values(failure), survey.candidates, single)
    example = survey.first(mask & single or mask)
    return RequirementExclusion(
        requirement=failure.requirement,
        wanted=failure.wanted,
        excluded=(failure.queues & survey.candidates).bit_count(),
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


def _list_closed(
    survey: QueueSet, vo: str, failed: int, *, only_faulty: bool
) -> Iterator[RequirementExclusion]:
    """Queues with contradictory parameters, closed to the VO or disabled.

    Closed and disabled ones only if nothing else excludes them, or if the VO may use no queue.
    """
    open_, closed, off = survey.enabled & survey.admitted, ~survey.admitted, ~survey.enabled
    for requirement, wanted, queues, only in (
        (FAULTY, MEANINGFUL, open_ & survey.faulty, open_ & survey.faulty & ~failed),
        ("VO", f"a queue for {vo}", survey.everything & closed, survey.enabled & closed & ~failed),
        ("Enabled", "a queue that is switched on", survey.everything & off, survey.admitted & off & ~failed),
    ):
        if not queues or (requirement != FAULTY and (only_faulty or (survey.candidates and not only))):
            continue
        example = survey.first(only or queues)
        vos = lookup(example.values, "VO")
        has = {FAULTY: example.fault, "VO": "" if vos is None else format_value(vos), "Enabled": "false"}
        yield RequirementExclusion(
            requirement=requirement,
            wanted=wanted,
            excluded=queues.bit_count(),
            only_this=only.bit_count(),
            example=example.address,
            has=has[requirement],
        )
