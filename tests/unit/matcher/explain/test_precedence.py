"""Which of two jobs comes first: the answer is what the matcher's own draws give."""

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.options import job_tiers
from cs_config.options.job_tiers import JobTiers
from cs_config.options.registry import Group
from matcher.explain import precedence
from matcher.explain.precedence import Contender, DecidingRule, OpenQueues
from matcher.index.waiting import draw_candidates
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues import shares
from taskqueue.task_queues.shares import ShareDemand, ShareHolder, ShareSplit
from taskqueue.task_queues.task_queues import TaskQueue
from tests.support.factories.task_queues import make_task_queue

_DRAWS = 400


def _task_queue(number: int, weight: float, job_type: str = "", *, vo: str = "cms") -> TaskQueue:
    asked = RequirementClass(vo=vo, cpu_time=1, job_types=frozenset({job_type} - {""}))
    return make_task_queue(number, weight, asked=asked, owner=f"owner{number}")


def _contender(task_queue: TaskQueue, *, job_id: int | None = None, priority: float = 1) -> Contender:
    number = task_queue.task_queue_id if job_id is None else job_id
    return Contender(job_id=number, priority=priority, task_queue=task_queue)


def _count_first(task_queues: Sequence[TaskQueue], tiers: JobTiers) -> float:
    """How often the first of the task queues comes before the second, as the matcher draws them."""
    one, other = task_queues[:2]
    random, first = Random(7), 0
    for _ in range(_DRAWS):
        order = list(draw_candidates(task_queues, random, {"cms": tiers} if tiers else {}))
        first += order.index(one) < order.index(other)
    return first / _DRAWS


_TYPES = st.sampled_from(["MC", "Merge", "User", ""])
_WEIGHTS = st.sampled_from([0.001, 1.0, 10.0, 1000.0])
_TIERS = st.sampled_from(
    [(), ("MC",), ("merge", "MC"), ("{MC: 3, User: 2}", "Merge"), ("{Merge: 5, MC: 1}",)]
)


@given(st.lists(st.tuples(_WEIGHTS, _TYPES), min_size=2, max_size=5), _TIERS.map(job_tiers.read_tiers))
def test_the_chance_is_that_of_the_matchers_draws(members: list[tuple[float, str]], tiers: JobTiers) -> None:
    task_queues = [_task_queue(number, *each) for number, each in enumerate(members, start=1)]
    found = precedence.decide(_contender(task_queues[0]), _contender(task_queues[1]), tiers)
    assert found.chance is not None
    drawn = _count_first(task_queues, tiers)
    # Five times the standard deviation of that many draws.
    assert drawn == pytest.approx(found.chance, abs=0.125 if 0 < found.chance < 1 else 0)


def test_of_one_owner_the_job_with_fewer_slots_comes_first() -> None:
    rare, common = (
        replace(_task_queue(number, weight), owner="ada", supply=slots)
        for number, weight, slots in ((1, 1.0, 60), (2, 1000.0, 300))
    )
    pair = _contender(common), _contender(rare)
    found = precedence.decide(*pair, ())
    assert (found.rule, found.chance) == (DecidingRule.SUPPLY, 0)
    assert _count_first([common, rare], ()) == 0
    assert precedence.describe(*pair, found) == (
        "job 1 comes first: fewer slots come where it may run, 60 in the last six hours, than for job 2 "
        "of the same owner, 300 (Scarcity)"
    )
    of_others = replace(common, owner="bob")
    assert precedence.decide(_contender(of_others), _contender(rare), ()).rule is DecidingRule.WEIGHT


@given(st.tuples(_WEIGHTS, _TYPES), st.tuples(_WEIGHTS, _TYPES), _TIERS.map(job_tiers.read_tiers))
def test_the_other_way_round_the_rest_of_the_chance_is_left(
    one: tuple[float, str], other: tuple[float, str], tiers: JobTiers
) -> None:
    pair = [_contender(_task_queue(1, *one)), _contender(_task_queue(2, *other))]
    there, back = precedence.decide(*pair, tiers), precedence.decide(*reversed(pair), tiers)
    assert (there.rule, there.chance) == (back.rule, pytest.approx(1 - (back.chance or 0)))
    assert precedence.describe(*pair, there, tiers=tiers) == precedence.describe(
        *reversed(pair), back, tiers=tiers
    )


def test_within_a_task_queue_priority_decides_and_then_submission() -> None:
    only = _task_queue(1, 5)
    early, late, urgent = (
        _contender(only, job_id=number, priority=priority) for number, priority in ((1, 1), (2, 1), (3, 4))
    )
    assert precedence.decide(early, late, ()).rule is DecidingRule.SUBMISSION
    assert precedence.decide(early, late, ()).chance == 1
    assert precedence.decide(early, urgent, ()) == precedence.Precedence(DecidingRule.PRIORITY, 0)
    text = precedence.describe(early, urgent, precedence.decide(early, urgent, ()))
    assert text == "job 3 comes first: both are in one task queue, with priorities 4 and 1"


