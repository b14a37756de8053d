"""The mapping of pools to queues, stored over queue classes: for each pool the set of those that it fits.

A mapping is written only while the VO's queue classes are of the version that it was computed from; see
`queue_classes` and `pool_refresh`. Only differences are written, and a transaction shows them all at once.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import BindParameter, Connection, Row, bindparam, delete, select, update
from sqlalchemy.sql.dml import Insert

from cs_config.configuration import QueueAddress
from cs_config.queue_class_index import EligibleSets
from requirements.bits import mask_of
from taskqueue import batches, changes, pools, queue_classes
from taskqueue.tables import pool_mappings as mapped
from taskqueue.tables import pool_queue_classes as mapped_before
from taskqueue.tables import submit_pools
from taskqueue.upserts import Twins, Upsert
from taskqueue.views import pool_queues

_VO: BindParameter[str] = bindparam("the_vo")
_POOLS: BindParameter[str] = bindparam("pool_ids", expanding=True)


def _put(insert: Upsert) -> Insert:
    new = insert.excluded
    return insert.on_conflict_do_update(
        index_elements=["pool_id"], set_={"eligible": new.eligible, "undecided": new.undecided}
    )


LOCK_POOLS = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.pool_id.in_(_POOLS), submit_pools.c.vo == _VO)
    .order_by(submit_pools.c.pool_id)
    .with_for_update()
)

OF_VO = select(mapped.c.pool_id, mapped.c.eligible, mapped.c.undecided).where(mapped.c.vo == _VO)
MAPPED = select(mapped.c.pool_id, mapped.c.eligible, mapped.c.undecided).where(mapped.c.pool_id.in_(_POOLS))

PUT = Twins(mapped, _put)
#: Whose pool has gone meanwhile stays away.
CORRECT = (
    update(mapped)
    .where(mapped.c.pool_id == bindparam("its_pool"))
    .values(eligible=bindparam("its_eligible"), undecided=bindparam("its_undecided"))
)

#: What a process of the release before has written: it is out of date from now on.
REMOVE_BEFORE = delete(mapped_before).where(mapped_before.c.pool_id.in_(_POOLS))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How much of a pool's mapping was changed."""

    gained: int  #: queue classes
    lost: int  #: queue classes
    turned: int = 0  #: queue classes where single nodes decide now, or do so no longer
    #: Whether it has eligible classes now and had none, or the reverse, or nobody knew: jobs should say so.
    shows: bool = field(default=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.gained or self.lost or self.turned)


