"""Many changes are applied in parts, so that no request waits for all of them."""

from matcher.index.waiting import IndexChanges, WaitingIndex
from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.change_feed import FeedPosition
from taskqueue.task_queues.priorities import Weight
from taskqueue.task_queues.task_queues import TaskQueue

_POSITION = FeedPosition(history=(), low=0, high=7)


def _task_queue(number: int, priority: float = 1.0) -> TaskQueue:
    return TaskQueue(
        task_queue_id=number,
        class_id=number,
        requirement_class=RequirementClass(vo="cms", cpu_time=number),
        vo="cms",
        owner="ada",
        owner_group="users",
        priority=priority,
        family=number,
        supply=None,
    )


def _list_all(waiting: WaitingIndex) -> dict[int, TaskQueue]:
    return dict(waiting._by_id)


def test_the_parts_of_changes_have_the_effect_of_all_and_the_last_one_tells_the_position() -> None:
    before = IndexChanges(position=_POSITION, occupied=[_task_queue(number) for number in range(60)])
    changes = IndexChanges(
        position=_POSITION,
        checked=frozenset(range(30, 200)),
        occupied=[_task_queue(number, priority=2.0) for number in range(50, 180)],
        weights={number: Weight(priority=5.0, supply=3) for number in range(100)},
    )
    whole, parted = WaitingIndex(), WaitingIndex()
    for waiting in (whole, parted):
        waiting.apply(before)
    parts = list(changes.split())
    whole.apply(changes)
    for part in parts:
        parted.apply(part)
    assert _list_all(parted) == _list_all(whole)
    assert set(_list_all(parted)) == {*range(30), *range(50, 180)}
    assert [part.position for part in parts] == [None] * (len(parts) - 1) + [_POSITION]
    assert max(len(part.checked) + len(part.weights) for part in parts) <= 16
