"""SubmitPools: the Requirements of a VO, stored once under their id.

A pool is deleted when no job that is not final uses it. The arrival of a job touches the pool's row in the
transaction that makes the job wait, and deletion requires an untouched row: whichever comes second sees what
the first did, so that a job never loses its pool.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, bindparam, case, delete, exists, func, select, tuple_, update

from taskqueue import ownership
from taskqueue.db import sql
from taskqueue.errors import PoolNotFound
from taskqueue.schema.tables import jobs, pool_mappings, submit_pools
from taskqueue.schema.tables import queue_class_versions as versions
from taskqueue.states import FINAL, JobStatus
from taskqueue.task_queues import change_feed

_NOT_FINAL = sorted(set(JobStatus) - FINAL)
TOUCH = sql.insert_or_update(submit_pools, "last_used_at", returning=("pool_id", "refreshed_at"))

#: A pool with a mapping has at least the version of its VO's last full refresh.
_OWN = (submit_pools.c.config_version, submit_pools.c.expiries, submit_pools.c.refreshed_at)
_OF_VO = (versions.c.refreshed_version, versions.c.refreshed_expiries, versions.c.refreshed_at)
_VO_IS_AHEAD = and_(submit_pools.c.refreshed_at.is_not(None), tuple_(*_OF_VO) > tuple_(*_OWN))
#: Version and time of a pool's mapping: the newer of its own and its VO's.
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

ORIGINALS = select(submit_pools.c.pool_id, submit_pools.c.original).where(submit_pools.c.pool_id.in_(sql.IDS))

REQUIREMENTS = select(submit_pools.c.pool_id, submit_pools.c.vo, submit_pools.c.original).order_by(
    submit_pools.c.pool_id
)

_is_used = exists().where(jobs.c.submit_pool == submit_pools.c.pool_id, jobs.c.status.in_(_NOT_FINAL))
_was_used = exists().where(
    jobs.c.submit_pool == submit_pools.c.pool_id, jobs.c.ended_at >= bindparam("before")
)
_may_go = and_(submit_pools.c.last_used_at < bindparam("before"), ~_is_used, ~_was_used)

#: SKIP LOCKED: a locked row is in use. Ordered as in `touch_pools`.
UNUSED = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.vo == bindparam("vo"), _may_go)
    .order_by(submit_pools.c.pool_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
DELETE_UNUSED = (
    delete(submit_pools).where(submit_pools.c.pool_id.in_(sql.IDS), _may_go).returning(submit_pools.c.pool_id)
)
VOS = select(submit_pools.c.vo).distinct().order_by(submit_pools.c.vo)


#: KEY SHARE: prevents only the removal, which locks the row first and checks in a later statement.
#: SKIP LOCKED: such a pool is being removed or mapped.
LOCK_RESOLVED = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.pool_id.in_(sql.IDS), submit_pools.c.refreshed_at.is_not(None))
    .order_by(submit_pools.c.pool_id)
    .with_for_update(read=True, key_share=True, skip_locked=True)
)
_TOUCHED_LONG_AGO = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.pool_id.in_(sql.IDS), submit_pools.c.last_used_at < bindparam("before"))
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


def lock_resolved(conn: Connection, pool_ids: Collection[str]) -> frozenset[str]:
    """Prevent the removal of those pools that have been resolved and are not locked; their ids.

    Does not wait, nor does it make another submission wait.
    """
    return frozenset(row.pool_id for row in sql.read_batches(conn, LOCK_RESOLVED, pool_ids))


def touch_at_intervals(conn: Connection, pool_ids: Collection[str], *, now: datetime) -> None:
    """Record that pools are used, at most once a minute each, so that submissions need not wait in turn."""
    for ids in sql.split_batches(pool_ids):
        conn.execute(TOUCH_AT_INTERVALS, {"ids": ids, "now": now, "before": now - _TOUCH_INTERVAL})


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
    found = conn.execute(TOUCH.to_statement(conn), rows)
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


def read_originals(conn: Connection, pool_ids: Collection[str]) -> Mapping[str, str]:
    """Requirements of pools as first written, JSON, by id."""
    return {row.pool_id: row.original for row in sql.read_batches(conn, ORIGINALS, pool_ids)}


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
