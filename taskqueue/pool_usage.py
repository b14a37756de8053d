"""What pools are used for: the queues and the jobs of many pools at once."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import BindParameter, Connection, bindparam, func, literal, select, true, union_all

from cs_config.address import QueueAddress
from requirements.bits import bits
from taskqueue.job_counts import Count
from taskqueue.states import JobStatus
from taskqueue.tables import jobs, submit_pools
from taskqueue.tables import pool_mappings as mapped
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import queue_classes as classes

_POOLS: BindParameter[str] = bindparam("pool_ids", expanding=True)

MAPPED = select(mapped.c.pool_id, mapped.c.vo, mapped.c.eligible).where(mapped.c.pool_id.in_(_POOLS))
#: The queues that VOs may use, each with the place of its class in the mappings.
MEMBERS = (
    select(classes.c.vo, classes.c.slot, members.c.site, members.c.ce, members.c.queue)
    .join(members, members.c.queue_class_id == classes.c.queue_class_id)
    .where(classes.c.vo.in_(bindparam("vos", expanding=True)), classes.c.slot.is_not(None))
    .order_by(members.c.site, members.c.ce, members.c.queue)
)
#: How many queues have their class at a place.
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
    .where(submit_pools.c.pool_id.in_(_POOLS))
)
#: Jobs that are gone along at most for the pools of one list, for each status.
MOST_JOBS = 100_000


def queues(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, list[QueueAddress]]:
    """The eligible queues of each pool, sorted; a pool without any has no entry."""
    mappings = conn.execute(MAPPED, {"pool_ids": sorted(pool_ids)}).all()
    usable = _usable(conn, {row.vo for row in mappings})
    found: dict[str, list[QueueAddress]] = {}
    for row in mappings:
        eligible = frozenset(bits(row.eligible))
        found[row.pool_id] = [address for slot, address in usable[row.vo] if slot in eligible]
    return {pool_id: addresses for pool_id, addresses in found.items() if addresses}


def queue_counts(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, int]:
    """How many queues are eligible for each pool; a pool without a mapping has no entry."""
    mappings = conn.execute(MAPPED, {"pool_ids": sorted(pool_ids)}).all()
    sizes: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for row in conn.execute(SIZES, {"vos": sorted({row.vo for row in mappings})}):
        sizes[row.vo][row.slot] = row.queues
    return {row.pool_id: sum(sizes[row.vo].get(slot, 0) for slot in bits(row.eligible)) for row in mappings}


def _usable(conn: Connection, vos: Collection[str]) -> Mapping[str, Sequence[tuple[int, QueueAddress]]]:
    """The queues of each VO in order: read once, as pools have most of them in common."""
    found: defaultdict[str, list[tuple[int, QueueAddress]]] = defaultdict(list)
    for row in conn.execute(MEMBERS, {"vos": sorted(vos)}):
        address = QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
        found[row.vo].append((row.slot, address))
    return found


def jobs_by_status(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, Mapping[JobStatus, Count]]:
    """The jobs of each pool by status; a pool without any has no entry.

    A pool may have millions: the more pools are asked for at once, the earlier the count of each ends.
    """
    most = MOST_JOBS // max(len(pool_ids), 1)
    found: defaultdict[str, dict[JobStatus, Count]] = defaultdict(dict)
    for row in conn.execute(JOBS, {"pool_ids": sorted(pool_ids), "most": most}):
        if row.jobs:
            found[row.pool_id][JobStatus(row.status)] = Count(min(row.jobs, most), row.jobs > most)
    return found
