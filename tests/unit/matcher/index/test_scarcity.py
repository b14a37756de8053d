"""Scarce slots: of one owner's jobs those with the least choice come first, and nobody's chance changes."""

import math
import statistics
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from matcher.index.waiting import Candidates, IndexChanges, WaitingIndex, draw_candidates
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource
from taskqueue.task_queues.change_feed import FeedPosition
from taskqueue.task_queues.priorities import Weight
from taskqueue.task_queues.task_queues import TaskQueue
from tests.support.factories.task_queues import make_task_queue

_POSITION = FeedPosition(history=(), low=0, high=0)
#: Owner, weight, slots.
_Member = tuple[str, float, int | None]


def _task_queue(number: int, member: _Member) -> TaskQueue:
    owner, weight, supply = member
    asked = RequirementClass(vo="cms", cpu_time=1)
    return make_task_queue(number, weight, asked=asked, owner=owner, supply=supply)


def _list(members: Sequence[_Member]) -> list[TaskQueue]:
    return [_task_queue(number, member) for number, member in enumerate(members, start=1)]


def _index(task_queues: Sequence[TaskQueue]) -> WaitingIndex:
    waiting = WaitingIndex()
    waiting.apply(IndexChanges(position=_POSITION, occupied=task_queues))
    return waiting


def _candidates(waiting: WaitingIndex, random: Random) -> Candidates:
    resource = Resource(cpu_time=10, vos=frozenset({"cms"}))
    return Candidates(waiting, resource, frozenset(), lock=threading.Lock(), random=random)


def _order(task_queues: Sequence[TaskQueue], seed: int, *, indexed: bool) -> list[TaskQueue]:
    chance = Random(seed)
    among = _candidates(_index(task_queues), chance) if indexed else task_queues
    return list(draw_candidates(among, chance))


_MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["ada", "bob", "eve"]),
        st.sampled_from([1.0, 10.0]),
        st.sampled_from([None, 0, 5, 100, 104, 3000]),
    ),
    min_size=1,
    max_size=100,
)


@given(_MEMBERS, st.integers(0, 1000), st.booleans())
def test_the_owner_who_is_served_is_the_one_who_was_drawn(
    members: list[_Member], seed: int, indexed: bool
) -> None:
    task_queues = _list(members)
    uncounted = [replace(each, supply=None) for each in task_queues]
    found = _order(task_queues, seed, indexed=indexed)
    assert found[0].owner == _order(uncounted, seed, indexed=indexed)[0].owner
    assert sorted(each.task_queue_id for each in found) == [each.task_queue_id for each in task_queues]


@given(_MEMBERS, st.integers(0, 1000), st.booleans())
def test_no_scarcer_one_of_the_same_owner_comes_later(
    members: list[_Member], seed: int, indexed: bool
) -> None:
    found = _order(_list(members), seed, indexed=indexed)
    for one, other in combinations(found, 2):
        if one.owner == other.owner and one.supply is not None and other.supply is not None:
            assert other.supply * 1.1 >= one.supply or found.index(other) > 64


def test_the_index_follows_changes_of_slots() -> None:
    waiting = _index(_list([("ada", 1.0, None), ("ada", 1000.0, None)]))
    chance = Random(3)

    def count_first(number: int) -> int:
        orders = (draw_candidates(_candidates(waiting, chance), chance) for _ in range(200))
        return sum(next(order).task_queue_id == number for order in orders)

    def apply(first: Weight, second: Weight) -> None:
        waiting.apply(IndexChanges(position=_POSITION, weights={1: first, 2: second}))

    assert count_first(1) < 20, "by weights alone"
    apply(Weight(1.0, 3), Weight(1000.0, 50))
    assert count_first(1) == 200
    apply(Weight(1.0, 50), Weight(1000.0, 3))
    assert count_first(1) == 0
    apply(Weight(1.0, None), Weight(1000.0, None))
    assert count_first(1) < 20
    apply(Weight(1.0, 3), Weight(1000.0, 50))
    waiting.exclude([1])
    assert count_first(2) == 200, "one without a free job is no more in the order"


@dataclass(frozen=True)
class _Plant:
    """Slots of queues, each of which runs a job in a round, and classes of jobs for some of the queues."""

    slots: Sequence[int]
    classes: Sequence[tuple[Collection[int], int]]  #: queues, jobs

    @classmethod
    def invent(cls, random: Random, *, nested: bool) -> "_Plant":
        queues = random.randint(2, 5)

        def choose() -> Collection[int]:
            size = random.randint(1, queues)
            return range(size) if nested else random.sample(range(queues), size)

        slots = [random.randint(1, 6) for _ in range(queues)]
        return cls(slots, [(choose(), random.randint(20, 200)) for _ in range(random.randint(2, 5))])

    def count_slots(self, queues: Collection[int]) -> int:
        return sum(self.slots[queue] for queue in queues)

    @property
    def fewest_rounds(self) -> int:
        """The optimum of the linear programme: no set of classes can end before its queues have run it."""
        sets = chain.from_iterable(
            combinations(self.classes, size) for size in range(1, len(self.classes) + 1)
        )
        return max(
            math.ceil(
                sum(jobs for _, jobs in some)
                / self.count_slots(frozenset(chain.from_iterable(queues for queues, _ in some)))
            )
            for some in sets
        )

    def count_rounds(self, supply: Callable[[Collection[int]], int | None], random: Random) -> int:
        """How long it takes as the matcher draws, with all jobs of one owner."""
        left = [jobs for _, jobs in self.classes]
        task_queues = _list([("ada", 1.0, supply(queues)) for queues, _ in self.classes])
        rounds = 0
        while any(left):
            rounds += 1
            for queue in [queue for queue, number in enumerate(self.slots) for _ in range(number)]:
                fitting = [
                    each
                    for each, (queues, _), jobs in zip(task_queues, self.classes, left, strict=True)
                    if jobs and queue in queues
                ]
                if (first := next(draw_candidates(fitting, random), None)) is not None:
                    left[first.task_queue_id - 1] -= 1
        return rounds


def _compare(*, nested: bool) -> tuple[list[float], list[float]]:
    """Rounds with slots counted, and without, over the fewest, in 60 plants."""
    with_slots, without = [], []
    for seed in range(60):
        plant = _Plant.invent(Random(seed), nested=nested)
        with_slots.append(plant.count_rounds(plant.count_slots, Random(1)) / plant.fewest_rounds)
        without.append(plant.count_rounds(lambda _: None, Random(1)) / plant.fewest_rounds)
    return with_slots, without


def test_where_slots_are_nested_all_ends_as_early_as_it_can() -> None:
    with_slots, without = _compare(nested=True)
    assert max(with_slots) <= 1.1
    assert max(without) > 1.4


def test_with_any_slots_all_ends_nearly_as_early_as_it_can() -> None:
    with_slots, without = _compare(nested=False)
    assert statistics.mean(with_slots) <= 1.02
    assert sorted(with_slots)[-3] <= 1.1
    assert statistics.mean(without) > 1.08


def test_where_all_slots_run_all_jobs_nothing_changes() -> None:
    plant = _Plant([3, 4], [(range(2), 50), (range(2), 70)])
    assert plant.count_rounds(plant.count_slots, Random(1)) == plant.count_rounds(lambda _: None, Random(1))
