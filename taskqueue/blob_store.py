"""Where the bytes of sandboxes and outputs lie, by the digest of their content.

An archive is written aside and fsynced (`stage`), then renamed into its place (`keep`) within the
transaction that makes it known (`blobs.keep`). Whatever breaks in between leaves at worst a file that
nobody knows.
"""

import errno
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from taskqueue.errors import BlobNotFound, StorageFull, TooLarge

#: What "there is no room" looks like: disk, quota, the process's own limit.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """An archive that was received whole and is safe on disk, but is not in its place yet."""

    digest: str  #: SHA-256, lower-case hex
    size: int  #: bytes
    name: str  #: where it lies aside


class BlobStore(Protocol):
    """The bytes of archives; hosts that share an installation share the store."""

    def stage(self, chunks: Iterable[bytes], *, limit: int) -> Staged:
        """Receive an archive of at most `limit` bytes; TooLarge and StorageFull leave nothing behind."""

    def keep(self, staged: Staged) -> None:
        """Put it in its place, durably; that it is there already does no harm."""

    def discard(self, staged: Staged) -> None:
        """Forget it; also after `keep`, when there is nothing left to forget."""

    def open(self, digest: str) -> BinaryIO:
        """Read an archive; BlobNotFound."""

    def delete(self, digest: str) -> None:
        """Remove an archive, which may be gone already."""

    def digests(self, *, before: datetime) -> Iterator[str]:
        """All archives that were put in their place before that time."""

    def sweep(self, *, before: datetime) -> int:
        """Remove what was staged before that time and never kept; how many."""


class DirectoryStore:
    """Archives as files of a directory, local or shared by the hosts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path / "incoming"
        self._aside.mkdir(parents=True, exist_ok=True)

    def stage(self, chunks: Iterable[bytes], *, limit: int) -> Staged:
        """Receive an archive of at most `limit` bytes.

        Raises:
            TooLarge: It is larger.
            StorageFull: The disk is full.
        """
        aside = self._aside / secrets.token_hex(16)
        try:
            return self._write(aside, chunks, limit=limit)
        except OSError as error:
            aside.unlink(missing_ok=True)
            if error.errno in _FULL:
                raise StorageFull("there is no room left for archives") from error
            raise
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def keep(self, staged: Staged) -> None:
        """Put it in its place, durably."""
        place = self._place(staged.digest)
        if not place.parent.is_dir():
            place.parent.mkdir(exist_ok=True)
            _fsync_directory(self._path)
        (self._aside / staged.name).replace(place)
        _fsync_directory(place.parent)

    def discard(self, staged: Staged) -> None:
        """Forget it; after `keep` there is nothing to forget."""
        (self._aside / staged.name).unlink(missing_ok=True)

    def open(self, digest: str) -> BinaryIO:
        """Read an archive.

        Raises:
            BlobNotFound: It is not here.
        """
        try:
            return self._place(digest).open("rb")
        except FileNotFoundError as error:
            raise BlobNotFound(digest) from error

    def delete(self, digest: str) -> None:
        """Remove an archive, which may be gone already."""
        self._place(digest).unlink(missing_ok=True)

    def digests(self, *, before: datetime) -> Iterator[str]:
        """All archives that were put in their place before that time."""
        for place in self._path.glob("??/*"):
            if _is_older(place, before):
                yield place.name

    def sweep(self, *, before: datetime) -> int:
        """Remove what was staged before that time and never kept: its process died."""
        left = [aside for aside in self._aside.iterdir() if _is_older(aside, before)]
        for aside in left:
            aside.unlink(missing_ok=True)
        return len(left)

    def _write(self, aside: Path, chunks: Iterable[bytes], *, limit: int) -> Staged:
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
        return Staged(digest=digest.hexdigest(), size=size, name=aside.name)

    def _place(self, digest: str) -> Path:
        # A digest comes from outside: nothing but its 64 letters may become part of a path.
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
