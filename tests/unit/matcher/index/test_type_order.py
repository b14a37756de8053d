"""The order of job types: tiers before shares, and shares within a type as without tiers."""

import threading
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs_config.options import job_tiers
from cs_config.options.job_tiers import JobTiers, find_tier
from matcher.index import waiting as waiting_index
from matcher.index.waiting import Candidates, IndexChanges, WaitingIndex, draw_candidates
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from requirements.values import fold
from taskqueue.task_queues.change_feed import FeedPosition
from taskqueue.task_queues.task_queues import TaskQueue
from tests.support.factories.task_queues import make_task_queue

_TYPES = ("MC", "Merge", "User", "")


class _HeaviestFirst(Random):
    """Chance that always does the likeliest."""

    def choices(self, population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> Any:
        assert weights is None
        alone = [each - before for each, before in zip(cum_weights, [0.0, *cum_weights], strict=False)]
        return [population[max(range(len(alone)), key=alone.__getitem__)]] * k

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1 / lambd


def _task_queues(members: Sequence[tuple[str, str]], *, classes: int = 1) -> list[TaskQueue]:
    """Of VO and type, each with a weight and family of its own, in some order of their weights."""
    found = []
    for number, (vo, job_type) in enumerate(members, start=1):
        asked = RequirementClass(vo=vo, cpu_time=1, job_types=frozenset({job_type} - {""}))
        class_id = number if classes == 1 else number % classes
        found.append(make_task_queue(number, number * 37 % 101 + 1.0, asked=asked, class_id=class_id))
    return found


def _indexed(
    task_queues: Sequence[TaskQueue], random: Random, vos: frozenset[str], *, in_loop: bool = False
) -> Candidates:
    waiting = WaitingIndex()
    waiting.apply(IndexChanges(position=FeedPosition(history=(), low=0, high=0), occupied=task_queues))
    resource = Resource(cpu_time=10, vos=vos)
    return Candidates(waiting, resource, frozenset(), lock=threading.Lock(), random=random, in_loop=in_loop)


def _order(task_queues: Sequence[TaskQueue], tiers: Mapping[str, JobTiers]) -> list[TaskQueue]:
    """The likeliest order, from the definition: the weights say which VO is next, its tiers which of it."""
    by_weight = sorted(task_queues, key=lambda each: -each.priority)
    of_vo: dict[str, list[TaskQueue]] = {}
    for vo in {each.vo for each in task_queues}:
        own = [each for each in by_weight if each.vo == vo]
        weights = {fold(name): weight for tier in tiers.get(vo, ()) for name, weight in tier.weights.items()}

        def place(
            each: TaskQueue, vo: str = vo, weights: Mapping[str, float] = weights
        ) -> tuple[float, float]:
            [name] = each.requirement_class.job_types or {""}
            return find_tier(tiers[vo], [name]), -weights.get(fold(name), 0.0)

        of_vo[vo] = sorted(own, key=place) if vo in tiers else own
    turns = {vo: iter(own) for vo, own in of_vo.items()}
    return [next(turns[each.vo]) for each in by_weight]


_MEMBERS = st.lists(st.tuples(st.sampled_from(["cms", "lhcb"]), st.sampled_from(_TYPES)), max_size=30)
_LISTS = st.sampled_from(
    [("MC",), ("merge", "MC"), ("{MC: 3, User: 2}", "Merge"), ("None", "{Merge: 5, MC: 1, User: 2}")]
)
_TIERS = st.dictionaries(st.sampled_from(["cms", "lhcb"]), _LISTS.map(job_tiers.read_tiers))


@given(_MEMBERS, _TIERS)
def test_an_earlier_tier_comes_first_and_shares_decide_the_rest(
    members: list[tuple[str, str]], tiers: Mapping[str, JobTiers]
) -> None:
    task_queues = _task_queues(members)
    expected = _order(task_queues, tiers)
    assert list(draw_candidates(task_queues, _HeaviestFirst(), tiers)) == expected, "a list"
    chance = _HeaviestFirst()
    indexed = _indexed(task_queues, chance, frozenset({"cms", "lhcb"}))
    assert list(draw_candidates(indexed, chance, tiers)) == expected, "the index"


@given(_MEMBERS, st.integers(0, 1000))
def test_with_any_chance_all_come_once_and_tiers_are_kept(members: list[tuple[str, str]], seed: int) -> None:
    task_queues, tiers = _task_queues(members), job_tiers.read_tiers(("Merge", "{MC: 1, User: 4}"))
    chance = Random(seed)
    indexed = _indexed(task_queues, chance, frozenset({"cms", "lhcb"}))
    drawn = list(draw_candidates(indexed, chance, {"lhcb": tiers}))
    assert sorted(map(attrgetter("task_queue_id"), drawn)) == [each.task_queue_id for each in task_queues]
    types = [each.requirement_class.job_types for each in drawn if each.vo == "lhcb"]
    numbers = [find_tier(tiers, each) for each in types]
    assert numbers == sorted(numbers)
    assert len([kind for kind, _ in groupby(types)]) == len(set(types)), "one type after the other"


@given(_MEMBERS, st.integers(0, 1000))
def test_without_tiers_chance_is_used_as_before(members: list[tuple[str, str]], seed: int) -> None:
    drawn = draw_candidates(_task_queues(members), Random(seed), {"atlas": job_tiers.read_tiers(("MC",))})
    assert list(drawn) == list(draw_candidates(_task_queues(members), Random(seed)))


@pytest.mark.parametrize("rare", [1, 3])
def test_a_rare_type_among_very_many_others_is_first(rare: int) -> None:
    members = [("lhcb", "User")] * 2000 + [("lhcb", "MC")] * rare
    task_queues, chance = _task_queues(members), Random(3)
    indexed = _indexed(task_queues, chance, frozenset({"lhcb"}))
    drawn = draw_candidates(indexed, chance, {"lhcb": job_tiers.read_tiers(("MC",))})
    first = [next(drawn).requirement_class.job_types for _ in range(rare + 1)]
    assert first == [{"MC"}] * rare + [{"User"}]


@pytest.mark.parametrize("tiers", [{}, {"lhcb": job_tiers.read_tiers(("MC",))}])
def test_in_the_event_loop_what_matches_is_only_listed_where_the_index_is_small(
    monkeypatch: pytest.MonkeyPatch, tiers: Mapping[str, JobTiers]
) -> None:
    task_queues, chance, vos = _task_queues([("lhcb", "MC")] * 100), Random(3), frozenset({"lhcb"})
    for most, in_loop, is_listed in (99, False, True), (100, True, True), (99, True, False):
        monkeypatch.setattr(waiting_index, "LARGE", most)
        indexed = _indexed(task_queues, chance, vos, in_loop=in_loop)
        drawn = list(draw_candidates(indexed, chance, tiers))
        assert (len(drawn) == 100) == is_listed
        assert 1 <= len(set(drawn)) == len(drawn)


def test_a_type_that_no_pilot_of_the_place_may_run_does_not_hold_up_others() -> None:
    managed = _task_queues([("lhcb", "montecarlo"), ("lhcb", "User")])
    waiting = WaitingIndex()
    waiting.apply(IndexChanges(position=FeedPosition(history=(), low=0, high=0), occupied=managed))
    resource = Resource(cpu_time=10, managed_types=frozenset({(None, frozenset({"montecarlo"}))}))
    chance = Random(1)
    found = Candidates(waiting, resource, frozenset(), lock=threading.Lock(), random=chance)
    drawn = draw_candidates(found, chance, {"lhcb": job_tiers.read_tiers(("montecarlo",))})
    assert [each.requirement_class.job_types for each in drawn] == [{"User"}]
