"""Refresh state of each VO: the configuration version that the mappings of its pools have at least.

A refresh of all pools of a VO is recorded once, in the VO's row with the version of its queue classes. A
pool's own row has the version of its mapping when a job brought the pool; the newer of the two is valid. A
refresh is recorded only under the lock of the VO's row, so that no unknown mapping can exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BindParameter, Connection, Row, bindparam, func, or_, select, update

from cs_config.classes.queue_classes import ALGORITHM
from taskqueue.pools import pools
from taskqueue.schema.tables import pool_mappings, submit_pools
from taskqueue.schema.tables import queue_class_versions as versions

_VO: BindParameter[str] = bindparam("the_vo")

STATES = select(versions)
#: Locks out writers of the VO's mappings and queue classes until the transaction ends.
LOCK_STATE = STATES.where(versions.c.vo == _VO).with_for_update()
RECORD_REFRESH = (
    update(versions)
    .where(versions.c.vo == _VO)
    .values(
        refreshed_version=versions.c.config_version,
        refreshed_expiries=versions.c.expiries,
        refreshed_at=bindparam("now"),
    )
)

UNMAPPED = select(submit_pools.c.pool_id).where(submit_pools.c.vo == _VO, pools.IS_UNMAPPED)
VOS_WITH_UNMAPPED = select(submit_pools.c.vo).where(pools.IS_UNMAPPED).distinct()
#: As one row: ten thousand ids are read for each change of a queue.
MAPPED = select(func.aggregate_strings(pool_mappings.c.pool_id, " ")).where(pool_mappings.c.vo == _VO)

_since: BindParameter[datetime] = bindparam("since")
REFRESHED = (
    select(submit_pools.c.pool_id)
    .outerjoin(versions, versions.c.vo == submit_pools.c.vo)
    .where(submit_pools.c.refreshed_at.is_not(None))
)
REFRESHED_SINCE = REFRESHED.where(or_(submit_pools.c.refreshed_at > _since, versions.c.refreshed_at > _since))


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshState:
    """Refresh state of a VO; each version with its number of passed expiries."""

    version: tuple[int, int]  #: of the queue classes
    is_ours: bool = True  #: they were computed by the algorithm of this release
    refreshed: tuple[int, int]  #: minimum of all mappings
    refreshed_at: datetime | None  #: when the last refresh was recorded; None: never

    def is_of(self, version: tuple[int, int], *, refreshed_after: datetime) -> bool:
        """Whether all mappings have at least this version and were computed after that time."""
        if not self.is_ours or self.refreshed_at is None or min(self.version, self.refreshed) < version:
            return False
        return self.refreshed_at >= refreshed_after


def read_states(conn: Connection) -> Mapping[str, RefreshState]:
    """State of each VO with queue classes."""
    return {row.vo: _state_from_row(row) for row in conn.execute(STATES)}


def lock_state(conn: Connection, vo: str) -> RefreshState | None:
    """Read the VO's state and lock it against writers of its mappings until the transaction ends.

    Pools must be locked before, as every arrival of a job does.
    """
    row = conn.execute(LOCK_STATE, {"the_vo": vo}).one_or_none()
    return None if row is None else _state_from_row(row)


def record_refresh(conn: Connection, vo: str, *, now: datetime) -> None:
    """Record that all mappings of the VO have its version; the row is locked."""
    conn.execute(RECORD_REFRESH, {"the_vo": vo, "now": now})


def list_unmapped(conn: Connection, vo: str) -> list[str]:
    """Pools of the VO without a stored mapping."""
    return list(conn.execute(UNMAPPED, {"the_vo": vo}).scalars())


def list_vos_with_unmapped(conn: Connection) -> frozenset[str]:
    """VOs that have such pools."""
    return frozenset(conn.execute(VOS_WITH_UNMAPPED).scalars())


def list_mapped(conn: Connection, vo: str) -> frozenset[str]:
    """Pools of the VO with a stored mapping."""
    return frozenset((conn.execute(MAPPED, {"the_vo": vo}).scalar_one() or "").split())


def list_refreshed(conn: Connection, since: datetime | None) -> list[str]:
    """Pools resolved after a time, alone or in a refresh of their VO; None: all that ever were."""
    if since is None:
        return list(conn.execute(REFRESHED).scalars())
    return list(conn.execute(REFRESHED_SINCE, {"since": since}).scalars())


def _state_from_row(row: Row[tuple[str, int, int, int, int, int, datetime | None]]) -> RefreshState:
    return RefreshState(
        version=(row.config_version, row.expiries),
        is_ours=row.algorithm == ALGORITHM,
        refreshed=(row.refreshed_version, row.refreshed_expiries),
        refreshed_at=row.refreshed_at,
    )
