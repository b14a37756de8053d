"""The mapping of pools to queues, stored over queue classes.

A mapping is written only while the VO's queue classes are of the version that it was computed from; see
`queue_classes`. Only differences are written, and a transaction shows them all at once.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, insert, select, update

from cs_config.configuration import QueueAddress
from taskqueue import changes, pools, queue_classes
from taskqueue.tables import pool_queue_classes as mapped
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import submit_pools
from taskqueue.views import pool_queues

#: Keys in one statement; SQLite takes no more than 32,766 values.
BATCH = 1000

#: Of one pool: its eligible queue classes, and whether it is undecided there.
_OfPool = Mapping[int, bool]

_VO: BindParameter[str] = bindparam("the_vo")
_POOLS: BindParameter[str] = bindparam("pool_ids", expanding=True)

LOCK_POOLS = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.pool_id.in_(_POOLS), submit_pools.c.vo == _VO)
    .order_by(submit_pools.c.pool_id)
    .with_for_update()
)

MAPPED = select(mapped.c.pool_id, mapped.c.queue_class_id, mapped.c.undecided).where(
    mapped.c.pool_id.in_(_POOLS)
)

#: With the names of the binds of TURN and UNMAP.
MAP = insert(mapped).values(
    pool_id=bindparam("the_pool"), queue_class_id=bindparam("the_class"), undecided=bindparam("is_undecided")
)

_IS_PAIR = and_(mapped.c.pool_id == bindparam("the_pool"), mapped.c.queue_class_id == bindparam("the_class"))

TURN = update(mapped).where(_IS_PAIR).values(undecided=bindparam("is_undecided"))

UNMAP = delete(mapped).where(_IS_PAIR)

REFRESHED = (
    update(submit_pools)
    .where(submit_pools.c.pool_id.in_(_POOLS))
    .values(
        refreshed_at=bindparam("now"),
        config_version=bindparam("version"),
        expiries=bindparam("its_expiries"),
    )
)

ELIGIBLE = (
    select(pool_queues.c.site, pool_queues.c.ce, pool_queues.c.queue)
    .where(pool_queues.c.pool_id == bindparam("pool_id"))
    .order_by(pool_queues.c.site, pool_queues.c.ce, pool_queues.c.queue)
)

WITH_QUEUES = select(pool_queues.c.pool_id).where(pool_queues.c.pool_id.in_(_POOLS)).distinct()

AT_SITES = (
    select(members.c.vo, members.c.site, members.c.ce, members.c.queue, mapped.c.pool_id, mapped.c.undecided)
    .join(mapped, mapped.c.queue_class_id == members.c.queue_class_id)
    .where(
        members.c.vo.in_(bindparam("vos", expanding=True)),
        members.c.site.in_(bindparam("sites", expanding=True)),
    )
    .order_by(mapped.c.pool_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How much of a pool's mapping was changed."""

    gained: int  #: queue classes
    lost: int  #: queue classes
    turned: int = 0  #: queue classes where single nodes decide now, or do so no longer

    def __bool__(self) -> bool:
        return bool(self.gained or self.lost or self.turned)


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedPool:
    """A pool as it stands to a queue that is eligible for it."""

    pool_id: str
    vo: str
    undecided: bool  #: whether the node decides


def resolve(
    conn: Connection,
    *,
    pool_id: str,
    config_version: int,
    expiries: int = 0,
    queue_class_digests: Collection[str],
    undecided: Collection[str] = (),
    now: datetime,
) -> Change | None:
    """Store the mapping of one pool; see `resolve_all`.

    Raises:
        PoolNotFound: There is none with this id.
    """
    vo = pools.get(conn, pool_id).vo
    digests = {pool_id: {digest: digest in undecided for digest in queue_class_digests}}
    changed = resolve_all(
        conn, vo=vo, config_version=config_version, expiries=expiries, digests=digests, now=now
    )
    return None if changed is None else changed.get(pool_id)


def resolve_all(
    conn: Connection,
    *,
    vo: str,
    config_version: int,
    expiries: int = 0,
    digests: Mapping[str, Mapping[str, bool]],
    now: datetime,
) -> Mapping[str, Change] | None:
    """Store which queue classes are eligible for pools of a VO.

    Args:
        conn: In a writing transaction.
        vo: Lower case.
        config_version: What it was computed from.
        expiries: How many of its moments of expiry had passed.
        digests: For each pool the digests of its eligible queue classes, and whether it is undecided there.
        now: The time.

    Returns:
        What changed for each of the pools that exist. None: the VO's queue classes are of another version,
        nothing was written; take the current configuration, sync, compute again.
    """
    there = [pool_id for ids in _batches(digests) for pool_id in _lock(conn, vo, ids)]
    if queue_classes.hold(conn, vo) != (config_version, expiries):
        return None
    class_ids = queue_classes.ids(conn, vo)
    changed: dict[str, Change] = {}
    for pool_ids in _batches(there):
        wanted = {
            pool_id: {class_ids[digest]: undecided for digest, undecided in digests[pool_id].items()}
            for pool_id in pool_ids
        }
        changed |= _write(conn, wanted)
        of = {"now": now, "version": config_version, "its_expiries": expiries}
        conn.execute(REFRESHED, {"pool_ids": pool_ids, **of})
    if any(changed.values()):
        changes.append(conn, "mapping", [vo], now=now)
    return changed


