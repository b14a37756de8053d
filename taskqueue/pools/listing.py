"""Lists of pools: by VO and served site, with their queues and jobs, and by eligible queue.

Source: RFC #7's getSubmitPoolsForQueue.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
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
from requirements.bitset import list_positions, mask_from
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

MAPPED = select(mapped.c.pool_id, mapped.c.vo, mapped.c.eligible).where(mapped.c.pool_id.in_(sql.IDS))
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
POOLS_OF_JOBS = select(jobs.c.job_id, jobs.c.submit_pool, jobs.c.owner).where(jobs.c.job_id.in_(sql.IDS))
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
    .where(submit_pools.c.pool_id.in_(sql.IDS))
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


#: Up to this number queue classes are queried one by one; beyond it the whole mapping is read.
_FEW_CLASSES = 3

CLASSES_AT_SITES = (
    select(members.c.vo, members.c.site, members.c.ce, members.c.queue, classes.c.slot)
    .join(classes, classes.c.queue_class_id == members.c.queue_class_id)
    .where(
        members.c.vo.in_(bindparam("vos", expanding=True)),
        members.c.site.in_(bindparam("sites", expanding=True)),
    )
)

POOLS_OF_CLASS = (
    select(mapped.c.pool_id, has_slot(mapped.c.undecided, bindparam("the_slot")).label("undecided"))
    .where(mapped.c.vo == bindparam("the_vo"), has_slot(mapped.c.eligible, bindparam("the_slot")))
    .order_by(mapped.c.pool_id)
)

POOLS_OF_VO = (
    select(mapped.c.pool_id, mapped.c.eligible, mapped.c.undecided)
    .where(mapped.c.vo == bindparam("the_vo"))
    .order_by(mapped.c.pool_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedPool:
    """A pool for which a queue is eligible."""

    pool_id: str
    vo: str
    undecided: bool  #: the node decides


def list_pool_ids(
    conn: Connection, vos: Collection[str], addresses: Collection[QueueAddress]
) -> Mapping[QueueAddress, Sequence[str]]:
    """Ids of the pools of these VOs, by eligible queue; every queue is there, maybe without any."""
    ids: dict[int, list[str]] = {}  # by list of pools: queues of one class share theirs
    return {
        address: ids.get(id(found)) or ids.setdefault(id(found), [each.pool_id for each in found])
        for address, found in list_mapped_pools(conn, vos, addresses).items()
    }


def list_mapped_pools(
    conn: Connection, vos: Collection[str], addresses: Collection[QueueAddress]
) -> Mapping[QueueAddress, Sequence[MappedPool]]:
    """The same as `list_pool_ids`, sorted by id, with whether the node decides. Shared: do not modify."""
    slots = _read_slots(conn, vos, addresses)
    wanted: defaultdict[str, set[int]] = defaultdict(set)
    for of_queue in slots.values():
        for vo, slot in of_queue:
            wanted[vo].add(slot)
    found = {
        (vo, slot): pools
        for vo in sorted(wanted)
        for slot, pools in _read_classes(conn, vo, wanted[vo]).items()
    }
    several: dict[tuple[tuple[str, int], ...], Sequence[MappedPool]] = {(): ()}
    for of_queue in set(slots.values()):
        lists = [found[each] for each in of_queue]
        several[of_queue] = (
            lists[0] if len(lists) == 1 else sorted(chain(*lists), key=lambda each: each.pool_id)
        )
    return {address: several[slots.get(address, ())] for address in addresses}


def _read_slots(
    conn: Connection, vos: Collection[str], addresses: Collection[QueueAddress]
) -> dict[QueueAddress, tuple[tuple[str, int], ...]]:
    """The VOs that may use each queue, with the slots of its classes."""
    requested = set(addresses)
    found: dict[QueueAddress, tuple[tuple[str, int], ...]] = {}
    for sites in sql.split_batches({address.site for address in requested}):
        for row in conn.execute(CLASSES_AT_SITES, {"vos": sorted(vos), "sites": sites}):
            address = QueueAddress(site=row.site, ce=row.ce, queue=row.queue)
            if address in requested:
                found[address] = (*found.get(address, ()), (row.vo, row.slot))
    return found


def _read_classes(conn: Connection, vo: str, slots: Collection[int]) -> Mapping[int, Sequence[MappedPool]]:
    if len(slots) <= _FEW_CLASSES:
        return {
            slot: [
                MappedPool(pool_id=row.pool_id, vo=vo, undecided=bool(row.undecided))
                for row in conn.execute(POOLS_OF_CLASS, {"the_vo": vo, "the_slot": slot})
            ]
            for slot in slots
        }
    return _transpose(conn.execute(POOLS_OF_VO, {"the_vo": vo}), vo, slots)


def _transpose(
    rows: Iterator[Row[tuple[str, int, int]]], vo: str, slots: Collection[int]
) -> Mapping[int, Sequence[MappedPool]]:
    all_slots = mask_from(slots)
    found: dict[int, list[MappedPool]] = {slot: [] for slot in slots}
    for row in rows:
        decided, open_ = (
            MappedPool(pool_id=row.pool_id, vo=vo, undecided=undecided) for undecided in (False, True)
        )
        for slot in list_positions(row.eligible & all_slots & ~row.undecided):
            found[slot].append(decided)
        for slot in list_positions(row.eligible & all_slots & row.undecided):
            found[slot].append(open_)
    return found


def read_pools_and_owners(conn: Connection, job_ids: Sequence[int]) -> Mapping[int, tuple[str | None, str]]:
    """The ids of the pools of jobs, and their owners, by job; None: the job has no requirements."""
    rows = conn.execute(POOLS_OF_JOBS, {"ids": list(job_ids)})
    return {row.job_id: (row.submit_pool, row.owner) for row in rows}
