"""The queue classes of each VO as they are stored, and which queues are members of them.

They are those of one configuration version a VO, after so many of its expiries: a version of which more has
expired is a newer one. Who writes something that was computed from them holds that until the transaction
ends (`hold`), so that nothing old is written after something newer has landed. Lock order: pools by id,
then the versions of VOs by name.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, exists, or_, select
from sqlalchemy.sql.dml import Insert

from cs_config.configuration import QueueAddress
from cs_config.queue_classes import QueueClass
from taskqueue import changes
from taskqueue.tables import pool_queue_classes as mapped
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import queue_class_versions as versions
from taskqueue.tables import queue_classes as table
from taskqueue.upserts import Twins, Upsert

_VO: BindParameter[str] = bindparam("the_vo")


def _advance(insert: Upsert) -> Insert:
    new = insert.excluded
    newer = or_(
        versions.c.config_version < new.config_version,
        and_(versions.c.config_version == new.config_version, versions.c.expiries <= new.expiries),
    )
    return insert.on_conflict_do_update(
        index_elements=["vo"],
        set_={"config_version": new.config_version, "expiries": new.expiries},
        where=newer,
    ).returning(versions.c.vo)


def _add_class(insert: Upsert) -> Insert:
    return insert.on_conflict_do_nothing(index_elements=["vo", "digest"])


def _put_member(insert: Upsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=["vo", "site", "ce", "queue"],
        set_={"queue_class_id": insert.excluded.queue_class_id},
    )


#: Takes the VO's version row for this transaction alone; no row comes back when a newer version is there.
ADVANCE = Twins(versions, _advance)
ADD_CLASS = Twins(table, _add_class)
PUT_MEMBER = Twins(members, _put_member)

VERSION = select(versions.c.config_version, versions.c.expiries).where(versions.c.vo == _VO)
#: FOR SHARE: a newer version waits until what was computed from this one is written.
HOLD_VERSION = VERSION.with_for_update(read=True)

CLASSES = select(table.c.digest, table.c.queue_class_id).where(table.c.vo == _VO)

MEMBERS = select(members.c.site, members.c.ce, members.c.queue, members.c.queue_class_id).where(
    members.c.vo == _VO
)

_IS_QUEUE = and_(
    members.c.vo == _VO,
    members.c.site == bindparam("the_site"),
    members.c.ce == bindparam("the_ce"),
    members.c.queue == bindparam("the_queue"),
)

CLASS_OF = select(members.c.queue_class_id).where(_IS_QUEUE)

REMOVE_MEMBER = delete(members).where(_IS_QUEUE)

#: Empty, and no pool is mapped to it any more.
PRUNE_CLASSES = delete(table).where(
    table.c.vo == _VO,
    ~exists().where(members.c.queue_class_id == table.c.queue_class_id),
    ~exists().where(mapped.c.queue_class_id == table.c.queue_class_id),
)


def version(conn: Connection, vo: str) -> int | None:
    """The configuration version that the VO's queue classes are of; None: there are none yet."""
    found: int | None = conn.execute(VERSION, {"the_vo": vo}).scalar_one_or_none()
    return found


def hold(conn: Connection, vo: str) -> tuple[int, int] | None:
    """That version and how many of its expiries have passed, which stay so until the transaction ends."""
    row = conn.execute(HOLD_VERSION, {"the_vo": vo}).one_or_none()
    return None if row is None else (row.config_version, row.expiries)


def ids(conn: Connection, vo: str) -> dict[str, int]:
    """The id of each queue class of the VO by its digest."""
    return {row.digest: row.queue_class_id for row in conn.execute(CLASSES, {"the_vo": vo})}


def class_of(conn: Connection, vo: str, queue: QueueAddress) -> int | None:
    """The queue class of a queue for a VO; None: the VO may not use it, or it does not exist."""
    found: int | None = conn.execute(CLASS_OF, _named(vo, queue)).scalar_one_or_none()
    return found


def sync(
    conn: Connection,
    *,
    vo: str,
    config_version: int,
    expiries: int = 0,
    classes: Sequence[QueueClass],
    now: datetime,
) -> bool:
    """Make the stored queue classes of a VO those of a configuration version; only differences are written.

    Args:
        conn: In a writing transaction; pools that it needs are touched or locked already.
        vo: Lower case.
        config_version: Where the classes come from.
        expiries: How many of its moments of expiry have passed.
        classes: All of the VO.
        now: The time.

    Returns:
        Whether they are now of this version; False: a newer one is there already, and stays.
    """
    stored = conn.execute(VERSION, {"the_vo": vo}).one_or_none()
    if stored is not None and tuple(stored) == (config_version, expiries):
        return True
    row = {"vo": vo, "config_version": config_version, "expiries": expiries}
    if conn.execute(ADVANCE.of(conn), row).first() is None:
        return False
    class_ids = _add(conn, vo, classes)
    wanted = {queue: class_ids[each.digest] for each in classes for queue in each.queues}
    if _write_members(conn, vo, wanted):
        changes.append(conn, "mapping", [vo], now=now)
    conn.execute(PRUNE_CLASSES, {"the_vo": vo})
    return True


def _add(conn: Connection, vo: str, classes: Sequence[QueueClass]) -> dict[str, int]:
    rows = [{"vo": vo, "digest": digest} for digest in sorted({each.digest for each in classes})]
    if rows:
        conn.execute(ADD_CLASS.of(conn), rows)
    return ids(conn, vo)


def _write_members(conn: Connection, vo: str, wanted: Mapping[QueueAddress, int]) -> bool:
    stored = {
        QueueAddress(site=row.site, ce=row.ce, queue=row.queue): row.queue_class_id
        for row in conn.execute(MEMBERS, {"the_vo": vo})
    }
    put = [
        {"vo": vo, "site": queue.site, "ce": queue.ce, "queue": queue.queue, "queue_class_id": class_id}
        for queue, class_id in sorted(wanted.items())
        if stored.get(queue) != class_id
    ]
    gone = [_named(vo, queue) for queue in sorted(stored.keys() - wanted.keys())]
    if gone:
        conn.execute(REMOVE_MEMBER, gone)
    if put:
        conn.execute(PUT_MEMBER.of(conn), put)
    return bool(put or gone)


def _named(vo: str, queue: QueueAddress) -> dict[str, object]:
    return {"the_vo": vo, "the_site": queue.site, "the_ce": queue.ce, "the_queue": queue.queue}
