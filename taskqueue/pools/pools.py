"""SubmitPools: the Requirements of a VO, stored once under their id.

A pool is deleted when no job that is not final uses it. The arrival of a job touches the pool's row in the
transaction that makes the job wait, and deletion requires an untouched row: whichever comes second sees what
the first did, so that a job never loses its pool.

The mapping of pools to queues is stored as the set of eligible queue classes of each pool. A mapping is
written only while the VO's queue classes have the version that it was computed from; see `queue_class_store`.
Only differences are written, in one transaction.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    false,
    func,
    or_,
    select,
    text,
    tuple_,
    union_all,
    update,
)

from cs_config.classes.queue_columns import EligibleSets
from requirements.bitset import mask_from
from requirements.states import FINAL, JobStatus
from taskqueue import ownership
from taskqueue.db import sql
from taskqueue.errors import PoolNotFound
from taskqueue.pools import queue_class_store
from taskqueue.schema.tables import jobs, pool_mappings, submit_pools
from taskqueue.schema.tables import pool_mappings as mapped
from taskqueue.schema.tables import queue_class_versions as versions
from taskqueue.task_queues import change_feed

_NOT_FINAL = sorted(set(JobStatus) - FINAL)
#: Jobs of a pool and status that are looked at first.
_FEW = 100
TOUCH = sql.insert_or_update(submit_pools, "last_used_at", returning=("pool_id", "refreshed_at"))

#: A pool with a mapping has at least the version of its VO's last full refresh.
_OWN = (submit_pools.c.config_version, submit_pools.c.expiries, submit_pools.c.refreshed_at)
_OF_VO = (versions.c.refreshed_version, versions.c.refreshed_expiries, versions.c.refreshed_at)
_VO_IS_AHEAD = and_(submit_pools.c.refreshed_at.is_not(None), tuple_(*_OF_VO) > tuple_(*_OWN))
#: Version and time of a pool's mapping: the newer of its own and its VO's. The view `pool_queues` of the
#: migrations, which people read, has the same, as a test holds.
REFRESH_COLUMNS = {
    own.name: case((_VO_IS_AHEAD, of_vo), else_=own).label(own.name)
    for own, of_vo in zip(_OWN, _OF_VO, strict=True)
}
WITH_VO = submit_pools.outerjoin(versions, versions.c.vo == submit_pools.c.vo)

#: All columns of `Pool`.
ALL = select(*(REFRESH_COLUMNS.get(each.name, each) for each in submit_pools.c)).select_from(WITH_VO)
GET = ALL.where(submit_pools.c.pool_id == bindparam("pool_id"))

IS_UNMAPPED = ~exists().where(pool_mappings.c.pool_id == submit_pools.c.pool_id)

COUNT = select(func.count()).select_from(submit_pools)


#: KEY SHARE: none of them is removed until the transaction ends.
EXISTING = (
    select(submit_pools.c.pool_id)
    .where(sql.is_listed(submit_pools.c.pool_id))
    .order_by(submit_pools.c.pool_id)
    .with_for_update(read=True, key_share=True)
)
#: On SQLite the transaction is the lock.
LOCK_NEW = text("SELECT pg_advisory_xact_lock(hashtextextended('new pools of ' || :vo, 0))")

REQUIREMENTS = select(submit_pools.c.pool_id, submit_pools.c.vo, submit_pools.c.original).order_by(
    submit_pools.c.pool_id
)

#: Those whose text has more characters than this.
LONG_REQUIREMENTS = REQUIREMENTS.where(func.length(submit_pools.c.original) > bindparam("characters"))

_is_used = exists().where(jobs.c.submit_pool == submit_pools.c.pool_id, jobs.c.status.in_(_NOT_FINAL))
_was_used = exists().where(
    jobs.c.submit_pool == submit_pools.c.pool_id, jobs.c.ended_at >= bindparam("before")
)


def _list_newest(status: JobStatus) -> Select[datetime | None]:
    """When the newest jobs of a pool with this status ended."""
    return (
        select(jobs.c.ended_at)
        .where(jobs.c.submit_pool == submit_pools.c.pool_id, jobs.c.status == status.value)
        .order_by(jobs.c.job_id.desc())
        .limit(_FEW)
        .correlate(submit_pools)
    )


_newest = union_all(*(select(_list_newest(each).subquery()) for each in sorted(FINAL))).subquery()
_newest_were_used = exists().where(_newest.c.ended_at >= bindparam("before"))
#: CASE: in this order. A pool may have millions of ended jobs, which are read once, before it goes, and not
#: every minute of its grace time.
_is_idle = case((_is_used, false()), (_newest_were_used, false()), else_=~_was_used)
_may_go = and_(submit_pools.c.last_used_at < bindparam("before"), _is_idle)

#: SKIP LOCKED: a locked row is in use. Ordered as in `touch_pools`.
UNUSED = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.vo == bindparam("vo"), _may_go)
    .order_by(submit_pools.c.pool_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
DELETE_UNUSED = (
    delete(submit_pools)
    .where(sql.is_listed(submit_pools.c.pool_id), _may_go)
    .returning(submit_pools.c.pool_id)
)
VOS = select(submit_pools.c.vo).distinct().order_by(submit_pools.c.vo)


#: KEY SHARE: prevents only the removal, which locks the row first and checks in a later statement.
#: SKIP LOCKED: such a pool is being removed or mapped.
LOCK_RESOLVED = (
    select(submit_pools.c.pool_id)
    .where(sql.is_listed(submit_pools.c.pool_id), submit_pools.c.refreshed_at.is_not(None))
    .order_by(submit_pools.c.pool_id)
    .with_for_update(read=True, key_share=True, skip_locked=True)
)
_TOUCHED_LONG_AGO = (
    select(submit_pools.c.pool_id)
    .where(sql.is_listed(submit_pools.c.pool_id), submit_pools.c.last_used_at < bindparam("before"))
    .order_by(submit_pools.c.pool_id)
    .with_for_update(key_share=True, skip_locked=True)
)
TOUCH_AT_INTERVALS = (
    update(submit_pools)
    .where(submit_pools.c.pool_id.in_(_TOUCHED_LONG_AGO.scalar_subquery()))
    .values(last_used_at=bindparam("now"))
)
#: A pool that is in use is safe from removal; the time of its last use is for display, and for a pool whose
#: jobs were removed.
_TOUCH_INTERVAL = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPool:
    """A pool that a job needs; it may exist already."""

    pool_id: str
    vo: str  #: lower case
    requirements: str  #: the canonical form, JSON
    original: str  #: as written, JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A stored pool."""

    pool_id: str
    vo: str
    requirements: str  #: the canonical form, JSON
    original: str  #: as first written, JSON
    created_at: datetime
    last_used_at: datetime
    refreshed_at: datetime | None  #: None: not resolved yet
    config_version: int  #: of its mapping
    expiries: int = 0  #: expiries of that version that had passed


