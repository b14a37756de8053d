"""The requirement class of one job: what matching looks at for it."""

from sqlalchemy import Connection, bindparam, select

from taskqueue.classes import RequirementClass
from taskqueue.tables import requirement_classes, task_queues

OF_TASK_QUEUE = (
    select(requirement_classes.c.definition)
    .join(task_queues, task_queues.c.class_id == requirement_classes.c.class_id)
    .where(task_queues.c.task_queue_id == bindparam("task_queue_id"))
)


def of_task_queue(conn: Connection, task_queue_id: int) -> RequirementClass | None:
    """The class of the jobs in a task queue; None if the task queue is gone."""
    definition = conn.execute(OF_TASK_QUEUE, {"task_queue_id": task_queue_id}).scalar_one_or_none()
    return None if definition is None else RequirementClass.from_json(definition)
