"""Why queues are not eligible for a job, and the smallest changes of its demand that make some eligible.

Every failing requirement is listed with the number of queues that it excludes. For changes, queues are
grouped by the conditions that they fail; the conditions of the smallest group are changed. What the job
states is changed, its demand is derived again, and evaluated as in matching: gains and losses are exact.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated

from pydantic import Field

from cs_config.tree.address import QueueAddress
from matcher import remedies
from matcher.explain import alternatives
from matcher.explain.alternatives import Alternative
from matcher.explain.job_conditions import ClassCondition, JobDemand
from matcher.explain.queue_set import QueueSet
from matcher.explain.unmet_conditions import UnmetCondition
from matcher.explain.work_budget import WorkBudget
from requirements.classad import evaluation
from requirements.errors import format_count
from requirements.values import format_value, lookup

#: Requirement name for queues with contradictory parameters.
FAULTY = "Configuration"
#: The same for disabled queues.
SWITCHED_OFF = "Enabled"
MEANINGFUL = "parameters with which its pilots can request jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingQueue:
    """A queue that fails a requirement."""

    queue: QueueAddress
    has: Annotated[str | None, Field(description="Value of the parameter at the queue; null: it has none.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementExclusion:
    """The effect of one requirement on the queues of a VO."""

    requirement: str
    wanted: str  #: demanded value, as text for people
    excluded: Annotated[int, Field(description="Queues that fail it.")]
    only_this: Annotated[int, Field(description="Queues that fail it and nothing else.")]
    example: FailingQueue  #: if possible one that fails nothing else
    closed: Annotated[
        str | None,
        Field(
            description="Of queues that the VO may not use now, for people: how many, and how many would do "
            "otherwise; null: a requirement of the job, which queues fail that the VO may use."
        ),
    ] = None


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
    found.sort(key=lambda each: (-each.excluded, -each.only_this, each.requirement))
    if not eligible:  # first what the job asks for, and would get if it were switched on
        found.sort(key=lambda each: not (each.requirement == SWITCHED_OFF and each.only_this))
    return Explanation(
        eligible_queues=eligible.bit_count(),
        candidate_queues=survey.candidates.bit_count(),
        exclusions=tuple(found),
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
        example=FailingQueue(queue=example.address, has=survey.failed.describe(failure, example, has)),
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
    fits = ~failed & ~survey.faulty
    for requirement, wanted, state, queues, only in (
        (
            FAULTY,
            MEANINGFUL,
            "with contradictory parameters",
            open_ & survey.faulty,
            open_ & survey.faulty & ~failed,
        ),
        (
            "VO",
            f"a queue for {vo}",
            "for other VOs",
            survey.everything & closed,
            survey.enabled & closed & fits,
        ),
        (
            SWITCHED_OFF,
            "a queue that is switched on",
            "switched off",
            survey.everything & off,
            survey.admitted & off & fits,
        ),
    ):
        if not queues or (requirement != FAULTY and (only_faulty or (survey.candidates and not only))):
            continue
        example = survey.first(only or queues)
        vos = lookup(example.values, "VO")
        has = {FAULTY: example.fault, "VO": "" if vos is None else format_value(vos), SWITCHED_OFF: "false"}
        yield RequirementExclusion(
            requirement=requirement,
            wanted=wanted,
            excluded=queues.bit_count(),
            only_this=only.bit_count(),
            example=FailingQueue(queue=example.address, has=has[requirement]),
            closed=_describe_closed(queues.bit_count(), state, only.bit_count()),
        )


def _describe_closed(number: int, state: str, fitting: int) -> str:
    queues = f"{format_count(number, 'queue')} {state}"
    if number == 1:
        return f"{queues}; it {'would' if fitting else 'would not'} do otherwise"
    return f"{queues}; {f'{fitting:,}' if fitting else 'none'} of them would do otherwise"


#: Changes that are returned.
_MOST = 10
#: Groups of queues that are tried, and alternatives per condition where several must change.
_GROUPS = 40
_TRIED = 3
#: Conditions that may change together; a queue that fails more is out of reach for this job.
TOGETHER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedChange:
    """A change that makes queues eligible."""

    text: str
    effort: float  #: of the change: `remedies.SPELLING`, …; of several together, their sum
    gains: int  #: newly eligible queues, less those that are lost
    open_now: int  #: of these, those that are not closed to the job now
    example: QueueAddress  #: one of them
    demand: JobDemand | None  #: the changed demand; None: an admin must change something


def suggest_changes(
    survey: QueueSet, vo: str, demand: JobDemand, budget: WorkBudget | None = None, *, closed: int = 0
) -> list[SuggestedChange]:
    """Changes that make queues eligible, the smallest change first.

    If the budget is exceeded afterwards, better changes may exist. `closed` is the set of queues that block
    the job now; changes that gain only these are returned only if no other queue is left to gain.
    """
    budget = budget or WorkBudget()
    failures = survey.failures(demand)
    eligible = survey.eligible(demand)
    lost = survey.candidates & ~eligible
    ignored = closed if lost & ~closed else 0
    groups = _group_queues(failures, lost & ~ignored)
    fewest = min(map(len, groups), default=0)
    found: dict[str, SuggestedChange] = {}
    if fewest <= TOGETHER:
        smallest = [(which, mask) for which, mask in groups.items() if len(which) == fewest]
        for which, mask in sorted(smallest, key=lambda each: -each[1].bit_count())[:_GROUPS]:
            if budget.over:
                break
            failing = [failures[number] for number in which]
            for effort, text, changed in _combine_alternatives(failing, demand, mask, survey, budget):
                fits = survey.eligible(changed)
                gained, missed = fits & ~eligible, eligible & ~fits
                if (gained & ~ignored).bit_count() <= missed.bit_count():
                    continue
                change = _build_suggestion(
                    survey, text, gained, changed, effort, missed=missed, closed=closed
                )
                if change and (text not in found or _order(change) < _order(found[text])):
                    found[text] = change
    if not eligible:
        is_admission_told = bool(demand.asked.sites or demand.asked.grid_ces or not found)
        for change in _changes_by_admins(survey, vo, failures, closed):
            if is_admission_told or change.effort < remedies.BY_OTHERS:
                found[change.text] = change
    return sorted(found.values(), key=_order)[:_MOST]


def _order(change: SuggestedChange) -> tuple[object, ...]:
    """Smallest change first; of equal ones that with the largest gain."""
    return change.effort, -change.open_now, -change.gains, len(change.text), change.text


def _group_queues(failures: Sequence[UnmetCondition], queues: int) -> dict[tuple[int, ...], int]:
    groups: dict[tuple[int, ...], int] = {(): queues} if queues else {}
    for number, failure in enumerate(failures):
        split: dict[tuple[int, ...], int] = {}
        for which, mask in groups.items():
            if failing := mask & failure.queues:
                split[(*which, number)] = failing
            if rest := mask & ~failure.queues:
                split[which] = rest
        groups = split
    return groups


def _combine_alternatives(
    failures: Sequence[UnmetCondition],
    demand: JobDemand,
    queues: int,
    survey: QueueSet,
    budget: WorkBudget,
) -> Iterator[Alternative]:
    """Combined alternatives for all failures; at least one, whatever the budget."""
    first, *others = failures
    found = alternatives.list_alternatives(first, demand, queues, survey, budget)
    if not others:
        yield from found
        return
    for index, (effort, text, changed) in enumerate(found):
        if index == _TRIED or (index and budget.over):
            return
        if survey.eligible(changed) & queues:
            yield effort, text, changed
            continue
        left, nearest = others, queues
        if isinstance(first.part, ClassCondition):  # it may have changed others, or remedied them
            left, nearest = _find_nearest(survey.failures(changed), queues)
        if len(left) > len(others):
            continue
        for more, further, changed_again in _combine_alternatives(left, changed, nearest, survey, budget):
            yield effort + more, f"{text}, and {further}", changed_again


def _find_nearest(failures: Sequence[UnmetCondition], queues: int) -> tuple[list[UnmetCondition], int]:
    """Those of the queues that fail the fewest conditions, most of them alike, and these conditions."""
    groups = _group_queues(failures, queues)
    which, nearest = min(groups.items(), key=lambda each: (len(each[0]), -each[1].bit_count()))
    return [failures[number] for number in which], nearest


def _changes_by_admins(
    survey: QueueSet, vo: str, failures: Sequence[UnmetCondition], closed: int
) -> Iterator[SuggestedChange]:
    fits = survey.everything & ~survey.faulty
    for failure in failures:
        fits &= ~failure.queues
    for text, effort, gained in (
        (f"ask the site to admit the VO {vo}", remedies.BY_OTHERS, fits & survey.enabled & ~survey.admitted),
        (
            "ask the site to switch the queue on (Enabled: true)",
            remedies.SWITCHED_ON,
            fits & survey.admitted & ~survey.enabled,
        ),
    ):
        if change := _build_suggestion(survey, text, gained, None, effort, closed=closed):
            yield change


def _build_suggestion(
    survey: QueueSet,
    text: str,
    gained: int,
    demand: JobDemand | None,
    effort: float,
    *,
    missed: int = 0,
    closed: int,
) -> SuggestedChange | None:
    """A suggestion, if it wins more queues than it loses."""
    lost, open_ = missed.bit_count(), gained & ~closed
    gains = gained.bit_count() - lost
    if gains <= 0:
        return None
    if missed:
        text = f"{text} (wins {gained.bit_count()}, loses {lost})"
    return SuggestedChange(
        text=text,
        effort=effort,
        gains=gains,
        open_now=max(0, open_.bit_count() - lost),
        example=survey.first(open_ or gained).address,
        demand=demand,
    )
