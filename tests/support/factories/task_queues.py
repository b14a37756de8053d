"""Task queues as the index of a matcher has them, without a database."""

from typing import Any

from requirements.requirement_class import RequirementClass
from taskqueue.task_queues.task_queues import TaskQueue

_ANYTHING = RequirementClass(vo="lhcb", cpu_time=1)


def make_task_queue(
    number: int, weight: float = 1.0, *, asked: RequirementClass = _ANYTHING, owner: str = "ann", **more: Any
) -> TaskQueue:
    """A task queue with a class and a family of its own, unless they are among the further fields."""
    fields = {"class_id": number, "owner_group": "users", "family": number, **more}
    return TaskQueue(
        task_queue_id=number, requirement_class=asked, vo=asked.vo, owner=owner, priority=weight, **fields
    )
