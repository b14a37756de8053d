"""The mapping of pools as matchers read it: the pools that queues are eligible for, and their requirements.

Source: RFC #7's getSubmitPoolsForQueue.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, select

from cs_config.tree.address import QueueAddress
from requirements import canonical
from requirements.bitset import list_positions, mask_from
from requirements.canonical import Requirements
from requirements.kept import keep
from requirements.resource import Location
from taskqueue.db import sql
from taskqueue.schema.tables import jobs, submit_pools
from taskqueue.schema.tables import pool_mappings as mapped
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.schema.tables import queue_classes as classes
from taskqueue.schema.types import has_slot

ORIGINALS = select(submit_pools.c.pool_id, submit_pools.c.original).where(
    sql.is_listed(submit_pools.c.pool_id)
)
POOLS_OF_JOBS = select(jobs.c.job_id, jobs.c.submit_pool, jobs.c.owner).where(sql.is_listed(jobs.c.job_id))
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


def _pools_at(*, ce: bool) -> Select[Any]:
    found = (
        select(
            mapped.c.pool_id,
            has_slot(mapped.c.undecided, classes.c.slot).label("undecided"),
            *(members.c.vo, members.c.ce, members.c.queue),
        )
        .join(members, members.c.vo == mapped.c.vo)
        .join(classes, classes.c.queue_class_id == members.c.queue_class_id)
        .where(
            mapped.c.pool_id.in_(bindparam("pools", expanding=True)),
            has_slot(mapped.c.eligible, classes.c.slot),
            members.c.site == bindparam("site"),
            members.c.vo.in_(bindparam("vos", expanding=True)),
        )
    )
    return found.where(members.c.ce == bindparam("ce")) if ce else found


POOLS_AT_SITE = _pools_at(ce=False)
POOLS_AT_CE = _pools_at(ce=True)


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


def list_pools_at(
    conn: Connection, place: Location, pools: frozenset[str], vos: frozenset[str]
) -> Iterator[tuple[str, str, QueueAddress, bool]]:
    """The pools among these that a queue at a site or CE is eligible for: with VO, queue, and undecided."""
    values = {"pools": sorted(pools), "site": place.site, "vos": sorted(vos)}
    statement, more = (POOLS_AT_CE, {"ce": place.ce}) if place.ce else (POOLS_AT_SITE, {})
    for row in conn.execute(statement, {**values, **more}):
        yield row.pool_id, row.vo, QueueAddress(site=place.site, ce=row.ce, queue=row.queue), row.undecided


def read_originals(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, str]:
    """Requirements of pools as first written, JSON, by id."""
    return {row.pool_id: row.original for row in sql.read_batches(conn, ORIGINALS, pool_ids)}


def read_requirements(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, Requirements]:
    """The same, parsed."""
    return {pool_id: _parse(text) for pool_id, text in read_originals(conn, pool_ids).items()}


@keep(32, lambda _, text: 500 + 5 * len(text))
def _parse(text: str) -> Requirements:
    return canonical.from_json(text)
