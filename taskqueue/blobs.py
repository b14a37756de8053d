"""Blobs (archives of sandboxes and outputs): files by content digest, and each VO's rows for them.

A file is staged (written to a temporary name and fsynced), then renamed within the transaction that inserts
its row. A failure in between leaves at worst a file without a row.

Storing and removing a file both take an advisory lock on its digest until their transaction ends, so that a
file with a new row is not removed as unreferenced.
"""

import errno
import hashlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection, bindparam, func, select, text, update

from taskqueue.db import sql
from taskqueue.errors import BlobNotFound, QuotaExceeded, StorageFull, TooLarge
from taskqueue.schema.tables import blobs as table

#: Errors for a full disk, quota or process limit.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBlob:
    """An archive that was received completely and is durable, but not stored under its digest yet."""

    digest: str  #: SHA-256, lower-case hex
    size: int  #: bytes
    name: str  #: temporary file name


class BlobStore:
    """The bytes of archives, as files of a directory that is local or shared between the hosts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path / "incoming"
        self._aside.mkdir(parents=True, exist_ok=True)

    def stage(self, chunks: Iterable[bytes], *, limit: int) -> StagedBlob:
        """Receive an archive of at most `limit` bytes; TooLarge and StorageFull leave nothing behind."""
        aside = self._aside / secrets.token_hex(16)
        try:
            return self._write(aside, chunks, limit=limit)
        except OSError as error:
            aside.unlink(missing_ok=True)
            if error.errno in _FULL:
                raise StorageFull("no space left for archives") from error
            raise
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def store(self, staged: StagedBlob) -> None:
        """Store a staged archive durably; no effect if it exists."""
        place = self._locate(staged.digest)
        if not place.parent.is_dir():
            place.parent.mkdir(exist_ok=True)
            _fsync_directory(self._path)
        (self._aside / staged.name).replace(place)
        _fsync_directory(place.parent)

    def discard(self, staged: StagedBlob) -> None:
        """Delete a staged archive; no effect after `store`."""
        (self._aside / staged.name).unlink(missing_ok=True)

    def open(self, digest: str) -> BinaryIO:
        """Read an archive; BlobNotFound."""
        try:
            return self._locate(digest).open("rb")
        except FileNotFoundError as error:
            raise BlobNotFound(digest) from error

    def delete(self, digest: str) -> None:
        """Delete an archive, if it exists."""
        self._locate(digest).unlink(missing_ok=True)

    def digests(self, *, before: datetime) -> Iterator[str]:
        """Digests of all archives stored before that time."""
        for place in self._path.glob("??/*"):
            if _is_older(place, before):
                yield place.name

    def sweep(self, *, before: datetime) -> int:
        """Delete archives staged before that time and never stored; how many."""
        left = [aside for aside in self._aside.iterdir() if _is_older(aside, before)]
        for aside in left:
            aside.unlink(missing_ok=True)
        return len(left)

    def _write(self, aside: Path, chunks: Iterable[bytes], *, limit: int) -> StagedBlob:
        digest = hashlib.sha256()
        size = 0
        with aside.open("xb") as file:
            for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    raise TooLarge(f"the archive is larger than {limit:,} bytes, which is the limit")
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return StagedBlob(digest=digest.hexdigest(), size=size, name=aside.name)

    def _locate(self, digest: str) -> Path:
        # A digest comes from outside: only 64 hex digits may become part of a path.
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise BlobNotFound(digest)
        return self._path / digest[:2] / digest


def _is_older(path: Path, before: datetime) -> bool:
    try:
        return path.stat().st_mtime < before.timestamp()
    except FileNotFoundError:
        return False


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


REGISTER = sql.insert_or_update(table, "last_used_at")

#: Advisory locks of PostgreSQL, which end with the transaction; on SQLite the transaction is the lock.
LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

QUOTA_USED = select(func.coalesce(func.sum(table.c.size), 0)).where(table.c.vo == bindparam("vo"))

_IS_IT = (table.c.digest == bindparam("the_digest"), table.c.vo == bindparam("the_vo"))

SIZE = select(table.c.size).where(*_IS_IT)

TOUCH = update(table).where(*_IS_IT).values(last_used_at=bindparam("now"))

KNOWN = select(table.c.digest).where(table.c.digest == bindparam("the_digest")).limit(1)


def store_blob(
    conn: Connection, store: BlobStore, staged: StagedBlob, *, vo: str, quota: int | None, now: datetime
) -> str:
    """Store a staged archive and its row for the VO; its digest.

    In the transaction that also stores the reference to the archive. `quota` is in bytes; None: unlimited. If
    the VO would exceed it (QuotaExceeded), the caller discards the archive.
    """
    if quota is not None:
        _check_quota(conn, staged, vo=vo, quota=quota)
    _lock(conn, staged.digest)
    store.store(staged)
    conn.execute(
        REGISTER.to_statement(conn),
        {"digest": staged.digest, "vo": vo, "size": staged.size, "created_at": now, "last_used_at": now},
    )
    return staged.digest


def read_quota_used(conn: Connection, vo: str) -> int:
    """Bytes of all archives of a VO."""
    return int(conn.execute(QUOTA_USED, {"vo": vo}).scalar_one())


def read_size(conn: Connection, digest: str, *, vo: str) -> int:
    """Size in bytes of an archive of this VO; BlobNotFound if the VO has none with this digest."""
    found: int | None = conn.execute(SIZE, {"the_digest": digest, "the_vo": vo}).scalar_one_or_none()
    if found is None:
        raise BlobNotFound(digest)
    return found


def touch_blob(conn: Connection, digest: str, *, vo: str, now: datetime) -> bool:
    """Mark an archive as used by this transaction; whether the VO has it.

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
    if conn.execute(SIZE, {"the_digest": staged.digest, "the_vo": vo}).first() is not None:
        return
    used = read_quota_used(conn, vo)
    if used + staged.size > quota:
        raise QuotaExceeded(
            f"{vo} has archives of {used:,} bytes; {staged.size:,} more are over its quota of {quota:,}"
        )


def _lock(conn: Connection, name: str) -> None:
    if conn.dialect.name == "postgresql":
        conn.execute(LOCK, {"name": name})


KNOWN_AMONG = select(table.c.digest).where(table.c.digest.in_(sql.IDS))


def find_unreferenced(conn: Connection, digests: Collection[str]) -> frozenset[str]:
    """Digests, among a few hundred at most, that no VO has."""
    known = conn.execute(KNOWN_AMONG, {"ids": sorted(digests)}).scalars()
    return frozenset(digests) - frozenset(known)
