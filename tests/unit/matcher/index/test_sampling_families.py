"""Weights are proportions, and splitting work does not multiply them."""

from collections import Counter
from random import Random

import pytest

from matcher.index import sampling
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.task_queues import TaskQueue


def task_queue(number: int, weight: float, *, owner: str = "ann", family: int | None = None) -> TaskQueue:
    return TaskQueue(
        task_queue_id=number,
        class_id=number,
        requirement_class=RequirementClass(vo="lhcb", cpu_time=3600),
        vo="lhcb",
        owner=owner,
        owner_group="lhcb_user",
        priority=weight,
        family=number if family is None else family,
    )


def first(*task_queues: TaskQueue, draws: int = 20_000) -> Counter[str]:
    chance = Random(1)
    return Counter(next(sampling.draw_order(task_queues, chance)).owner for _ in range(draws))


@pytest.mark.parametrize("heavy", [2.0, 9.0, 1000.0])
def test_task_queues_come_first_in_proportion_to_their_weights(heavy: float) -> None:
    found = first(task_queue(1, heavy), task_queue(2, 1.0, owner="bob"))
    assert found["bob"] / 20_000 == pytest.approx(1 / (heavy + 1), rel=0.25)


def test_the_sum_decides_and_not_the_number_of_task_queues() -> None:
    several = [task_queue(number, 100.0) for number in range(10)]
    found = first(*several, task_queue(99, 1000.0, owner="bob"), draws=5000)
    assert found["bob"] / 5000 == pytest.approx(0.5, rel=0.1)


def test_work_that_is_split_by_site_wins_no_more_often_than_unsplit_where_all_parts_fit() -> None:
    """In DIRAC an owner with ten such task queues wins ten times as often as another with the same share."""
    parts = [task_queue(number, 500.0, family=1) for number in range(10)]
    found = first(*parts, task_queue(99, 500.0, owner="bob"), draws=5000)
    assert found["bob"] / 5000 == pytest.approx(0.5, rel=0.1)
