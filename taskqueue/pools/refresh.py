"""Refresh state of each VO: the configuration version that the mappings of its pools correspond to.

A refresh of all pools of a VO is recorded once, in the VO's row beside the version of its queue classes. A
pool's own row holds the version of its own mapping, made when a job brought the pool; the newer of the two
is valid. A refresh is recorded only under the lock of the VO's row, so no unknown mapping can exist.
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
#: No mapping of the VO is written, and its queue classes stay as they are, until the transaction ends.
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
#: In one row: ten thousand are read for each change of a queue.
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
    """What the row of a VO says; each version with how many of its expiries had passed."""

    version: tuple[int, int]  #: the queue classes are of
    is_ours: bool = True  #: and by the rule of this release
    refreshed: tuple[int, int]  #: every mapping is of, or of a newer one
    refreshed_at: datetime | None  #: when that was noted; None: never

    def is_of(self, version: tuple[int, int], *, refreshed_after: datetime) -> bool:
        """Whether all mappings are of this version, computed not longer ago than that."""
        if not self.is_ours or self.refreshed_at is None or min(self.version, self.refreshed) < version:
            return False
        return self.refreshed_at >= refreshed_after


def read_states(conn: Connection) -> Mapping[str, RefreshState]:
    """How far each VO with queue classes is."""
    return {row.vo: _state_from_row(row) for row in conn.execute(STATES)}


def lock_state(conn: Connection, vo: str) -> RefreshState | None:
    """How far the VO is; until the transaction ends it stays so, and nobody else writes its mappings.

    Who locks pools as well has done so before, as every arrival of a job does.
    """
    row = conn.execute(LOCK_STATE, {"the_vo": vo}).one_or_none()
    return None if row is None else _state_from_row(row)


def record_refresh(conn: Connection, vo: str, *, now: datetime) -> None:
    """All mappings of the VO are of its version now; the row is held."""
    conn.execute(RECORD_REFRESH, {"the_vo": vo, "now": now})


def list_unmapped(conn: Connection, vo: str) -> list[str]:
    """The pools of the VO whose mapping was never stored, or by a process of the release before."""
    return list(conn.execute(UNMAPPED, {"the_vo": vo}).scalars())


def list_vos_with_unmapped(conn: Connection) -> frozenset[str]:
    """The VOs that have such pools."""
    return frozenset(conn.execute(VOS_WITH_UNMAPPED).scalars())


def list_mapped(conn: Connection, vo: str) -> frozenset[str]:
    """The pools of the VO whose mapping is stored."""
    return frozenset((conn.execute(MAPPED, {"the_vo": vo}).scalar_one() or "").split())


def list_refreshed(conn: Connection, since: datetime | None) -> list[str]:
    """Pools that were resolved after a time, alone or with all of their VO; all that ever were, if None."""
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