def lock_resolved(conn: Connection, pool_ids: Collection[str], *, now: datetime) -> frozenset[str]:
    """Prevent the removal of those pools that have been resolved and are not locked; their ids.

    Their use is recorded, at most once a minute each. Does not wait, nor does it make another submission
    wait.
    """
    locked: set[str] = set()
    for ids in sql.split_batches(pool_ids):
        found = conn.execute(LOCK_RESOLVED, {"ids": ids}).scalars().all()
        if found:
            conn.execute(TOUCH_AT_INTERVALS, {"ids": found, "now": now, "before": now - _TOUCH_INTERVAL})
        locked.update(found)
    return frozenset(locked)


def find_excess(
    conn: Connection, wanted: Mapping[str, Sequence[str]], most: Callable[[str], int]
) -> frozenset[str]:
    """The pools, of those wanted by VO, that do not exist and are too many for their VO; the last ones.

    Before `touch_pools`, in its transaction: until that ends, no other one makes pools of these VOs, and none
    of the existing pools is removed.
    """
    excess: set[str] = set()
    for vo, pool_ids in sorted(wanted.items()):
        if not (new := _find_new(conn, pool_ids)):
            continue
        if conn.dialect.name == "postgresql":
            conn.execute(LOCK_NEW, {"vo": vo})
            new = _find_new(conn, new)
        room = most(vo) - count_pools(conn, vos=[vo])
        excess.update(new[max(0, room) :])
    return frozenset(excess)


