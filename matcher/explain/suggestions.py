"""The smallest changes of a demand that make queues eligible, each with what it gains.

Queues are grouped by what they fail; where a group fails fewest, those parts are what to change. Every
change makes a new demand, which is put to the same evaluator: what is promised is what will be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cs_config.tree.address import QueueAddress
from matcher.explain import alternatives
from matcher.explain.job_conditions import JobDemand
from matcher.explain.queue_set import QueueSet
from matcher.explain.rewrites import ExplanationBudget
from matcher.explain.unmet_conditions import UnmetCondition

#: Changes that are told.
_MOST = 10
#: Groups of queues that are looked at, and remedies that are tried for a part where several have to change.
_GROUPS = 40
_TRIED = 3
#: Parts that may have to change together; what fails more is another job.
TOGETHER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedChange:
    """A change that helps."""

    text: str
    gains: int  #: queues that become eligible, without those that are closed now
    example: QueueAddress  #: one of them
    demand: JobDemand | None  #: what would be asked; None: somebody else has to change something


def suggest_changes(
    survey: QueueSet, vo: str, demand: JobDemand, effort: ExplanationBudget | None = None, *, closed: int = 0
) -> list[SuggestedChange]:
    """Changes that make queues eligible, best gain first.

    Args:
        survey: All queues.
        vo: The VO of the job.
        demand: What it asks.
        effort: The work that this may be; when it is over afterwards, there may be better changes.
        closed: Queues that do not let the job in now; nobody is sent there while others are open.
    """
    effort = effort or ExplanationBudget()
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
            if effort.over:
                break
            for remedy in _combine_alternatives(
                [failures[number] for number in which], demand, mask, survey, effort
            ):
                change = _measure_change(survey, remedy, eligible, closed)
                if change.gains > found[change.text].gains if change.text in found else change.gains:
                    found[change.text] = change
    if not eligible and (alternatives.names_place(demand) or not found):
        found |= {each.text: each for each in _changes_by_admins(survey, vo, demand)}
    return sorted(found.values(), key=_order)[:_MOST]


def _order(change: SuggestedChange) -> tuple[int, bool, int, str]:
    """Best gain first; of equal ones what corrects a slip of the pen."""
    return -change.gains, not change.text.startswith("write "), len(change.text), change.text


def _group_queues(failures: Sequence[UnmetCondition], queues: int) -> dict[tuple[int, ...], int]:
    """Queues by the numbers of the failures that they have."""
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
    effort: ExplanationBudget,
) -> Iterator[alternatives.Alternative]:
    """Remedies for all of the failures at once; one at least, whatever the effort."""
    first, *others = failures
    found = alternatives.list_alternatives(first, demand, queues, survey, effort)
    if not others:
        yield from found
        return
    for index, remedy in enumerate(found):
        if index == _TRIED or (index and effort.over):
            return
        for further in _combine_alternatives(others, remedy.demand, queues, survey, effort):
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
    """What those who look after queues can do."""
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
