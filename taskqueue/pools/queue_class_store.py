"""Stored queue classes of each VO, and the queues that are members of them.

A VO's classes belong to one configuration version and number of passed expiries: the same version with more
expiries passed is a newer one. Releases may compute digests by different rules (`ALGORITHM`): classes of
another release are ignored, and the agent computes them and all mappings again. A transaction that writes
something computed from the classes holds the version row (`lock_version`), so that nothing old is written
after something newer. Lock order: pools by id, then versions by VO.

A refresh of all pools of a VO is recorded once, in the VO's row too; a pool's own row has the version of its
mapping when a job brought the pool, and the newer of the two is valid. A refresh is recorded only under the
lock of the VO's row, so that no unknown mapping can exist.

Each class has a slot, its bit in the mappings of the VO's pools. A slot is reused only after no mapping has
it any more (`prune_classes`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    exists,
    insert,
    or_,
    select,
    update,
)

from cs_config.classes.queue_classes import ALGORITHM, QueueClass
from cs_config.tree.address import QueueAddress
from taskqueue.db import sql
from taskqueue.schema.tables import queue_class_members as members
from taskqueue.schema.tables import queue_class_versions as versions
from taskqueue.schema.tables import queue_classes as table
from taskqueue.task_queues import change_feed

_VO: BindParameter[str] = bindparam("the_vo")


_NEW = sql.insert(versions)
_IS_NEWER = or_(
    versions.c.config_version < _NEW.excluded.config_version,
    and_(
        versions.c.config_version == _NEW.excluded.config_version,
        versions.c.expiries <= _NEW.excluded.expiries,
    ),
)
#: Locks the VO's version row; returns no row if the stored version is newer.
ADVANCE = _NEW.on_conflict_do_update(
    index_elements=["vo"],
    set_={name: _NEW.excluded[name] for name in ("config_version", "expiries", "algorithm")},
    where=_IS_NEWER,
).returning(versions.c.vo)
ADD_MEMBERS = sql.bulk_insert(members, "site", "ce", "queue", "queue_class_id", "vo")

VERSION = select(versions.c.config_version, versions.c.expiries, versions.c.algorithm).where(
    versions.c.vo == _VO
)
#: FOR SHARE: a newer version waits until results computed from this one are written.
HOLD_VERSION = VERSION.with_for_update(read=True)
HOLD_VERSION_IF_FREE = VERSION.with_for_update(read=True, skip_locked=True)
#: FOR UPDATE: before the version is replaced.
LOCK_VERSION = VERSION.with_for_update()

CLASSES = select(table.c.digest, table.c.queue_class_id, table.c.slot).where(table.c.vo == _VO)
ADD_CLASS = insert(table)

MEMBERS = select(members.c.site, members.c.ce, members.c.queue, members.c.queue_class_id).where(
    members.c.vo == _VO
)

REMOVE_MEMBER = delete(members).where(
    members.c.vo == _VO,
    members.c.site == bindparam("the_site"),
    members.c.ce == bindparam("the_ce"),
    members.c.queue == bindparam("the_queue"),
)

_are_all_refreshed = and_(
    versions.c.refreshed_version == versions.c.config_version,
    versions.c.refreshed_expiries == versions.c.expiries,
)
#: Classes without queues, while all mappings have this version: then none of them contains such a class.
PRUNE_CLASSES = delete(table).where(
    table.c.vo == _VO,
    ~exists().where(members.c.queue_class_id == table.c.queue_class_id),
    exists().where(versions.c.vo == _VO, _are_all_refreshed),
)


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


def read_version(conn: Connection, vo: str) -> int | None:
    """Configuration version of the VO's queue classes; None: there are none."""
    found: int | None = conn.execute(VERSION, {"the_vo": vo}).scalar_one_or_none()
    return found


def lock_version(conn: Connection, vo: str, *, wait: bool = True) -> tuple[int, int] | None:
    """Lock and return the VO's configuration version and number of passed expiries.

    None: there are no classes, or they are of another release; or they are being replaced, if not to `wait`.
    """
    row = conn.execute(HOLD_VERSION if wait else HOLD_VERSION_IF_FREE, {"the_vo": vo}).one_or_none()
    return None if row is None or row.algorithm != ALGORITHM else (row.config_version, row.expiries)


def read_slots(conn: Connection, vo: str) -> dict[str, int]:
    """Slots of the VO's queue classes by digest."""
    rows = conn.execute(CLASSES, {"the_vo": vo})
    return {row.digest: row.slot for row in rows}