def test_jobs_of_several_vos_have_no_order_of_their_own() -> None:
    pair = _contender(_task_queue(1, 5)), _contender(_task_queue(2, 5, vo="dune"))
    found = precedence.decide(*pair, ())
    assert (found.rule, found.chance) == (DecidingRule.VO, None)
    assert precedence.describe(*pair, found).startswith("neither comes first: their VOs take turns")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0b011, 0), (0b110, 0), None),
        ((0b001, 0), (0b110, 0), (DecidingRule.QUEUES, None)),
        ((0b011, 0b010), (0b110, 0), (DecidingRule.CLOSED, 0)),
        ((0b011, 0), (0b110, 0b010), (DecidingRule.CLOSED, 1)),
        ((0b111, 0b001), (0b011, 0b010), (DecidingRule.CLOSED, None)),
        ((0b111, 0b001), (0b111, 0b010), None),
        ((0b000, 0, 0b001), (0b000, 0, 0b001), (DecidingRule.CLOSED, None)),  # a drained queue for both
        ((0b010, 0, 0b001), (0b100, 0, 0b001), (DecidingRule.CLOSED, None)),
        ((0b011, 0), (0b010, 0, 0b001), None),
        ((0b000, 0, 0b001), (0b010, 0), (DecidingRule.QUEUES, None)),
    ],
)
def test_only_at_a_queue_that_takes_both_they_compete(
    first: tuple[int, ...], second: tuple[int, ...], expected: tuple[DecidingRule, float | None] | None
) -> None:
    found = precedence.find_obstacle(OpenQueues(*first), OpenQueues(*second))
    assert (found and (found.rule, found.chance)) == expected


def test_parts_of_one_weight_are_told_with_what_they_share() -> None:
    pair = [_contender(replace(_task_queue(number, 214.3), family=9)) for number in (1, 2)]
    assert precedence.describe(*pair, precedence.decide(*pair, ())) == (
        "each comes first as often as the other: the task queues of both are parts of one owner's work and "
        "have one weight together, 214.3"
    )


def _split(task_queues: Sequence[TaskQueue], stated: dict[str, float], used: float = 1) -> ShareSplit:
    groups = {
        ShareHolder("cms", name): Group.model_validate({"JobShare": each}) for name, each in stated.items()
    }
    demands = [
        ShareDemand(
            task_queue_id=each.task_queue_id,
            vo=each.vo,
            owner_group=each.owner_group,
            owner=each.owner,
            family=each.family,
            raw=1,
        )
        for each in task_queues
    ]
    of_groups = shares.compute_group_shares(demands, groups)
    corrected = {who: share * (used if who.owner_group == "prod" else 1) for who, share in of_groups.items()}
    even = shares.compute_holder_shares(demands, groups, corrected)
    return ShareSplit(
        stated=of_groups,
        of_groups=corrected,
        even=even,
        of_holders=even,
        weights=shares.compute_weights(demands, groups, even),
    )


def _of(number: int, group: str, owner: str) -> TaskQueue:
    asked = RequirementClass(vo="cms", cpu_time=1, gpus=number)
    return make_task_queue(number, 0, asked=asked, owner=owner, owner_group=group)


@pytest.mark.parametrize(
    ("stated", "used", "strongest"),
    [
        ({"prod": 9000, "users": 1000}, 1, "share of the group"),
        ({"prod": 1000, "users": 1000}, 8, "share of the group, corrected by use"),
        ({"prod": 1000, "users": 1000}, 1, "part of the owner, of those with waiting jobs"),
    ],
)
def test_the_step_that_differs_most_is_named(stated: dict[str, float], used: float, strongest: str) -> None:
    task_queues = [
        _of(1, "prod", "ada"),
        *(_of(2 + n, "users", each) for n, each in enumerate(("ada", "bob"))),
    ]
    split = _split(task_queues, stated, used)
    steps = precedence.list_steps(split, task_queues[0], task_queues[1])
    assert (steps[-1].first, steps[-1].second) == (split.weights[1], split.weights[2])
    found = precedence.find_strongest(steps)
    assert found is not None
    assert found.what == strongest
    ratios = [each.ratio for each in steps]
    assert math.prod(ratios) == pytest.approx(split.weights[1] / split.weights[2])


def test_where_all_is_equal_nothing_is_named() -> None:
    one, other = _of(1, "users", "ada"), _of(2, "users", "bob")
    steps = precedence.list_steps(_split([one, other], {"users": 5}), one, other)
    assert precedence.find_strongest(steps) is None


def test_of_a_task_queue_without_jobs_there_are_no_steps() -> None:
    one, other = _of(1, "prod", "ada"), _of(2, "users", "bob")
    assert precedence.list_steps(_split([one], {"prod": 1}), one, other) == []