def _find_new(conn: Connection, pool_ids: Sequence[str]) -> list[str]:
    existing = {row.pool_id for row in sql.read_batches(conn, EXISTING, pool_ids)}
    return [each for each in pool_ids if each not in existing]


def touch_pools(conn: Connection, pools: Iterable[NewPool], *, now: datetime) -> frozenset[str]:
    """Insert or touch pools; the ids of those that still have to be resolved.

    Called in the transaction that makes jobs wait for them. Until it ends no other transaction touches or
    deletes them: if two bring the same new pool, the second finds it resolved.
    """
    by_id = {pool.pool_id: pool for pool in pools}
    if not by_id:
        return frozenset()
    new = {"created_at": now, "last_used_at": now, "config_version": 0}
    rows = [{**asdict(pool), **new} for _, pool in sorted(by_id.items())]
    found = conn.execute(TOUCH, rows)
    return frozenset(row.pool_id for row in found if row.refreshed_at is None)


def get_pool(conn: Connection, pool_id: str) -> Pool:
    """One pool; PoolNotFound."""
    row = conn.execute(GET, {"pool_id": pool_id}).mappings().one_or_none()
    if row is None:
        raise PoolNotFound(pool_id)
    return Pool(**row)


def count_pools(conn: Connection, *, vos: Collection[str] | None = None) -> int:
    """Number of pools of some VOs (None: of all)."""
    return conn.execute(COUNT.where(*ownership.match_values({submit_pools.c.vo: vos}))).scalar_one()


def list_vos(conn: Connection) -> list[str]:
    """The VOs that have pools, sorted."""
    return list(conn.execute(VOS).scalars())


def delete_unused(
    conn: Connection, *, vo: str, before: datetime, now: datetime, limit: int = 1000
) -> list[str]:
    """Delete pools of a VO that no job has used since `before`, with their mapping; their ids."""
    unused = list(conn.execute(UNUSED, {"vo": vo, "before": before, "limit": limit}).scalars())
    if not unused:
        return []
    deleted = conn.execute(DELETE_UNUSED, {"before": before, "ids": unused}).all()
    if deleted:
        change_feed.append_changes(conn, "mapping", [vo], now=now)
    return [row.pool_id for row in deleted]


def list_requirements(conn: Connection, vos: Collection[str] | None) -> dict[str, dict[str, str]]:
    """Requirements of the pools of these VOs (None: of all), JSON as first written, by VO and id."""
    rows = conn.execute(REQUIREMENTS.where(*ownership.match_values({submit_pools.c.vo: vos})))
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        found.setdefault(row.vo, {})[row.pool_id] = row.original
    return found


def list_long_requirements(conn: Connection, *, characters: int) -> Sequence[tuple[str, str]]:
    """Ids and requirements, JSON as first written, of pools whose JSON has more characters than this."""
    return [
        (row.pool_id, row.original) for row in conn.execute(LONG_REQUIREMENTS, {"characters": characters})
    ]


_VO: BindParameter[str] = bindparam("the_vo")

LOCK_POOLS = (
    select(submit_pools.c.pool_id)
    .where(sql.is_listed(submit_pools.c.pool_id), submit_pools.c.vo == _VO)
    .order_by(submit_pools.c.pool_id)
    .with_for_update()
)

OF_VO = select(mapped.c.pool_id, mapped.c.eligible, mapped.c.undecided).where(mapped.c.vo == _VO)
MAPPED = select(mapped.c.pool_id, mapped.c.eligible, mapped.c.undecided).where(
    sql.is_listed(mapped.c.pool_id)
)

