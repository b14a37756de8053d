"""Lists of pools: by VO and served site, with their queues and jobs."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
)

from cs_config.tree.address import QueueAddress
from requirements.bitset import list_positions
from requirements.states import JobStatus
from taskqueue.db import sql
from taskqueue.jobs.search import JobCount
from taskqueue.pools import pools
from taskqueue.pools.pools import Pool
from taskqueue.schema.tables import jobs, submit_pools
from taskqueue.schema.tables import pool_mappings as mapped
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.schema.tables import queue_classes as classes
from taskqueue.schema.tables import submit_pools as table
from taskqueue.schema.types import has_slot

MAPPED = select(mapped.c.pool_id, mapped.c.vo, mapped.c.eligible).where(sql.is_listed(mapped.c.pool_id))
#: The queues that VOs may use, with the slots of their classes.
MEMBERS = (
    select(classes.c.vo, classes.c.slot, members.c.site, members.c.ce, members.c.queue)
    .join(members, members.c.queue_class_id == classes.c.queue_class_id)
    .where(classes.c.vo.in_(bindparam("vos", expanding=True)))
    .order_by(members.c.site, members.c.ce, members.c.queue)
)
#: Number of queues of each slot.
SIZES = (
    MEMBERS.with_only_columns(classes.c.vo, classes.c.slot, func.count().label("queues"))
    .order_by(None)
    .group_by(classes.c.vo, classes.c.slot)
)
_statuses = union_all(*(select(literal(status.value).label("status")) for status in JobStatus)).subquery()
_some = (
    select(jobs.c.job_id)
    .where(jobs.c.submit_pool == submit_pools.c.pool_id, jobs.c.status == _statuses.c.status)
    .correlate(submit_pools, _statuses)
    .limit(bindparam("most") + 1)
    .subquery()
)
JOBS = (
    select(submit_pools.c.pool_id, _statuses.c.status, select(func.count()).select_from(_some).label("jobs"))
    .join_from(submit_pools, _statuses, true())
    .where(sql.is_listed(submit_pools.c.pool_id))
)
WAITING_EXPRESSIONS = (
    select(submit_pools.c.original)
    .where(
        submit_pools.c.vo == bindparam("vo"),
        submit_pools.c.original.startswith('{"expression"'),
        func.lower(submit_pools.c.original).contains(bindparam("word")),
        exists().where(
            jobs.c.submit_pool == submit_pools.c.pool_id, jobs.c.status == JobStatus.WAITING.value
        ),
    )
    .order_by(submit_pools.c.last_used_at.desc())
    .limit(bindparam("most"))
)
#: Limit of the jobs counted for each status, over all pools of one list.
MAX_COUNTED_JOBS = 100_000


def list_queues(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, list[QueueAddress]]:
    """Eligible queues of each pool, sorted; a pool without any has no entry."""
    mappings = conn.execute(MAPPED, {"ids": sorted(pool_ids)}).all()
    usable = _read_queues(conn, {row.vo for row in mappings})
    found: dict[str, list[QueueAddress]] = {}
    for row in mappings:
        eligible = frozenset(list_positions(row.eligible))
        found[row.pool_id] = [address for slot, address in usable[row.vo] if slot in eligible]
    return {pool_id: addresses for pool_id, addresses in found.items() if addresses}


def count_queues(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, int]:
    """Number of eligible queues of each pool; a pool without a mapping has no entry."""
    mappings = conn.execute(MAPPED, {"ids": sorted(pool_ids)}).all()
    sizes: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for row in conn.execute(SIZES, {"vos": sorted({row.vo for row in mappings})}):
        sizes[row.vo][row.slot] = row.queues
    return {
        row.pool_id: sum(sizes[row.vo].get(slot, 0) for slot in list_positions(row.eligible))
        for row in mappings
    }


def _read_queues(conn: Connection, vos: Collection[str]) -> Mapping[str, Sequence[tuple[int, QueueAddress]]]:
    """The queues of each VO in order: read once, since pools have most of them in common."""
    found: defaultdict[str, list[tuple[int, QueueAddress]]] = defaultdict(list)
    for row in conn.execute(MEMBERS, {"vos": sorted(vos)}):
        address = QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
        found[row.vo].append((row.slot, address))
    return found


def count_jobs_by_status(
    conn: Connection, pool_ids: Collection[str]
) -> Mapping[str, Mapping[JobStatus, JobCount]]:
    """Number of jobs of each pool by status; a pool without any has no entry.

    Each count stops at MAX_COUNTED_JOBS divided by the number of pools, since a pool may have millions.
    """
    most = MAX_COUNTED_JOBS // max(len(pool_ids), 1)
    found: defaultdict[str, dict[JobStatus, JobCount]] = defaultdict(dict)
    for row in conn.execute(JOBS, {"ids": sorted(pool_ids), "most": most}):
        if row.jobs:
            found[row.pool_id][JobStatus(row.status)] = JobCount(min(row.jobs, most), row.jobs > most)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFilter:
    """Conditions on pools: of these VOs, or served by queues at these sites."""

    vos: Collection[str] | None = None  #: None: of all
    served_at: Collection[str] = ()  #: sites
    among: Collection[str] | None = None  #: requested VOs; None: all

    def clauses(self) -> list[ColumnElement[bool]]:
        """SQL conditions on the table of pools."""
        found: list[ColumnElement[bool]] = [] if self.among is None else [_has_vo(self.among)]
        if self.vos is None:
            return found
        own = _has_vo(self.vos)
        return [*found, or_(own, _is_served_at(self.served_at)) if self.served_at else own]


def list_pools(conn: Connection, which: PoolFilter, *, limit: int, after: str = "") -> list[Pool]:
    """A page of pools by id."""
    statement = pools.ALL.where(table.c.pool_id > after, *which.clauses())
    return [Pool(**row) for row in conn.execute(statement.order_by(table.c.pool_id).limit(limit)).mappings()]


def contains_pool(conn: Connection, which: PoolFilter, pool_id: str) -> bool:
    """Whether a pool fulfils the conditions."""
    statement = select(table.c.pool_id).where(table.c.pool_id == pool_id, *which.clauses())
    return conn.execute(statement).first() is not None


def list_waiting_expressions(conn: Connection, vo: str, *, word: str, most: int) -> list[str]:
    """Requirements (JSON) of pools of a VO with waiting jobs that are expressions with a word, in any case.

    `word` is in lower case. Of more than `most` those that were used last.
    """
    return list(conn.execute(WAITING_EXPRESSIONS, {"vo": vo, "word": word, "most": most}).scalars())


def _has_vo(vos: Collection[str]) -> ColumnElement[bool]:
    return table.c.vo.in_(sorted(vos))


def _is_served_at(sites: Collection[str]) -> ColumnElement[bool]:
    return exists(
        select(members.c.queue)
        .join(classes, classes.c.queue_class_id == members.c.queue_class_id)
        .join(mapped, mapped.c.vo == members.c.vo)
        .where(
            mapped.c.pool_id == table.c.pool_id,
            members.c.vo == table.c.vo,
            members.c.site.in_(sorted(sites)),
            has_slot(mapped.c.eligible, classes.c.slot),
        )
        .correlate(table)
    )
