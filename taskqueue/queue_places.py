"""Places to wait: requirement classes and task queues, made when the first job comes that needs them."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, tuple_
from sqlalchemy.sql.dml import Insert

from taskqueue import batches
from taskqueue.classes import RequirementClass
from taskqueue.tables import requirement_classes, task_queues
from taskqueue.upserts import Twins, Upsert

#: What a job asks, its owner group and its owner: a task queue.
Place = tuple[RequirementClass, str, str]

_Key = tuple[int, str, str]  # class id, owner group, owner


def _keep(insert: Upsert) -> Insert:
    return insert.on_conflict_do_nothing()


NEW_CLASS = Twins(requirement_classes, _keep)
NEW_TASK_QUEUE = Twins(task_queues, _keep)

CLASS_IDS = select(requirement_classes.c.digest, requirement_classes.c.class_id).where(
    requirement_classes.c.digest.in_(bindparam("digests", expanding=True))
)
TASK_QUEUE_IDS = select(
    task_queues.c.class_id, task_queues.c.owner_group, task_queues.c.owner, task_queues.c.task_queue_id
).where(
    tuple_(task_queues.c.class_id, task_queues.c.owner_group, task_queues.c.owner).in_(
        bindparam("keys", expanding=True)
    )
)
# KEY SHARE: only the removal of a class has to wait.
LOCK_CLASSES = (
    select(requirement_classes.c.class_id)
    .where(requirement_classes.c.class_id.in_(bindparam("ids", expanding=True)))
    .order_by(requirement_classes.c.class_id)
    .with_for_update(read=True, key_share=True)
)


def ensure(conn: Connection, wanted: Collection[Place], *, now: datetime) -> Mapping[Place, int]:
    """Ids of the task queues of these places, made if need be; without those that are removed just now."""
    classes = _ensure_classes(conn, {asked.digest: asked for asked, _, _ in wanted})
    by_key = {
        (classes[asked.digest], owner_group, owner): (asked, owner_group, owner)
        for asked, owner_group, owner in wanted
        if asked.digest in classes
    }
    found = _ensure_task_queues(conn, by_key, now)
    return {by_key[key]: task_queue_id for key, task_queue_id in found.items()}


def _ensure_classes(conn: Connection, classes: Mapping[str, RequirementClass]) -> Mapping[str, int]:
    digests = sorted(classes)
    known = _class_ids(conn, digests)
    if missing := [digest for digest in digests if digest not in known]:
        conn.execute(NEW_CLASS.of(conn), [_class_row(classes[digest]) for digest in missing])
        known = _class_ids(conn, digests)
    return known


def _class_row(asked: RequirementClass) -> dict[str, object]:
    return {"digest": asked.digest, "vo": asked.vo, "definition": asked.to_json()}


def _class_ids(conn: Connection, digests: Sequence[str]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for some in batches.of(digests):
        rows = conn.execute(CLASS_IDS, {"digests": some})
        found |= {row.digest: row.class_id for row in rows}
    return found


def _ensure_task_queues(conn: Connection, by_key: Mapping[_Key, Place], now: datetime) -> Mapping[_Key, int]:
    known = _task_queue_ids(conn, list(by_key))
    missing = sorted(key for key in by_key if key not in known)
    if not missing or not _lock_classes(conn, {class_id for class_id, _, _ in missing}):
        return known
    conn.execute(NEW_TASK_QUEUE.of(conn), [_queue_row(key, by_key[key][0].vo, now) for key in missing])
    return _task_queue_ids(conn, list(by_key))


def _queue_row(key: _Key, vo: str, now: datetime) -> dict[str, object]:
    class_id, owner_group, owner = key
    return {
        "class_id": class_id,
        "vo": vo,
        "owner": owner,
        "owner_group": owner_group,
        "priority": 1.0,
        "occupied": False,  # who puts jobs in says it, with the change that the matchers read
        "changed_at": now,
    }


def _lock_classes(conn: Connection, class_ids: Collection[int]) -> bool:
    """Keep classes from being removed before they have their task queue; False: one is gone."""
    return all(
        len(conn.execute(LOCK_CLASSES, {"ids": ids}).all()) == len(ids) for ids in batches.of(class_ids)
    )


def _task_queue_ids(conn: Connection, keys: Sequence[_Key]) -> Mapping[_Key, int]:
    found: dict[_Key, int] = {}
    for some in batches.of(keys):
        rows = conn.execute(TASK_QUEUE_IDS, {"keys": some})
        found |= {(row.class_id, row.owner_group, row.owner): row.task_queue_id for row in rows}
    return found