def number_classes(slots: Mapping[str, int], digests: Iterable[str]) -> dict[str, int]:
    """Keep the slots of classes and assign the lowest free ones to new classes, in order of digest."""
    used = set(slots.values())
    free = (slot for slot in count() if slot not in used)
    return {**slots, **dict(zip(sorted(set(digests) - slots.keys()), free))}  # noqa: B905  (free is endless)


def store_classes(
    conn: Connection,
    *,
    vo: str,
    config_version: int,
    expiries: int = 0,
    classes: Sequence[QueueClass],
    now: datetime,
) -> bool:
    """Replace the stored queue classes of a VO; only differences are written. False: a newer version stays.

    The transaction must have locked the pools that it needs.
    """
    version = (config_version, expiries, ALGORITHM)
    row = conn.execute(VERSION, {"the_vo": vo}).one_or_none()
    if row is not None and tuple(row) != version:
        # Another transaction may have replaced it before we got the lock.
        row = conn.execute(LOCK_VERSION, {"the_vo": vo}).one_or_none()
    if row is not None and tuple(row) == version:
        return True
    advanced = {"vo": vo, "config_version": config_version, "expiries": expiries, "algorithm": ALGORITHM}
    # Used for a new row only: then there are no mappings, so all of them have this version.
    refreshed = {"refreshed_version": config_version, "refreshed_expiries": expiries, "refreshed_at": now}
    if conn.execute(ADVANCE, {**advanced, **refreshed}).first() is None:
        return False
    class_ids = _add_classes(conn, vo, classes)
    wanted = {queue: class_ids[each.digest] for each in classes for queue in each.queues}
    if _write_members(conn, vo, _read_members(conn, vo), wanted):
        change_feed.append_changes(conn, "mapping", [vo], now=now)
    return True


def prune_classes(conn: Connection, vo: str) -> None:
    """Delete classes that no queue and no mapping has; not while a mapping has another version."""
    conn.execute(PRUNE_CLASSES, {"the_vo": vo})


def _add_classes(conn: Connection, vo: str, classes: Sequence[QueueClass]) -> dict[str, int]:
    """Insert new classes, each with a slot; the ids of all."""
    stored = {row.digest: row for row in conn.execute(CLASSES, {"the_vo": vo})}
    wanted = {each.digest for each in classes}
    given = number_classes({digest: row.slot for digest, row in stored.items()}, wanted)
    if new := sorted(wanted - stored.keys()):
        conn.execute(ADD_CLASS, [{"vo": vo, "digest": digest, "slot": given[digest]} for digest in new])
        return {row.digest: row.queue_class_id for row in conn.execute(CLASSES, {"the_vo": vo})}
    return {digest: row.queue_class_id for digest, row in stored.items()}


def _read_members(conn: Connection, vo: str) -> dict[QueueAddress, int]:
    return {
        QueueAddress(site=row.site, ce=row.ce, queue=row.queue): row.queue_class_id
        for row in conn.execute(MEMBERS, {"the_vo": vo})
    }


def _write_members(
    conn: Connection, vo: str, stored: Mapping[QueueAddress, int], wanted: Mapping[QueueAddress, int]
) -> bool:
    new = [queue for queue, class_id in wanted.items() if stored.get(queue) != class_id]
    gone = [queue for queue, class_id in stored.items() if wanted.get(queue) != class_id]
    if gone:
        rows = [{"the_site": each.site, "the_ce": each.ce, "the_queue": each.queue} for each in gone]
        conn.execute(REMOVE_MEMBER, [{"the_vo": vo, **row} for row in rows])
    columns: dict[str, list[Any]] = {
        "site": [queue.site for queue in new],
        "ce": [queue.ce for queue in new],
        "queue": [queue.queue for queue in new],
        "queue_class_id": [wanted[queue] for queue in new],
    }
    ADD_MEMBERS.execute(conn, columns, vo=vo)
    return bool(new or gone)


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


def record_refresh(conn: Connection, vo: str, *, at: datetime) -> None:
    """Record that all mappings of the VO have its version, and when they were computed; the row is locked."""
    conn.execute(RECORD_REFRESH, {"the_vo": vo, "now": at})


def _state_from_row(row: Row[tuple[str, int, int, int, int, int, datetime | None]]) -> RefreshState:
    return RefreshState(
        version=(row.config_version, row.expiries),
        is_ours=row.algorithm == ALGORITHM,
        refreshed=(row.refreshed_version, row.refreshed_expiries),
        refreshed_at=row.refreshed_at,
    )
