"""Which of two jobs comes first for a pilot that can run both, and what decides that.

The rules are those of a request for work (`matcher.index.waiting.draw_candidates`), applied to two jobs:
tiers and weights of job types, then slots of one owner that are scarce, then the weights of task queues;
within one, the order of claims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, log

from cs_config.options import job_tiers
from cs_config.options.job_tiers import JobTiers
from matcher.index import sampling, scarcity
from taskqueue.task_queues.shares import ShareHolder, ShareSplit
from taskqueue.task_queues.task_queues import TaskQueue


class DecidingRule(StrEnum):
    """What decides which of two jobs comes first."""

    STATUS = "status"  #: one of them does not wait
    QUEUES = "queues"  #: no queue could run both
    CLOSED = "closed"  #: no queue that could run both takes both now
    VO = "vo"  #: their VOs take turns by the weights of all their task queues
    PRIORITY = "priority"  #: of jobs of one task queue
    SUBMISSION = "submission"  #: first in, first out, within a task queue
    TIER = "tier"  #: of the job type
    TYPE = "type"  #: the weight of the job type within its tier
    SUPPLY = "supply"  #: slots that came lately, of task queues of one owner
    WEIGHT = "weight"  #: of the task queue, from shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A job that waits, or would, in a task queue."""

    job_id: int
    priority: float  #: the user's
    task_queue: TaskQueue

    @property
    def claim_order(self) -> tuple[float, int]:
        """Smaller is claimed first within a task queue; as `taskqueue.leases.assignment.select_claimable`."""
        return -self.priority, self.job_id


@dataclass(frozen=True, slots=True)
class Precedence:
    """What decides between two jobs, and the chance that the first one comes before the second."""

    rule: DecidingRule
    chance: float | None  #: 1 or 0: certain; None: this rule says nothing about two jobs


@dataclass(frozen=True, slots=True)
class OpenQueues:
    """Queues of a job, as sets of bits."""

    eligible: int
    closed: int  #: those that take no job like it now
    off: int = 0  #: those that would be eligible if they were switched on


def find_obstacle(first: OpenQueues, second: OpenQueues) -> Precedence | None:
    """Why two jobs do not compete at any queue now; None: they do."""
    common = (first.eligible | first.off) & (second.eligible | second.off)
    if not common:
        return Precedence(DecidingRule.QUEUES, None)
    ways = [common & ~(each.closed | each.off) for each in (first, second)]
    if ways[0] & ways[1]:
        return None
    return Precedence(DecidingRule.CLOSED, float(bool(ways[0])) if any(ways) and not all(ways) else None)


def decide(first: Contender, second: Contender, tiers: JobTiers) -> Precedence:
    """Decide between two waiting jobs; `tiers` of their VO."""
    one, other = first.task_queue, second.task_queue
    if one.vo != other.vo:
        return Precedence(DecidingRule.VO, None)
    if one.task_queue_id == other.task_queue_id:
        is_same = first.priority == second.priority
        rule = DecidingRule.SUBMISSION if is_same else DecidingRule.PRIORITY
        return Precedence(rule, float(first.claim_order < second.claim_order))
    types = [each.requirement_class.job_types for each in (one, other)]
    number, other_number = (job_tiers.find_tier(tiers, each) for each in types)
    if number != other_number:
        return Precedence(DecidingRule.TIER, float(number < other_number))
    if number <= len(tiers):
        weight, other_weight = map(tiers[number - 1].find_weight, types)
        if types[0] != types[1]:
            return Precedence(DecidingRule.TYPE, weight / (weight + other_weight))
    if scarcity.is_scarcer(one, other) or scarcity.is_scarcer(other, one):
        return Precedence(DecidingRule.SUPPLY, float(scarcity.is_scarcer(one, other)))
    return Precedence(DecidingRule.WEIGHT, sampling.compute_chance(one, other))


@dataclass(frozen=True, slots=True)
class WeightStep:
    """One of the factors that make up the weights of two task queues."""

    what: str
    first: float  #: the share that is left after it
    second: float
    ratio: float  #: by which it favours the first one over the second


_STEPS = (
    "share of the group",
    "share of the group, corrected by use",
    "part of the owner, of those with waiting jobs",
    "part of the owner, corrected by use",
    "part of the task queue, by priorities of the owner's jobs",
)


