"""What pools are used for: the queues and the jobs of many pools at once."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from sqlalchemy import BindParameter, Connection, bindparam, func, select

from cs_config.address import QueueAddress
from requirements.bits import bits
from taskqueue.tables import jobs
from taskqueue.tables import pool_mappings as mapped
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import queue_classes as classes
from taskqueue.views import pool_queues

_POOLS: BindParameter[str] = bindparam("pool_ids", expanding=True)

QUEUES = (
    select(pool_queues.c.pool_id, pool_queues.c.site, pool_queues.c.ce, pool_queues.c.queue)
    .where(pool_queues.c.pool_id.in_(_POOLS))
    .order_by(pool_queues.c.site, pool_queues.c.ce, pool_queues.c.queue)
)
MAPPED = select(mapped.c.pool_id, mapped.c.vo, mapped.c.eligible).where(mapped.c.pool_id.in_(_POOLS))
#: How many queues each queue class has.
SIZES = (
    select(classes.c.vo, classes.c.slot, func.count())
    .join(members, members.c.queue_class_id == classes.c.queue_class_id)
    .where(classes.c.vo.in_(bindparam("vos", expanding=True)), classes.c.slot.is_not(None))
    .group_by(classes.c.vo, classes.c.slot)
)
JOBS = (
    select(jobs.c.submit_pool, jobs.c.status, func.count())
    .where(jobs.c.submit_pool.in_(_POOLS))
    .group_by(jobs.c.submit_pool, jobs.c.status)
)


def queues(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, list[QueueAddress]]:
    """The eligible queues of each pool, sorted; a pool without any has no entry."""
    found: defaultdict[str, list[QueueAddress]] = defaultdict(list)
    for row in conn.execute(QUEUES, {"pool_ids": sorted(pool_ids)}):
        found[row.pool_id].append(QueueAddress(site=row.site, ce=row.ce, queue=row.queue))
    return found


def numbers_of_queues(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, int]:
    """How many queues are eligible for each pool, which takes less than to list them; none: no entry."""
    rows = conn.execute(MAPPED, {"pool_ids": sorted(pool_ids)}).all()
    sizes = {
        (vo, slot): size for vo, slot, size in conn.execute(SIZES, {"vos": sorted({r.vo for r in rows})})
    }
    found = {row.pool_id: sum(sizes.get((row.vo, slot), 0) for slot in bits(row.eligible)) for row in rows}
    return {pool_id: number for pool_id, number in found.items() if number}


def jobs_by_status(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, Counter[str]]:
    """The numbers of jobs of each pool by status; a pool without any has no entry."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pool_id, status, count in conn.execute(JOBS, {"pool_ids": sorted(pool_ids)}):
        found[pool_id][status] = count
    return found
