"""The smallest changes of a demand that make queues eligible, each with its gain.

Queues are grouped by the conditions that they fail; the conditions of the smallest group are changed. Each
changed demand goes through the same evaluator, so its gain is exact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cs_config.tree.address import QueueAddress
from matcher.explain import alternatives
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from matcher.explain.rewrites import ExplanationBudget
from matcher.explain.unmet_conditions import UnmetCondition

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
    gains: int  #: newly eligible queues, without those that are closed now
    example: QueueAddress  #: one of them
    demand: JobDemand | None  #: the changed demand; None: an admin must change something


def suggest_changes(
    survey: QueueSet, vo: str, demand: JobDemand, budget: ExplanationBudget | None = None, *, closed: int = 0
) -> list[SuggestedChange]:
    """Changes that make queues eligible, the largest gain first.

    If the budget is exceeded afterwards, better changes may exist. `closed` is the set of queues that block
    the job now; they count as gain only if no others are left.
    """
    budget = budget or ExplanationBudget()
    failures = survey.failures(demand)
    eligible = survey.eligible(demand)
    lost = survey.candidates & ~eligible
    closed = closed if lost & ~closed else 0
    groups = _group_queues(failures, lost & ~closed)
    fewest = min(map(len, groups), default=0)
    found: dict[str, SuggestedChange] = {}
    if fewest <= TOGETHER:
        smallest = [(which, mask) for which, mask in groups.items() if len(which) == fewest]
        for which, mask in sorted(smallest, key=lambda each: -each[1].bit_count())[:_GROUPS]:
            if budget.over:
                break
            for remedy in _combine_alternatives(
                [failures[number] for number in which], demand, mask, survey, budget
            ):
                change = _measure_change(survey, remedy, eligible, closed)
                if change.gains > found[change.text].gains if change.text in found else change.gains:
                    found[change.text] = change
    if not eligible and (alternatives.names_place(demand) or not found):
        found |= {each.text: each for each in _changes_by_admins(survey, vo, demand)}
    return sorted(found.values(), key=_order)[:_MOST]


def _order(change: SuggestedChange) -> tuple[int, bool, int, str]:
    """Largest gain first; corrections of misspellings before other changes of equal gain."""
    return -change.gains, not change.text.startswith("write "), len(change.text), change.text


def _group_queues(failures: Sequence[UnmetCondition], queues: int) -> dict[tuple[int, ...], int]:
    """Group queues by the numbers of the failures that they have."""
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
    budget: ExplanationBudget,
) -> Iterator[alternatives.Alternative]:
    """Combined alternatives for all failures; at least one, whatever the budget."""
    first, *others = failures
    found = alternatives.list_alternatives(first, demand, queues, survey, budget)
    if not others:
        yield from found
        return
    for index, remedy in enumerate(found):
        if index == _TRIED or (index and budget.over):
            return
        for further in _combine_alternatives(others, remedy.demand, queues, survey, budget):
            yield alternatives.Alternative(text=f"{remedy.text}, and {further.text}", demand=further.demand)


def _measure_change(
    survey: QueueSet, remedy: alternatives.Alternative, before: int, closed: int
) -> SuggestedChange:
    gained = survey.eligible(remedy.demand) & ~before & ~closed
    return SuggestedChange(
        text=remedy.text,
        gains=gained.bit_count(),
        example=survey.first(gained or survey.everything).address,
        demand=remedy.demand,
    )


def _changes_by_admins(survey: QueueSet, vo: str, demand: JobDemand) -> Iterator[SuggestedChange]:
    """Changes that the admins of a site can make."""
    failed = 0
    for failure in survey.failures(demand):
        failed |= failure.queues
    fits = survey.everything & ~failed & ~survey.faulty
    for text, gained in (
        (f"ask the site to admit the VO {vo}", fits & survey.enabled & ~survey.admitted),
        ("ask the site to switch the queue on (Enabled: true)", fits & survey.admitted & ~survey.enabled),
    ):
        if gained:
            example = survey.first(gained).address
            yield SuggestedChange(text=text, gains=gained.bit_count(), example=example, demand=None)
