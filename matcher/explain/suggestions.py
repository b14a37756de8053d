"""The smallest changes of a demand that make queues eligible, each with its gain.

Queues are grouped by the conditions that they fail; the conditions of the smallest group are changed. Each
changed demand goes through the same evaluator, so its gain is exact.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cs_config.tree.address import QueueAddress
from matcher.explain import alternatives
from matcher.explain.alternatives import Alternative
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
            failing = [failures[number] for number in which]
            for text, changed in _combine_alternatives(failing, demand, mask, survey, budget):
                gained = survey.eligible(changed) & ~eligible & ~closed
                if gained.bit_count() > (found[text].gains if text in found else 0):
                    found[text] = _build_suggestion(survey, text, gained, changed)
    if not eligible and (demand.asked.sites or demand.asked.grid_ces or not found):
        found |= {each.text: each for each in _changes_by_admins(survey, vo, failures)}
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
) -> Iterator[Alternative]:
    """Combined alternatives for all failures; at least one, whatever the budget."""
    first, *others = failures
    found = alternatives.list_alternatives(first, demand, queues, survey, budget)
    if not others:
        yield from found
        return
    for index, (text, changed) in enumerate(found):
        if index == _TRIED or (index and budget.over):
            return
        for further, changed_again in _combine_alternatives(others, changed, queues, survey, budget):
            yield f"{text}, and {further}", changed_again


def _changes_by_admins(
    survey: QueueSet, vo: str, failures: Sequence[UnmetCondition]
) -> Iterator[SuggestedChange]:
    """Changes that the admins of a site can make."""
    fits = survey.everything & ~survey.faulty
    for failure in failures:
        fits &= ~failure.queues
    for text, gained in (
        (f"ask the site to admit the VO {vo}", fits & survey.enabled & ~survey.admitted),
        ("ask the site to switch the queue on (Enabled: true)", fits & survey.admitted & ~survey.enabled),
    ):
        if gained:
            yield _build_suggestion(survey, text, gained, None)


def _build_suggestion(survey: QueueSet, text: str, gained: int, demand: JobDemand | None) -> SuggestedChange:
    example = survey.first(gained).address
    return SuggestedChange(text=text, gains=gained.bit_count(), example=example, demand=demand)
