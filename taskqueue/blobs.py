"""Archives of sandboxes and outputs: each VO's rows for them, and when their bytes are stored and deleted.

An archive is staged, which takes as long as its sender does; then it is stored within the transaction that
inserts its row. A failure in between leaves at worst bytes without a row.

Storing and deleting the bytes both take an advisory lock on their digest until their transaction ends, so
that bytes with a new row are not deleted as unreferenced.
"""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, exists, func, select, text, update

from taskqueue.blob_stores.store import BlobStore, StagedBlob
from taskqueue.db import sql
from taskqueue.errors import BlobNotFound, QuotaExceeded
from taskqueue.schema.tables import attempts, jobs
from taskqueue.schema.tables import blobs as table

#: Part of the free space that outputs leave: work that was done comes before new sandboxes and jobs.
OUTPUTS_LEAVE = 0.5

REGISTER = sql.insert_or_update(table, "last_used_at", "is_output")
REGISTER_OUTPUT = sql.insert_or_update(table, "last_used_at")

#: Advisory locks of PostgreSQL, which end with the transaction; on SQLite the transaction is the lock.
LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

QUOTA_USED = select(func.coalesce(func.sum(table.c.size), 0)).where(
    table.c.vo == bindparam("vo"), ~table.c.is_output
)

#: Whose jobs have an archive that is no sandbox as their output.
OWNERS = (
    select(jobs.c.owner, jobs.c.owner_group)
    .distinct()
    .join_from(attempts, jobs, jobs.c.job_id == attempts.c.job_id)
    .where(attempts.c.output == bindparam("the_digest"), attempts.c.vo == bindparam("the_vo"))
)

_IS_IT = (table.c.digest == bindparam("the_digest"), table.c.vo == bindparam("the_vo"))

SIZE = select(table.c.size).where(*_IS_IT)

IS_SANDBOX = SIZE.where(~table.c.is_output)

TOUCH = update(table).where(*_IS_IT, ~table.c.is_output).values(last_used_at=bindparam("now"))

REMOVE_UNUSED_OUTPUT = delete(table).where(
    *_IS_IT,
    table.c.is_output,
    ~exists().where(attempts.c.output == bindparam("the_digest"), attempts.c.vo == bindparam("the_vo")),
)

KNOWN = select(table.c.digest).where(table.c.digest == bindparam("the_digest")).limit(1)


def store_blob(
    conn: Connection, store: BlobStore, staged: StagedBlob, *, vo: str, quota: int | None, now: datetime
) -> str:
    """Store a staged sandbox and its row for the VO; its digest.

    `quota` is in bytes; None: unlimited. If the VO would exceed it (QuotaExceeded), the caller discards the
    archive.
    """
    if quota is not None:
        _check_quota(conn, staged, vo=vo, quota=quota)
    _lock(conn, staged.digest)
    store.store(staged)
    conn.execute(REGISTER, _build_row(staged, vo, now, is_output=False))
    return staged.digest


def store_output(
    conn: Connection, store: BlobStore, staged: StagedBlob, *, vo: str, replaced: str | None, now: datetime
) -> str | None:
    """Store a staged output and its row, in the transaction that has stored its digest in the attempt.

    `replaced` is the digest that the attempt had before. Returned if its row was deleted because no other
    attempt has it; after the commit, `remove_file` deletes its file.
    """
    for digest in sorted({staged.digest, replaced} - {None}, key=str):
        _lock(conn, str(digest))
    store.store(staged)
    conn.execute(REGISTER_OUTPUT, _build_row(staged, vo, now, is_output=True))
    if (
        replaced is None
        or not conn.execute(REMOVE_UNUSED_OUTPUT, {"the_digest": replaced, "the_vo": vo}).rowcount
    ):
        return None
    return replaced


def _build_row(staged: StagedBlob, vo: str, now: datetime, *, is_output: bool) -> dict[str, object]:
    return {
        "digest": staged.digest,
        "vo": vo,
        "size": staged.size,
        "created_at": now,
        "last_used_at": now,
        "is_output": is_output,
    }


def read_quota_used(conn: Connection, vo: str) -> int:
    """Bytes of all sandboxes of a VO."""
    return int(conn.execute(QUOTA_USED, {"vo": vo}).scalar_one())


def read_size(conn: Connection, digest: str, *, vo: str) -> int:
    """Size in bytes of an archive of this VO; BlobNotFound if the VO has none with this digest."""
    found: int | None = conn.execute(SIZE, {"the_digest": digest, "the_vo": vo}).scalar_one_or_none()
    if found is None:
        raise BlobNotFound(digest)
    return found


def find_owners(conn: Connection, digest: str, *, vo: str) -> list[tuple[str, str]] | None:
    """Owners of jobs with this output, each with the group; None: it is a sandbox of the VO.

    Whoever of a VO knows the digest of a sandbox may submit a job with it, and so may read it.
    """
    named = {"the_digest": digest, "the_vo": vo}
    if conn.execute(IS_SANDBOX, named).first() is not None:
        return None
    return [(owner, group) for owner, group in conn.execute(OWNERS, named)]


def touch_blob(conn: Connection, digest: str, *, vo: str, now: datetime) -> bool:
    """Mark a sandbox as used by this transaction; whether the VO has sent it, not only as an output.

    Retention waits for the transaction and then keeps the archive.
    """
    return bool(conn.execute(TOUCH, {"the_digest": digest, "the_vo": vo, "now": now}).rowcount)


def remove_file(conn: Connection, store: BlobStore, digest: str) -> bool:
    """Delete the file of an archive that no VO has; several in one transaction in order of digests."""
    _lock(conn, digest)
    if conn.execute(KNOWN, {"the_digest": digest}).first() is not None:
        return False
    store.delete(digest)
    return True


def _check_quota(conn: Connection, staged: StagedBlob, *, vo: str, quota: int) -> None:
    _lock(conn, f"quota of {vo}")  # serialises: two archives may fit each alone but not both
    if conn.execute(IS_SANDBOX, {"the_digest": staged.digest, "the_vo": vo}).first() is not None:
        return
    used = read_quota_used(conn, vo)
    if used + staged.size > quota:
        raise QuotaExceeded(
            f"{vo} has archives of {used:,} bytes; {staged.size:,} more are over its quota of {quota:,}"
        )


def _lock(conn: Connection, name: str) -> None:
    if conn.dialect.name == "postgresql":
        conn.execute(LOCK, {"name": name})


KNOWN_AMONG = select(table.c.digest).where(sql.is_listed(table.c.digest))


def find_unreferenced(conn: Connection, digests: Collection[str]) -> frozenset[str]:
    """Digests, among a few hundred at most, that no VO has."""
    known = conn.execute(KNOWN_AMONG, {"ids": sorted(digests)}).scalars()
    return frozenset(digests) - frozenset(known)
