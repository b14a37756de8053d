"""The order of trying: at random in proportion to weights, nobody left out; splitting work does not help."""

from collections import Counter
from itertools import islice
from random import Random

import pytest

from matcher.index import sampling
from taskqueue.task_queues.task_queues import TaskQueue
from tests.support.factories.task_queues import make_task_queue


def test_every_task_queue_comes_exactly_once() -> None:
    some = [make_task_queue(number, 1 + number % 3) for number in range(50)]
    drawn = [each.task_queue_id for each in sampling.draw_order(some, Random(1))]
    assert sorted(drawn) == list(range(50))
    assert drawn != sorted(drawn)


def test_nothing_to_draw_from_gives_nothing() -> None:
    assert list(sampling.draw_order([], Random(1))) == []


def test_a_task_queue_without_weight_comes_last_but_comes() -> None:
    some = [make_task_queue(1, 0.0), make_task_queue(2, 1.0)]
    for seed in range(20):
        assert [each.task_queue_id for each in islice(sampling.draw_order(some, Random(seed)), 2)] == [2, 1]


def first(*task_queues: TaskQueue, draws: int = 20_000) -> Counter[str]:
    chance = Random(1)
    return Counter(next(sampling.draw_order(task_queues, chance)).owner for _ in range(draws))


@pytest.mark.parametrize("heavy", [2.0, 9.0, 1000.0])
def test_task_queues_come_first_in_proportion_to_their_weights(heavy: float) -> None:
    found = first(make_task_queue(1, heavy), make_task_queue(2, 1.0, owner="bob"))
    assert found["bob"] / 20_000 == pytest.approx(1 / (heavy + 1), rel=0.25)


def test_the_sum_decides_and_not_the_number_of_task_queues() -> None:
    several = [make_task_queue(number, 100.0) for number in range(10)]
    found = first(*several, make_task_queue(99, 1000.0, owner="bob"), draws=5000)
    assert found["bob"] / 5000 == pytest.approx(0.5, rel=0.1)


def test_work_that_is_split_by_site_wins_no_more_often_than_unsplit_where_all_parts_fit() -> None:
    """In DIRAC an owner with ten such task queues wins ten times as often as another with the same share."""
    parts = [make_task_queue(number, 500.0, family=1) for number in range(10)]
    found = first(*parts, make_task_queue(99, 500.0, owner="bob"), draws=5000)
    assert found["bob"] / 5000 == pytest.approx(0.5, rel=0.1)