def list_steps(split: ShareSplit, first: TaskQueue, second: TaskQueue) -> list[WeightStep]:
    """How the weights of two task queues come about; empty where one of them has no jobs."""
    one, other = _list_shares(split, first), _list_shares(split, second)
    steps: list[WeightStep] = []
    before, other_before = 1.0, 1.0
    for what, here, there in zip(_STEPS, one, other, strict=False):
        ratio = _divide(here * other_before, there * before)
        steps.append(WeightStep(what, here, there, ratio))
        before, other_before = here, there
    return steps


def find_strongest(steps: Sequence[WeightStep]) -> WeightStep | None:
    """The step that makes the greatest difference; None: there is no difference."""
    differing = [each for each in steps if _measure(each) > _SAME]
    return max(differing, key=_measure, default=None)


#: Logarithm of ratios that count as equal.
_SAME = 1e-6


def _measure(step: WeightStep) -> float:
    return abs(log(step.ratio)) if 0 < step.ratio < inf else inf


def _list_shares(split: ShareSplit, each: TaskQueue) -> tuple[float, ...]:
    """The shares from the group to the task queue; empty: it has no jobs."""
    weight = split.weights.get(each.task_queue_id)
    if weight is None:
        return ()
    group = ShareHolder(each.vo, each.owner_group)
    owner = ShareHolder(each.vo, each.owner_group, each.owner)
    holder = owner if owner in split.even else group
    return (
        *(split.stated[group], split.of_groups[group]),
        *(split.even[holder], split.of_holders[holder], weight),
    )


def _divide(one: float, other: float) -> float:
    if one == other:
        return 1.0
    return one / other if other else inf


def describe(
    first: Contender,
    second: Contender,
    found: Precedence,
    *,
    tiers: JobTiers = (),
    steps: Sequence[WeightStep] = (),
) -> str:
    """The answer in one sentence."""
    if found.chance is None:
        return _NO_ORDER[found.rule]
    ahead, behind, chance = first, second, found.chance
    if chance < _EVEN:
        ahead, behind, chance = second, first, 1 - chance
    text = f"{_format_chance(ahead, chance)}: {_explain(found.rule, ahead, behind, tiers)}"
    strongest = find_strongest(steps)
    if strongest is not None and chance != _EVEN:
        shares = f"{strongest.first:.4g} of job {first.job_id}, {strongest.second:.4g} of job {second.job_id}"
        text += f"; what differs most is the {strongest.what}: {shares}"
    return text


_EVEN = 0.5
_NO_ORDER = {
    DecidingRule.QUEUES: "they do not compete: no queue could run both",
    DecidingRule.CLOSED: (
        "they do not compete now: no queue that could run both takes both (see `job explain` of each)"
    ),
    DecidingRule.VO: (
        "neither comes first: their VOs take turns, by the weights of all task queues that a pilot can run"
    ),
}


def _format_chance(ahead: Contender, chance: float) -> str:
    if chance == 1:
        return f"job {ahead.job_id} comes first"
    if chance == _EVEN:
        return "each comes first as often as the other"
    return f"job {ahead.job_id} comes first {100 * chance:.3g} times of 100"


def _explain(rule: DecidingRule, ahead: Contender, behind: Contender, tiers: JobTiers) -> str:
    match rule:
        case DecidingRule.CLOSED:
            return f"no queue for both takes job {behind.job_id} now (see `job explain {behind.job_id}`)"
        case DecidingRule.PRIORITY:
            return f"both are in one task queue, with priorities {ahead.priority:g} and {behind.priority:g}"
        case DecidingRule.SUBMISSION:
            return "both are in one task queue with equal priorities: first in, first out"
        case DecidingRule.SUPPLY:
            return (
                f"fewer slots come where it may run, {ahead.task_queue.supply} in the last six hours, than "
                f"for job {behind.job_id} of the same owner, {behind.task_queue.supply} (Scarcity)"
            )
        case DecidingRule.WEIGHT:
            if ahead.task_queue.family == behind.task_queue.family:
                together = f"one weight together, {ahead.task_queue.priority:.4g}"
                return f"the task queues of both are parts of one owner's work and have {together}"
            weights = [each.task_queue.priority for each in (ahead, behind)]
            return "chance decides by the weights of task queues, {:.4g} and {:.4g}".format(*weights)
        case _:
            types = ", ".join(_describe_type(each, tiers) for each in (ahead, behind))
            return f"by job types (JobPriorities): {types}"


def _describe_type(each: Contender, tiers: JobTiers) -> str:
    types = each.task_queue.requirement_class.job_types
    return f"that of job {each.job_id} is in {job_tiers.describe_tier(tiers, types)}"
