"""Which archives a VO has: one row for each that it brought, its quota, and their removal.

Putting an archive in its place and removing one both hold its lock until their transaction ends, so
that a file which was just made known is not removed as unknown.
"""

from datetime import datetime

from sqlalchemy import Connection, bindparam, func, select, text, update
from sqlalchemy.sql.dml import Insert

from taskqueue.blob_store import BlobStore, Staged
from taskqueue.errors import BlobNotFound, QuotaExceeded
from taskqueue.tables import blobs as table
from taskqueue.upserts import Twins, Upsert


def _remember(insert: Upsert) -> Insert:
    return insert.on_conflict_do_update(
        index_elements=["digest", "vo"], set_={"last_used_at": insert.excluded.last_used_at}
    )


REMEMBER = Twins(table, _remember)

#: Advisory locks of PostgreSQL, which end with the transaction; on SQLite the transaction is the lock.
LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

USED = select(func.coalesce(func.sum(table.c.size), 0)).where(table.c.vo == bindparam("vo"))

_IS_IT = (table.c.digest == bindparam("the_digest"), table.c.vo == bindparam("the_vo"))

SIZE = select(table.c.size).where(*_IS_IT)

TOUCH = update(table).where(*_IS_IT).values(last_used_at=bindparam("now"))

KNOWN = select(table.c.digest).where(table.c.digest == bindparam("the_digest")).limit(1)


def keep(
    conn: Connection, store: BlobStore, staged: Staged, *, vo: str, quota: int | None, now: datetime
) -> str:
    """Put a staged archive in its place and make it known to its VO; its digest.

    Args:
        conn: In the writing transaction that also stores what the archive is for.
        store: Where it was staged.
        staged: The archive.
        vo: Who brought it.
        quota: Bytes that the VO may have in all; None: any.
        now: The time.

    Raises:
        QuotaExceeded: The VO would have more than its quota. The caller discards the archive.
    """
    if quota is not None:
        _check_quota(conn, staged, vo=vo, quota=quota)
    _lock(conn, staged.digest)
    store.keep(staged)
    conn.execute(
        REMEMBER.of(conn),
        {"digest": staged.digest, "vo": vo, "size": staged.size, "created_at": now, "last_used_at": now},
    )
    return staged.digest


def quota_used(conn: Connection, vo: str) -> int:
    """Bytes of all archives of a VO."""
    return int(conn.execute(USED, {"vo": vo}).scalar_one())


def size(conn: Connection, digest: str, *, vo: str) -> int:
    """Bytes of an archive of this VO.

    Raises:
        BlobNotFound: The VO did not bring it, or it was removed.
    """
    found: int | None = conn.execute(SIZE, {"the_digest": digest, "the_vo": vo}).scalar_one_or_none()
    if found is None:
        raise BlobNotFound(digest)
    return found


def touch(conn: Connection, digest: str, *, vo: str, now: datetime) -> bool:
    """Say that what is stored in this transaction needs an archive; whether the VO has it.

    Retention, which removes what nobody needs, waits for the transaction and then leaves the archive.
    """
    return bool(conn.execute(TOUCH, {"the_digest": digest, "the_vo": vo, "now": now}).rowcount)


def remove_file(conn: Connection, store: BlobStore, digest: str) -> bool:
    """Remove the bytes of an archive that no VO knows any more; of several in one transaction in order."""
    _lock(conn, digest)
    if conn.execute(KNOWN, {"the_digest": digest}).first() is not None:
        return False
    store.delete(digest)
    return True


def _check_quota(conn: Connection, staged: Staged, *, vo: str, quota: int) -> None:
    _lock(conn, f"quota of {vo}")  # of two that each fit alone, the second sees the first
    if conn.execute(SIZE, {"the_digest": staged.digest, "the_vo": vo}).first() is not None:
        return
    used = quota_used(conn, vo)
    if used + staged.size > quota:
        raise QuotaExceeded(
            f"{vo} has archives of {used:,} bytes; {staged.size:,} more are over its quota of {quota:,}"
        )


def _lock(conn: Connection, name: str) -> None:
    if conn.dialect.name == "postgresql":
        conn.execute(LOCK, {"name": name})
