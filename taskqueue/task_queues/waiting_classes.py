"""Requirement classes with waiting jobs: number of jobs and oldest job of each."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from taskqueue.db import sql
from taskqueue.schema.tables import (
    descriptions,
    jobs,
    requirement_classes,
    submit_pools,
    task_queues,
    waiting_jobs,
)
from taskqueue.task_queues.requirement_class import RequirementClass

_counts = (
    select(
        waiting_jobs.c.task_queue_id,
        func.count().label("jobs"),
        func.min(waiting_jobs.c.job_id).label("first"),
    )
    .group_by(waiting_jobs.c.task_queue_id)
    .subquery()
)
WAITING = (
    select(
        task_queues.c.class_id,
        requirement_classes.c.definition,
        func.sum(_counts.c.jobs).label("jobs"),
        func.min(_counts.c.first).label("first"),
    )
    .select_from(_counts)
    .join(task_queues, task_queues.c.task_queue_id == _counts.c.task_queue_id)
    .join(requirement_classes, requirement_classes.c.class_id == task_queues.c.class_id)
    .group_by(task_queues.c.class_id, requirement_classes.c.definition)
    .order_by(task_queues.c.class_id)
)
WAITING_OF = WAITING.where(requirement_classes.c.vo.in_(bindparam("vos", expanding=True)))
ORIGINALS = select(submit_pools.c.pool_id, submit_pools.c.original).where(
    submit_pools.c.pool_id.in_(bindparam("pool_ids", expanding=True))
)


FIRST_JOBS = (
    select(
        *(jobs.c.job_id, jobs.c.vo, jobs.c.owner, jobs.c.owner_group, jobs.c.job_name, jobs.c.job_type),
        *(jobs.c.job_group, jobs.c.priority, jobs.c.parameters, descriptions.c.body),
    )
    .join(descriptions, descriptions.c.description_id == jobs.c.description_id)
    .where(jobs.c.job_id.in_(bindparam("job_ids", expanding=True)))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingClass:
    """A requirement class with waiting jobs."""

    asked: RequirementClass
    requirements: str | None  #: its pool's Requirements as first written, JSON; None: it has no pool
    jobs: int
    first_job: int  #: id of the oldest


def list_waiting(conn: Connection, vos: Collection[str] | None) -> list[WaitingClass]:
    """Classes of these VOs (None: all) with waiting jobs."""
    rows = conn.execute(WAITING) if vos is None else conn.execute(WAITING_OF, {"vos": sorted(vos)})
    found = [(_parse_class(row.definition), int(row.jobs), row.first) for row in rows]
    originals = dict(_read_originals(conn, {asked.submit_pool for asked, *_ in found if asked.submit_pool}))
    return [
        WaitingClass(
            asked=asked, requirements=originals.get(asked.submit_pool or ""), jobs=jobs, first_job=first
        )
        for asked, jobs, first in found
    ]


@lru_cache(maxsize=20_000)
def _parse_class(definition: str) -> RequirementClass:
    """Cached: definitions never change, and are parsed for every query of a queue."""
    return RequirementClass.from_json(definition)


def list_first_jobs(conn: Connection, waiting: Collection[WaitingClass]) -> Iterator[Row[*tuple[Any, ...]]]:
    """The oldest job of each class, with its description."""
    for job_ids in sql.split_batches([each.first_job for each in waiting]):
        yield from conn.execute(FIRST_JOBS, {"job_ids": job_ids}).all()


def _read_originals(conn: Connection, pool_ids: Collection[str]) -> Iterator[tuple[str, str]]:
    for some in sql.split_batches(pool_ids):
        rows = conn.execute(ORIGINALS, {"pool_ids": some})
        yield from ((row.pool_id, row.original) for row in rows)
