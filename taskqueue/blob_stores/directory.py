"""Archives as files of a directory, local or shared.

A file is written to a temporary name and fsynced, then renamed.
"""

import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from taskqueue.blob_stores.store import BlobStore, MeasuredChunks, StagedBlob, check_digest, is_digest
from taskqueue.errors import BlobNotFound, StorageAway, StorageFull

#: Errors for a full disk, quota or process limit.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Space that stays free for reports and the database: this share of the file system, and at most these bytes.
_FREE_SHARE = 0.05
_FREE_BYTES = 10 << 30
#: Bytes of an archive between two looks at the free space.
_LOOK_EVERY = 64 << 20


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


class DirectoryStore(BlobStore):
    """Files of a directory that is local or shared between the hosts."""

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
                if is_digest(place.name) and _is_older(place, before):
                    yield place.name

    @_translate_errors()
    def sweep(self, *, before: datetime) -> int:
        """Delete archives staged before that time and never stored; how many."""
        left = [aside for aside in self._aside.iterdir() if _is_older(aside, before)]
        for aside in left:
            aside.unlink(missing_ok=True)
        return len(left)

    def _write(self, aside: Path, chunks: Iterable[bytes], *, limit: int, leave: float) -> StagedBlob:
        looked_at = 0
        self.check_space(part=leave)
        measured = MeasuredChunks(chunks, limit=limit)
        with _translate_errors():
            file = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            for chunk in measured:  # its errors are the sender's
                if measured.size - looked_at > _LOOK_EVERY:
                    self.check_space(part=leave)
                    looked_at = measured.size
                _write_all(file, chunk)
            with _translate_errors():
                os.fsync(file)
        finally:
            os.close(file)
        return StagedBlob(digest=measured.digest, size=measured.size, name=aside.name)

    def _locate(self, digest: str) -> Path:
        return self._path / check_digest(digest)[:2] / digest


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
