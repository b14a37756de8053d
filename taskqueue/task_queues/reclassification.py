"""Derive the requirement classes of waiting jobs again when the defaults of their VO have changed.

The task queues of a class get the class that the same jobs would have today, so a change costs a row for each
task queue and not for each job. Only what is a column of the job itself, such as its priority, is written for
each job that does not state it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BindParameter,
    ColumnElement,
    Connection,
    Float,
    bindparam,
    cast,
    exists,
    func,
    select,
    update,
)

from cs_config.options import keywords
from cs_config.options.options import VoOptions
from requirements.requirement_class import RequirementClass
from requirements.states import JobStatus
from taskqueue.db import sql
from taskqueue.schema.tables import descriptions, jobs, requirement_classes, task_queues, waiting_jobs
from taskqueue.task_queues import change_feed, wait_causes
from taskqueue.task_queues.class_derivation import PRIORITY, derive_class_again
from taskqueue.task_queues.task_queues import ensure_classes

_HAS_JOBS = exists().where(task_queues.c.class_id == requirement_classes.c.class_id, task_queues.c.occupied)

DERIVED = select(requirement_classes.c.vo, requirement_classes.c.derived_with).where(_HAS_JOBS).distinct()
OUTDATED = (
    select(requirement_classes.c.class_id, requirement_classes.c.definition)
    .where(
        requirement_classes.c.vo == bindparam("the_vo"),
        requirement_classes.c.derived_with != bindparam("todays"),
        requirement_classes.c.class_id > bindparam("after"),
        _HAS_JOBS,
    )
    .order_by(requirement_classes.c.class_id)
    .limit(bindparam("most"))
)
_OF_CLASS = (
    select(task_queues.c.task_queue_id, task_queues.c.owner_group, task_queues.c.owner)
    .where(task_queues.c.class_id == bindparam("the_class"))
    .order_by(task_queues.c.task_queue_id)
)
#: Until the commit no task queue of these is inserted, and none of them is removed.
LOCK_CLASSES = (
    select(requirement_classes.c.class_id)
    .where(sql.is_listed(requirement_classes.c.class_id))
    .order_by(requirement_classes.c.class_id)
    .with_for_update()
)
LOCK_TASK_QUEUES = (
    select(task_queues.c.task_queue_id)
    .where(sql.is_listed(task_queues.c.class_id))
    .order_by(task_queues.c.task_queue_id)
    .with_for_update(key_share=True)
)
MOVE = (
    update(task_queues)
    .where(task_queues.c.task_queue_id == bindparam("the_task_queue"))
    .values(class_id=bindparam("new_class"))
)
OCCUPY = (
    update(task_queues)
    .where(task_queues.c.task_queue_id == bindparam("the_task_queue"))
    .values(occupied=True)
)
MARK = (
    update(requirement_classes)
    .where(requirement_classes.c.class_id == bindparam("the_class"))
    .values(derived_with=bindparam("todays"))
)


def _list_waiting(*differs: ColumnElement[bool]) -> Any:
    """Select and lock waiting jobs of a task queue that differ, after the claims that have locked some."""
    return (
        select(waiting_jobs.c.job_id)
        .select_from(waiting_jobs.join(jobs, jobs.c.job_id == waiting_jobs.c.job_id))
        .where(waiting_jobs.c.task_queue_id == bindparam("the_task_queue"), *differs)
        .order_by(waiting_jobs.c.job_id)
        .limit(bindparam("most"))
        .with_for_update(of=waiting_jobs)
    )


_value: BindParameter[Any] = bindparam("value")
#: Jobs of a task queue to be written, by attribute of their description.
WITH_OTHER = {
    PRIORITY: _list_waiting(waiting_jobs.c.priority != _value),
    "job_type": _list_waiting(jobs.c.job_type != _value),
    "sites": _list_waiting(jobs.c.site != _value),
}
_as_json = cast(descriptions.c.body, JSON)
_STATED: Mapping[str, ColumnElement[Any]] = {
    "postgresql": cast(func.json_extract_path_text(_as_json, PRIORITY.capitalize()), Float),
    "sqlite": func.json_extract(descriptions.c.body, f"$.{PRIORITY.capitalize()}"),
}
#: Jobs of a task queue that state another priority than they have, with that which they state.
WITH_OTHER_STATED = {
    dialect: _list_waiting(waiting_jobs.c.priority != stated)
    .add_columns(stated.label("stated"))
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    for dialect, stated in _STATED.items()
}
ALL_WAITING = _list_waiting()
_STILL_WAITS = (sql.is_listed(jobs.c.job_id), jobs.c.status == JobStatus.WAITING.value)
SET_JOB = {
    PRIORITY: update(jobs).where(*_STILL_WAITS).values(priority=_value),
    "job_type": update(jobs).where(*_STILL_WAITS).values(job_type=_value),
    "sites": update(jobs).where(*_STILL_WAITS).values(site=_value),
}
SET_TASK_QUEUE = update(jobs).where(*_STILL_WAITS).values(task_queue_id=bindparam("other"))
PUT_IN = (
    update(waiting_jobs).where(sql.is_listed(waiting_jobs.c.job_id)).values(task_queue_id=bindparam("other"))
)
SET_PRIORITY = update(waiting_jobs).where(sql.is_listed(waiting_jobs.c.job_id)).values(priority=_value)


def list_digests(conn: Connection) -> Mapping[str, frozenset[str]]:
    """The digests of options with which the classes with waiting jobs were derived, by VO."""
    found: dict[str, frozenset[str]] = {}
    for row in conn.execute(DERIVED):
        found[row.vo] = found.get(row.vo, frozenset()) | {row.derived_with}
    return found


def list_outdated(
    conn: Connection, vo: str, options: VoOptions, *, after: int, most: int
) -> list[tuple[int, RequirementClass | None]]:
    """A page of the classes of a VO with waiting jobs that were derived with other options, by id.

    Without definition: only a later release can read it.
    """
    values = {"the_vo": vo, "todays": options.class_digest, "after": after, "most": most}
    rows = conn.execute(OUTDATED, values)
    return [(row.class_id, RequirementClass.from_json(row.definition)) for row in rows]


def derive_again(
    conn: Connection,
    *,
    known: Mapping[int, RequirementClass],
    options: VoOptions,
    now: datetime,
    most: int,
) -> int:
    """Derive classes, given by id, with other options; how many jobs were written.

    To be repeated with the same classes while it is `most`.
    """
    today = {
        class_id: replace(derive_class_again(before, options), derived_with=options.class_digest)
        for class_id, before in known.items()
    }
    ids = _hold_classes(conn, {new.digest: new for new in today.values()})
    # In one order, in which arriving jobs lock them, too.
    conn.execute(LOCK_TASK_QUEUES, {"ids": sorted({*known, *ids.values()})}).all()
    written = 0
    for class_id, before in known.items():
        # The columns first: their jobs are found by the class that they have.
        for name, value in _list_columns(before, options).items():
            written += _write_column(conn, class_id, name, value, most=most - written)
            if written == most:
                return written
        if before.states(PRIORITY) and options.job_scheduling.enable_user_priority:
            written += _restore_priorities(conn, class_id, most=most - written)
            if written == most:
                return written
        new = today[class_id]
        written += _move_class(conn, class_id, ids[new.digest], new, now=now, most=most - written)
        if written == most:
            return written
    return written


def _hold_classes(conn: Connection, classes: Mapping[str, RequirementClass]) -> Mapping[str, int]:
    while True:
        ids = ensure_classes(conn, classes)
        if len(sql.read_batches(conn, LOCK_CLASSES, ids.values())) == len(classes):
            return ids
        # An unused class was removed meanwhile: insert it again.


def _list_columns(before: RequirementClass, options: VoOptions) -> Mapping[str, object]:
    """Values of the columns that jobs of a class have by default, by attribute."""
    today = derive_class_again(before, options)
    counts = options.job_scheduling.enable_user_priority
    priority = float(str(options.job_description.filled_in[PRIORITY.capitalize()]))
    values: dict[str, object] = {
        PRIORITY: priority if counts else keywords.UNUSED_PRIORITY,
        "job_type": min(today.job_types, default=""),
    }
    if not before.replicas:
        sites = sorted(today.sites)
        values["sites"] = "ANY" if not sites else sites[0] if len(sites) == 1 else "Multiple"
    return {
        name: value
        for name, value in values.items()
        if not before.states(name) or (name == PRIORITY and not counts)
    }


def _write_column(conn: Connection, class_id: int, attribute: str, value: object, *, most: int) -> int:
    """Write a column of waiting jobs of a class that have another value, at most `most`; how many."""
    found: list[int] = []
    for row in conn.execute(_OF_CLASS, {"the_class": class_id}):
        values = {"the_task_queue": row.task_queue_id, "value": value, "most": most - len(found)}
        found += conn.execute(WITH_OTHER[attribute], values).scalars()
        if len(found) >= most:
            break
    _set_column(conn, attribute, found, value)
    return len(found)


def _restore_priorities(conn: Connection, class_id: int, *, most: int) -> int:
    """Give waiting jobs of a class the priority that they state, at most `most`; how many had another."""
    of_value: defaultdict[float, list[int]] = defaultdict(list)
    statement, left = WITH_OTHER_STATED[conn.dialect.name], most
    for row in conn.execute(_OF_CLASS, {"the_class": class_id}).all():
        for job_id, stated in conn.execute(statement, {"the_task_queue": row.task_queue_id, "most": left}):
            of_value[stated].append(job_id)
            left -= 1
        if not left:
            break
    for stated, job_ids in of_value.items():
        _set_column(conn, PRIORITY, job_ids, stated)
    return most - left


def _set_column(conn: Connection, attribute: str, job_ids: Collection[int], value: object) -> None:
    for ids in sql.split_batches(job_ids):
        if attribute == PRIORITY:
            conn.execute(SET_PRIORITY, {"ids": ids, "value": value})
        conn.execute(SET_JOB[attribute], {"ids": ids, "value": value})


def _move_class(
    conn: Connection, class_id: int, new_id: int, new: RequirementClass, *, now: datetime, most: int
) -> int:
    """Give the task queues of a class the class that is derived today; how many jobs were moved.

    Jobs are moved only where their owner has a task queue of the new class already.
    """
    if new_id == class_id:
        conn.execute(MARK, {"the_class": new_id, "todays": new.derived_with})
        return 0
    there = conn.execute(_OF_CLASS, {"the_class": class_id}).all()
    others = {
        (row.owner_group, row.owner): row.task_queue_id
        for row in conn.execute(_OF_CLASS, {"the_class": new_id})
    }
    free = [row for row in there if (row.owner_group, row.owner) not in others]
    if free:
        conn.execute(MOVE, [{"the_task_queue": row.task_queue_id, "new_class": new_id} for row in free])
        _announce(conn, [row.task_queue_id for row in free], now)
    moved = 0
    for row in there:
        if (other := others.get((row.owner_group, row.owner))) is not None and moved < most:
            moved += _merge(conn, row.task_queue_id, other, now=now, most=most - moved)
    return moved


def _merge(conn: Connection, task_queue_id: int, other: int, *, now: datetime, most: int) -> int:
    found = conn.execute(ALL_WAITING, {"the_task_queue": task_queue_id, "most": most}).scalars().all()
    wait_causes.leave_task_queues(conn, dict.fromkeys(found, task_queue_id), now=now)
    for ids in sql.split_batches(found):
        conn.execute(PUT_IN, {"ids": ids, "other": other})
        conn.execute(SET_TASK_QUEUE, {"ids": ids, "other": other})
    if found:
        conn.execute(OCCUPY, {"the_task_queue": other})
        _announce(conn, [task_queue_id, other], now)
    return len(found)


def _announce(conn: Connection, task_queue_ids: Collection[int], now: datetime) -> None:
    change_feed.append_changes(conn, change_feed.TASK_QUEUE, list(map(str, task_queue_ids)), now=now)
