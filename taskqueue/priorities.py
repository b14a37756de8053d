"""The weights of task queues in the database: what they follow from, and writing those that changed."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, func, select, update

from taskqueue import batches, changes, shares
from taskqueue.classes import RequirementClass
from taskqueue.shares import Demand
from taskqueue.tables import requirement_classes, task_queues, waiting_jobs

#: Classes that are remembered; beyond that we start anew.
_REMEMBERED = 100_000
_IDS: BindParameter[int] = bindparam("ids", expanding=True)

VOS = select(task_queues.c.vo).where(task_queues.c.occupied).distinct().order_by(task_queues.c.vo)

#: Jobs are many, their priorities few.
_COUNTED = (
    select(
        waiting_jobs.c.task_queue_id,
        waiting_jobs.c.priority.label("user_priority"),
        func.count().label("jobs"),
    )
    .where(
        waiting_jobs.c.task_queue_id.in_(
            select(task_queues.c.task_queue_id).where(task_queues.c.vo == bindparam("vo"))
        )
    )
    .group_by(waiting_jobs.c.task_queue_id, waiting_jobs.c.priority)
    .subquery("counted")
)
WAITING = (
    select(
        task_queues.c.task_queue_id,
        task_queues.c.owner,
        task_queues.c.owner_group,
        task_queues.c.priority,
        requirement_classes.c.digest,
        _COUNTED.c.user_priority,
        _COUNTED.c.jobs,
    )
    .join(_COUNTED, _COUNTED.c.task_queue_id == task_queues.c.task_queue_id)
    .join(requirement_classes, requirement_classes.c.class_id == task_queues.c.class_id)
)
DEFINITIONS = select(requirement_classes.c.digest, requirement_classes.c.definition).where(
    requirement_classes.c.digest.in_(bindparam("digests", expanding=True))
)
APPEARED = select(task_queues.c.task_queue_id, task_queues.c.vo, task_queues.c.changed_at).where(
    task_queues.c.task_queue_id.in_(_IDS), task_queues.c.occupied
)
SET = (
    update(task_queues)
    .where(task_queues.c.task_queue_id == bindparam("the_task_queue"))
    .values(priority=bindparam("weight"))
)
OF_GROUPS = select(task_queues.c.task_queue_id, task_queues.c.priority).where(
    task_queues.c.owner_group.in_(bindparam("groups", expanding=True)), task_queues.c.occupied
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appeared:
    """A task queue that got jobs after it had none."""

    task_queue_id: int
    vo: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A task queue that has jobs, with the weight that it has so far."""

    demand: Demand
    weight: float


def vos(conn: Connection) -> list[str]:
    """The VOs that have task queues with jobs."""
    return list(conn.execute(VOS).scalars())


def appeared(conn: Connection, task_queue_ids: Collection[int]) -> frozenset[Appeared]:
    """Those of the task queues that have jobs, with when they got the first of them."""
    found: set[Appeared] = set()
    for ids in batches.of(task_queue_ids):
        rows = conn.execute(APPEARED, {"ids": ids})
        found |= {Appeared(task_queue_id=row.task_queue_id, vo=row.vo, at=row.changed_at) for row in rows}
    return frozenset(found)


class Families:
    """The families of requirement classes by their digests: definitions are long, and never change."""

    def __init__(self) -> None:
        self._known: dict[str, Hashable] = {}

    def of(self, conn: Connection, digests: Collection[str]) -> Mapping[str, Hashable]:
        """The families of these classes; what is not known yet is read."""
        known = {digest: self._known[digest] for digest in digests if digest in self._known}
        for missing in batches.of(set(digests) - known.keys()):
            for row in conn.execute(DEFINITIONS, {"digests": missing}):
                known[row.digest] = shares.family(RequirementClass.from_json(row.definition))
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        self._known |= known
        return known


def waiting(conn: Connection, vo: str, families: Families) -> list[Weighed]:
    """The task queues of a VO that have jobs: all that their weights follow from."""
    of_task_queue: dict[int, Row[*tuple[Any, ...]]] = {}
    jobs: defaultdict[int, dict[float, int]] = defaultdict(dict)
    for row in conn.execute(WAITING, {"vo": vo}):
        of_task_queue[row.task_queue_id] = row
        jobs[row.task_queue_id][row.user_priority] = row.jobs
    family_of = families.of(conn, {row.digest for row in of_task_queue.values()})
    return [
        Weighed(
            demand=Demand(
                task_queue_id=row.task_queue_id,
                vo=vo,
                owner_group=row.owner_group,
                owner=row.owner,
                family=family_of[row.digest],
                raw=shares.raw_weight(jobs[row.task_queue_id]),
            ),
            weight=row.priority,
        )
        for row in of_task_queue.values()
    ]


def change(
    conn: Connection, weights: Mapping[int, float], *, owner_groups: Collection[str], now: datetime
) -> None:
    """Give task queues other weights, and tell the matchers.

    Args:
        conn: In a writing transaction; it locks the task queues in the order in which all do.
        weights: By id of the task queue.
        owner_groups: The groups that the task queues are of.
        now: The time.
    """
    if weights:
        rows = [{"the_task_queue": each, "weight": weight} for each, weight in sorted(weights.items())]
        conn.execute(SET, rows)
        changes.append(conn, changes.PRIORITY, owner_groups, now=now)


def of_groups(conn: Connection, owner_groups: Collection[str]) -> Mapping[int, float]:
    """The weights of the groups' task queues that have jobs."""
    rows = conn.execute(OF_GROUPS, {"groups": sorted(owner_groups)})
    return {row.task_queue_id: row.priority for row in rows}