PUT = sql.insert_or_update(mapped, "eligible", "undecided")
#: UPDATE, not upsert: the pool may have been deleted meanwhile.
UPDATE = (
    update(mapped)
    .where(mapped.c.pool_id == bindparam("its_pool"))
    .values(eligible=bindparam("its_eligible"), undecided=bindparam("its_undecided"))
)

MARK_REFRESHED = (
    update(submit_pools)
    .where(sql.is_listed(submit_pools.c.pool_id))
    .values(
        refreshed_at=bindparam("now"), config_version=bindparam("version"), expiries=bindparam("its_expiries")
    )
)


UNMAPPED = select(submit_pools.c.pool_id).where(submit_pools.c.vo == _VO, IS_UNMAPPED)
VOS_WITH_UNMAPPED = select(submit_pools.c.vo).where(IS_UNMAPPED).distinct()
MAPPED_IDS = select(pool_mappings.c.pool_id).where(pool_mappings.c.vo == _VO)

_since: BindParameter[datetime] = bindparam("since")
REFRESHED = (
    select(submit_pools.c.pool_id)
    .outerjoin(versions, versions.c.vo == submit_pools.c.vo)
    .where(submit_pools.c.refreshed_at.is_not(None))
)
REFRESHED_SINCE = REFRESHED.where(or_(submit_pools.c.refreshed_at > _since, versions.c.refreshed_at > _since))


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingChange:
    """Changes in a pool's mapping."""

    gained: int  #: queue classes
    lost: int  #: queue classes
    turned: int = 0  #: queue classes that became undecided, or no longer are
    #: Jobs need another minor status: eligible classes appeared or vanished, or the pool had no mapping.
    shows: bool = field(default=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.gained or self.lost or self.turned)


_NO_CHANGE = MappingChange(gained=0, lost=0)
_EMPTY = EligibleSets(eligible=0)


def store_mappings(
    conn: Connection,
    *,
    vo: str,
    config_version: int,
    expiries: int = 0,
    digests: Mapping[str, Mapping[str, bool]],
    now: datetime,
) -> Mapping[str, MappingChange] | None:
    """Store which queue classes are eligible for pools of a VO; what changed for each that exists.

    `digests` has for each pool the digests of its eligible queue classes, and whether each is undecided.
    None: the VO's queue classes have another version or release, and nothing was written; load the current
    configuration, sync, and compute again.
    """
    there = lock_pools(conn, vo, digests)
    if queue_class_store.lock_version(conn, vo) != (config_version, expiries):
        return None
    slots = queue_class_store.read_slots(conn, vo)
    if any(digests[pool_id].keys() - slots.keys() for pool_id in there):
        return None  # this version had another text, or another release wrote last
    wanted = {pool_id: _to_sets(digests[pool_id], slots) for pool_id in there}
    changed = _store_changes(
        conn, vo, wanted, {"now": now, "version": config_version, "its_expiries": expiries}
    )
    if any(changed.values()):
        change_feed.append_changes(conn, "mapping", [vo], now=now)
    return changed


def read_mappings(conn: Connection, vo: str) -> dict[str, EligibleSets]:
    """Mappings of the pools of a VO; a pool without one has no entry."""
    return _sets_from_rows(conn.execute(OF_VO, {"the_vo": vo}))