_NO_CHANGE = Change(gained=0, lost=0)
_NONE = EligibleSets(eligible=0)


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
        What changed for each of the pools that exist. None: the VO's queue classes are of another version or
        release, nothing was written; take the current configuration, sync, compute again.
    """
    there = lock(conn, vo, digests)
    if queue_classes.hold(conn, vo) != (config_version, expiries):
        return None
    slots = queue_classes.slots(conn, vo)
    if any(digests[pool_id].keys() - slots.keys() for pool_id in there):
        return None  # another text had this number, or another release wrote last
    wanted = {pool_id: _as_sets(digests[pool_id], slots) for pool_id in there}
    changed = _store(conn, vo, wanted, {"now": now, "version": config_version, "its_expiries": expiries})
    if any(changed.values()):
        changes.append(conn, "mapping", [vo], now=now)
    return changed


def stored(conn: Connection, vo: str, pool_ids: Collection[str] | None = None) -> Mapping[str, EligibleSets]:
    """The mappings of these pools of a VO, or of all; a pool without any has no entry."""
    if pool_ids is None:
        return _sets(conn.execute(OF_VO, {"the_vo": vo}))
    found: dict[str, EligibleSets] = {}
    for ids in batches.of(pool_ids):
        found |= _sets(conn.execute(MAPPED, {"pool_ids": ids}))
    return found


def refresh_all(
    conn: Connection,
    *,
    vo: str,
    config_version: int,
    expiries: int = 0,
    new: Mapping[str, EligibleSets],
    wanted: Mapping[str, EligibleSets],
    before: Mapping[str, EligibleSets],
    now: datetime,
) -> dict[str, Change]:
    """Store the classes of pools by those who know their slots and hold the VO's row: see `pool_refresh`.

    Args:
        conn: In a writing transaction.
        vo: Lower case.
        config_version: Of the queue classes that are stored.
        expiries: How many of its moments of expiry had passed.
        new: The classes of pools that are locked, and maybe not mapped.
        wanted: Those of pools that are mapped.
        before: What these are mapped to.
        now: The time.

    Returns:
        What changed for each of the pools.
    """
    changed = {pool_id: _change(before[pool_id], sets) for pool_id, sets in wanted.items()}
    rows = [
        {"its_pool": pool_id, "its_eligible": sets.eligible, "its_undecided": sets.undecided}
        for pool_id, sets in sorted(wanted.items())
        if changed[pool_id]
    ]
    if rows:
        conn.execute(CORRECT, rows)
    stamp = {"now": now, "version": config_version, "its_expiries": expiries}
    changed |= _store(conn, vo, new, stamp)
    if any(changed.values()):
        changes.append(conn, "mapping", [vo], now=now)
    return changed


def lock(conn: Connection, vo: str, pool_ids: Collection[str]) -> list[str]:
    """Those of the pools that exist, locked in order, before the VO's version: as arriving jobs do it."""
    return [
        pool_id
        for ids in batches.of(pool_ids)
        for pool_id in conn.execute(LOCK_POOLS, {"the_vo": vo, "pool_ids": ids}).scalars()
    ]


def eligible_queues_of(conn: Connection, pool_id: str) -> list[QueueAddress]:
    """The queues that are eligible for a pool, sorted."""
    rows = conn.execute(ELIGIBLE, {"pool_id": pool_id})
    return [QueueAddress(site=row.site, ce=row.ce, queue=row.queue) for row in rows]


def _as_sets(digests: Mapping[str, bool], slots: Mapping[str, int]) -> EligibleSets:
    return EligibleSets(
        eligible=mask_of([slots[digest] for digest in digests]),
        undecided=mask_of([slots[digest] for digest, undecided in digests.items() if undecided]),
    )


def _store(
    conn: Connection, vo: str, wanted: Mapping[str, EligibleSets], stamp: Mapping[str, object]
) -> dict[str, Change]:
    changed: dict[str, Change] = {}
    for pool_ids in batches.of(wanted):
        changed |= _write(conn, vo, {pool_id: wanted[pool_id] for pool_id in pool_ids})
        conn.execute(REFRESHED, {"pool_ids": pool_ids, **stamp})
    return changed


def _write(conn: Connection, vo: str, wanted: Mapping[str, EligibleSets]) -> dict[str, Change]:
    before = _sets(conn.execute(MAPPED, {"pool_ids": list(wanted)}))
    rows = [
        {"pool_id": pool_id, "vo": vo, "eligible": new.eligible, "undecided": new.undecided}
        for pool_id, new in wanted.items()
        if before.get(pool_id) != new
    ]
    if rows:
        conn.execute(PUT.of(conn), rows)
    conn.execute(REMOVE_BEFORE, {"pool_ids": list(wanted)})
    return {pool_id: _change(before.get(pool_id), new) for pool_id, new in wanted.items()}


def _sets(rows: Iterable[Row[tuple[str, int, int]]]) -> dict[str, EligibleSets]:
    return {row.pool_id: EligibleSets(eligible=row.eligible, undecided=row.undecided) for row in rows}


def _change(before: EligibleSets | None, new: EligibleSets) -> Change:
    if before == new:
        return _NO_CHANGE
    old = before or _NONE
    both = old.eligible & new.eligible
    return Change(
        gained=(new.eligible & ~old.eligible).bit_count(),
        lost=(old.eligible & ~new.eligible).bit_count(),
        turned=((old.undecided ^ new.undecided) & both).bit_count(),
        shows=before is None or bool(old.eligible) is not bool(new.eligible),
    )