def with_queues(conn: Connection, pool_ids: Collection[str]) -> frozenset[str]:
    """Those of the pools that have an eligible queue."""
    return frozenset(
        pool_id
        for ids in _batches(pool_ids)
        for pool_id in conn.execute(WITH_QUEUES, {"pool_ids": ids}).scalars()
    )


def eligible_queues_of(conn: Connection, pool_id: str) -> list[QueueAddress]:
    """The queues that are eligible for a pool, sorted."""
    rows = conn.execute(ELIGIBLE, {"pool_id": pool_id})
    return [QueueAddress(site=row.site, ce=row.ce, queue=row.queue) for row in rows]


def pools_for_queues(
    conn: Connection, vos: Collection[str], addresses: Collection[QueueAddress]
) -> Mapping[QueueAddress, list[str]]:
    """For each of the queues the ids of the pools of these VOs that it is eligible for, maybe none."""
    found = mapped_to_queues(conn, vos, addresses)
    return {address: [each.pool_id for each in of_queue] for address, of_queue in found.items()}


def mapped_to_queues(
    conn: Connection, vos: Collection[str], addresses: Collection[QueueAddress]
) -> Mapping[QueueAddress, list[MappedPool]]:
    """The same, with whether only some nodes of the queue may do."""
    found: dict[QueueAddress, list[MappedPool]] = {address: [] for address in addresses}
    for sites in _batches({address.site for address in addresses}):
        for row in conn.execute(AT_SITES, {"vos": sorted(vos), "sites": sites}):
            of_queue = found.get(QueueAddress(site=row.site, ce=row.ce, queue=row.queue))
            if of_queue is not None:
                of_queue.append(MappedPool(pool_id=row.pool_id, vo=row.vo, undecided=row.undecided))
    return found


def _lock(conn: Connection, vo: str, pool_ids: Sequence[str]) -> Sequence[str]:
    return conn.execute(LOCK_POOLS, {"the_vo": vo, "pool_ids": pool_ids}).scalars().all()


def _write(conn: Connection, wanted: Mapping[str, _OfPool]) -> dict[str, Change]:
    stored: dict[str, dict[int, bool]] = {pool_id: {} for pool_id in wanted}
    for row in conn.execute(MAPPED, {"pool_ids": list(wanted)}):
        stored[row.pool_id][row.queue_class_id] = row.undecided
    gained = {pool_id: _without(wanted[pool_id], stored[pool_id]) for pool_id in wanted}
    lost = {pool_id: _without(stored[pool_id], wanted[pool_id]) for pool_id in wanted}
    turned = {pool_id: _turned(wanted[pool_id], stored[pool_id]) for pool_id in wanted}
    for statement, pairs in ((MAP, gained), (TURN, turned), (UNMAP, lost)):
        if rows := list(_rows(pairs, undecided=statement is not UNMAP)):
            conn.execute(statement, rows)
    return {
        pool_id: Change(gained=len(gained[pool_id]), lost=len(lost[pool_id]), turned=len(turned[pool_id]))
        for pool_id in wanted
    }


def _without(these: _OfPool, those: _OfPool) -> _OfPool:
    return {each: undecided for each, undecided in these.items() if each not in those}


def _turned(wanted: _OfPool, stored: _OfPool) -> _OfPool:
    return {each: undecided for each, undecided in wanted.items() if stored.get(each, undecided) != undecided}


def _rows(pairs: Mapping[str, _OfPool], *, undecided: bool) -> Iterator[dict[str, object]]:
    for pool_id, classes in pairs.items():
        for class_id in sorted(classes):
            row: dict[str, object] = {"the_pool": pool_id, "the_class": class_id}
            yield {**row, "is_undecided": classes[class_id]} if undecided else row


def _batches(keys: Collection[str]) -> Iterator[Sequence[str]]:
    ordered = sorted(keys)
    for start in range(0, len(ordered), BATCH):
        yield ordered[start : start + BATCH]
