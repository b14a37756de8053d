"""The order of trying: at random in proportion to priority, nobody left out."""

from itertools import islice
from random import Random

from matcher.index import sampling
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.task_queues import TaskQueue

_ANY = RequirementClass(vo="lhcb", cpu_time=1)


def _task_queue(number: int, priority: float) -> TaskQueue:
    return TaskQueue(
        task_queue_id=number,
        class_id=1,
        requirement_class=_ANY,
        vo="lhcb",
        owner="alice",
        owner_group="lhcb_user",
        priority=priority,
        family=number,
    )


def test_every_task_queue_comes_exactly_once() -> None:
    some = [_task_queue(number, 1 + number % 3) for number in range(50)]
    drawn = [each.task_queue_id for each in sampling.draw_order(some, Random(1))]
    assert sorted(drawn) == list(range(50))
    assert drawn != sorted(drawn)


def test_nothing_to_draw_from_gives_nothing() -> None:
    assert list(sampling.draw_order([], Random(1))) == []


def test_a_task_queue_without_weight_comes_last_but_comes() -> None:
    some = [_task_queue(1, 0.0), _task_queue(2, 1.0)]
    for seed in range(20):
        assert [each.task_queue_id for each in islice(sampling.draw_order(some, Random(seed)), 2)] == [2, 1]
