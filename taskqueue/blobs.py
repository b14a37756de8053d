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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection, bindparam, delete, exists, func, select, text, update

from taskqueue.db import sql
from taskqueue.errors import BlobNotFound, QuotaExceeded, StorageAway, StorageFull, TooLarge
from taskqueue.schema.tables import attempts
from taskqueue.schema.tables import blobs as table

#: Errors for a full disk, quota or process limit.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Space that stays free for reports and the database: this share of the file system, and at most these bytes.
_FREE_SHARE = 0.05
_FREE_BYTES = 10 << 30
#: Part of this space that outputs leave free: work that was done comes before new sandboxes and jobs.
OUTPUTS_LEAVE = 0.5
#: Bytes of an archive between two looks at the free space.
_LOOK_EVERY = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBlob:
    """An archive that was received completely and is durable, but not stored under its digest yet."""

    digest: str  #: SHA-256, lower-case hex
    size: int  #: bytes
    name: str  #: temporary file name


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Errors of the file system as StorageFull and StorageAway."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull("no space left for archives") from error
        raise StorageAway(f"archives cannot be stored or read now: {error.strerror or error}") from error


@_translate_errors()
def check_space(path: Path, *, part: float = 1.0) -> None:
    """Raise StorageFull if a directory has only `part` of the space left that is kept free, StorageAway."""
    system = os.statvfs(path)
    least = min(system.f_blocks * system.f_frsize * _FREE_SHARE, _FREE_BYTES)
    if system.f_bavail * system.f_frsize < part * least:
        raise StorageFull("no space left for archives and jobs; running jobs go on")


class BlobStore:
    """The bytes of archives, as files of a directory that is local or shared between the hosts.

    StorageAway while the file system cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path / "incoming"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._aside.mkdir(mode=0o700, exist_ok=True)

    def check_space(self, *, part: float = 1.0) -> None:
        """Raise StorageFull if only `part` of the space is left that is kept free."""
        check_space(self._path, part=part)

    def stage(self, chunks: Iterable[bytes], *, limit: int, leave: float = 1.0) -> StagedBlob:
        """Receive an archive of at most `limit` bytes; after TooLarge and StorageFull nothing is left.

        `leave` is the part of the space kept free that it may not use.
        """
        aside = self._aside / secrets.token_hex(16)
        try:
            return self._write(aside, chunks, limit=limit, leave=leave)
        except BaseException:
            _unlink_later(aside)
            raise

    @_translate_errors()
    def store(self, staged: StagedBlob) -> None:
        """Store a staged archive durably; it may be repeated after a transaction that was rolled back."""
        place = self._locate(staged.digest)
        if not place.parent.is_dir():
            place.parent.mkdir(mode=0o700, exist_ok=True)
            _fsync_directory(self._path)
        try:
            (self._aside / staged.name).replace(place)
        except FileNotFoundError:
            if not place.exists():
                raise
        _fsync_directory(place.parent)

    def discard(self, staged: StagedBlob) -> None:
        """Delete a staged archive, now or by `sweep`; no effect after `store`."""
        _unlink_later(self._aside / staged.name)

    @_translate_errors()
    def open(self, digest: str) -> BinaryIO:
        """Read an archive; BlobNotFound."""
        try:
            return self._locate(digest).open("rb")
        except FileNotFoundError as error:
            raise BlobNotFound(digest) from error

    @_translate_errors()
    def delete(self, digest: str) -> None:
        """Delete an archive, if it exists."""
        self._locate(digest).unlink(missing_ok=True)

    def digests(self, *, before: datetime) -> Iterator[str]:
        """Digests of all archives stored before that time."""
        with _translate_errors():
            for place in self._path.glob("??/*"):
                if _is_older(place, before):
                    yield place.name

    @_translate_errors()
    def sweep(self, *, before: datetime) -> int:
        """Delete archives staged before that time and never stored; how many."""
        left = [aside for aside in self._aside.iterdir() if _is_older(aside, before)]
        for aside in left:
            aside.unlink(missing_ok=True)
        return len(left)

    def _write(self, aside: Path, chunks: Iterable[bytes], *, limit: int, leave: float) -> StagedBlob:
        digest = hashlib.sha256()
        size = looked_at = 0
        self.check_space(part=leave)
        with _translate_errors():
            file = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            for chunk in chunks:  # its errors are the sender's
                size += len(chunk)
                if size - looked_at > _LOOK_EVERY:
                    self.check_space(part=leave)
                    looked_at = size
                if size > limit:
                    raise TooLarge(f"the archive is larger than {limit:,} bytes, which is the limit")
                digest.update(chunk)
                _write_all(file, chunk)
            with _translate_errors():
                os.fsync(file)
        finally:
            os.close(file)
        return StagedBlob(digest=digest.hexdigest(), size=size, name=aside.name)

    def _locate(self, digest: str) -> Path:
        # A digest comes from outside: only 64 hex digits may become part of a path.
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise BlobNotFound(digest)
        return self._path / digest[:2] / digest


@_translate_errors()
def _write_all(file: int, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:
        left = left[os.write(file, left) :]


def _unlink_later(path: Path) -> None:
    """Delete a staged archive; `sweep` does if the file system does not let us."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


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


REGISTER = sql.insert_or_update(table, "last_used_at", "is_output")
REGISTER_OUTPUT = sql.insert_or_update(table, "last_used_at")

#: Advisory locks of PostgreSQL, which end with the transaction; on SQLite the transaction is the lock.
LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

QUOTA_USED = select(func.coalesce(func.sum(table.c.size), 0)).where(
    table.c.vo == bindparam("vo"), ~table.c.is_output
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