def refresh_mappings(
    conn: Connection,
    *,
    vo: str,
    config_version: int,
    expiries: int = 0,
    new: Mapping[str, EligibleSets],
    wanted: Mapping[str, EligibleSets],
    before: Mapping[str, EligibleSets],
    now: datetime,
) -> dict[str, MappingChange]:
    """Store mappings that were computed under the lock of the VO's row (see `queue_class_store.lock_state`).

    `new` are mappings of pools that are locked and may have none yet, `wanted` those of pools that have one,
    stored as `before`. What changed for each of the pools.
    """
    changed = {pool_id: _compare(before[pool_id], sets) for pool_id, sets in wanted.items()}
    rows = [
        {"its_pool": pool_id, "its_eligible": sets.eligible, "its_undecided": sets.undecided}
        for pool_id, sets in sorted(wanted.items())
        if changed[pool_id]
    ]
    if rows:
        conn.execute(UPDATE, rows)
    stamp = {"now": now, "version": config_version, "its_expiries": expiries}
    changed |= _store_changes(conn, vo, new, stamp)
    if any(changed.values()):
        change_feed.append_changes(conn, "mapping", [vo], now=now)
    return changed


def lock_pools(conn: Connection, vo: str, pool_ids: Collection[str]) -> list[str]:
    """Lock existing pools in order, before the VO's version, as the arrival of jobs does."""
    return [row.pool_id for row in sql.read_batches(conn, LOCK_POOLS, pool_ids, the_vo=vo)]


def _to_sets(digests: Mapping[str, bool], slots: Mapping[str, int]) -> EligibleSets:
    return EligibleSets(
        eligible=mask_from([slots[digest] for digest in digests]),
        undecided=mask_from([slots[digest] for digest, undecided in digests.items() if undecided]),
    )


def _store_changes(
    conn: Connection, vo: str, wanted: Mapping[str, EligibleSets], stamp: Mapping[str, object]
) -> dict[str, MappingChange]:
    changed: dict[str, MappingChange] = {}
    for pool_ids in sql.split_batches(wanted):
        changed |= _write_changes(conn, vo, {pool_id: wanted[pool_id] for pool_id in pool_ids})
        conn.execute(MARK_REFRESHED, {"ids": pool_ids, **stamp})
    return changed


def _write_changes(conn: Connection, vo: str, wanted: Mapping[str, EligibleSets]) -> dict[str, MappingChange]:
    before = _sets_from_rows(conn.execute(MAPPED, {"ids": list(wanted)}))
    rows = [
        {"pool_id": pool_id, "vo": vo, "eligible": new.eligible, "undecided": new.undecided}
        for pool_id, new in wanted.items()
        if before.get(pool_id) != new
    ]
    if rows:
        conn.execute(PUT, rows)
    return {pool_id: _compare(before.get(pool_id), new) for pool_id, new in wanted.items()}


def _sets_from_rows(rows: Iterable[Row[tuple[str, int, int]]]) -> dict[str, EligibleSets]:
    return {row.pool_id: EligibleSets(eligible=row.eligible, undecided=row.undecided) for row in rows}


def _compare(before: EligibleSets | None, new: EligibleSets) -> MappingChange:
    if before == new:
        return _NO_CHANGE
    old = before or _EMPTY
    both = old.eligible & new.eligible
    return MappingChange(
        gained=(new.eligible & ~old.eligible).bit_count(),
        lost=(old.eligible & ~new.eligible).bit_count(),
        turned=((old.undecided ^ new.undecided) & both).bit_count(),
        shows=before is None or bool(old.eligible) is not bool(new.eligible),
    )


def list_unmapped(conn: Connection, vo: str) -> list[str]:
    """Pools of the VO without a stored mapping."""
    return list(conn.execute(UNMAPPED, {"the_vo": vo}).scalars())


def list_vos_with_unmapped(conn: Connection) -> frozenset[str]:
    """VOs that have such pools."""
    return frozenset(conn.execute(VOS_WITH_UNMAPPED).scalars())


def list_mapped(conn: Connection, vo: str) -> list[str]:
    """Pools of the VO with a stored mapping."""
    return list(conn.execute(MAPPED_IDS, {"the_vo": vo}).scalars())


def list_refreshed(conn: Connection, since: datetime | None) -> list[str]:
    """Pools resolved after a time, alone or in a refresh of their VO; None: all that ever were."""
    if since is None:
        return list(conn.execute(REFRESHED).scalars())
    return list(conn.execute(REFRESHED_SINCE, {"since": since}).scalars())
