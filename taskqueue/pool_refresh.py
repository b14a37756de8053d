"""What the refresh of pools has to know: which VOs and pools are behind the configuration."""

from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import Connection, bindparam, or_, select

from taskqueue import pools
from taskqueue.tables import queue_class_versions, submit_pools

_BATCH = 1000

VERSIONS = select(
    queue_class_versions.c.vo, queue_class_versions.c.config_version, queue_class_versions.c.expiries
)

#: VOs with a pool that was computed from an older configuration, or long ago, or never.
VOS_BEHIND = (
    select(submit_pools.c.vo)
    .where(
        or_(
            pools.IS_OF_OLDER,
            pools.IS_NOT_OURS,
            submit_pools.c.refreshed_at.is_(None),
            submit_pools.c.refreshed_at < bindparam("refreshed_before"),
        )
    )
    .distinct()
)

REFRESHED_SINCE = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.refreshed_at > bindparam("since"))
    .order_by(submit_pools.c.pool_id)
)
ALL_REFRESHED = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.refreshed_at.is_not(None))
    .order_by(submit_pools.c.pool_id)
)

#: In the order in which jobs that arrive touch them.
LOCK = (
    select(submit_pools.c.pool_id)
    .where(submit_pools.c.pool_id.in_(bindparam("pool_ids", expanding=True)))
    .order_by(submit_pools.c.pool_id)
    .with_for_update()
)


def versions(conn: Connection) -> Mapping[str, tuple[int, int]]:
    """For each VO with queue classes the version that they are of, and how much of it had expired."""
    return {row.vo: (row.config_version, row.expiries) for row in conn.execute(VERSIONS)}


def vos_behind(
    conn: Connection, *, config_version: int, expiries: int = 0, refreshed_before: datetime
) -> frozenset[str]:
    """VOs with a pool whose mapping has to be computed anew."""
    values = {
        "config_version": config_version,
        "expiries": expiries,
        "refreshed_before": refreshed_before,
    }
    return frozenset(conn.execute(VOS_BEHIND, values).scalars())


def refreshed_since(conn: Connection, since: datetime | None) -> list[str]:
    """Pools that were resolved after a time; all that ever were, if None."""
    if since is None:
        return list(conn.execute(ALL_REFRESHED).scalars())
    return list(conn.execute(REFRESHED_SINCE, {"since": since}).scalars())


def lock(conn: Connection, pool_ids: Collection[str]) -> None:
    """Lock pools before their VO's version row, as every arrival of a job does."""
    ordered = sorted(pool_ids)
    for start in range(0, len(ordered), _BATCH):
        conn.execute(LOCK, {"pool_ids": ordered[start : start + _BATCH]}).all()
