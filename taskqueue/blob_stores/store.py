"""What a store of archives promises, whatever keeps its bytes."""

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import BinaryIO, Protocol

from taskqueue.errors import BlobNotFound, StorageAway, TooLarge

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBlob:
    """An archive that was received completely and is durable, but not stored under its digest yet."""

    digest: str  #: SHA-256, lower-case hex
    size: int  #: bytes
    name: str = ""  #: temporary name, in a store that has one


class BlobStore(Protocol):
    """The bytes of archives by digest, for all hosts of an installation.

    Each method raises StorageAway while the store cannot be used.
    """

    def check_space(self, *, part: float = 1.0) -> None:
        """Raise StorageFull if only `part` of the space is left that is kept free."""

    def stage(self, chunks: Iterable[bytes], *, limit: int, leave: float = 1.0) -> StagedBlob:
        """Receive an archive of at most `limit` bytes; after TooLarge and StorageFull nothing is left.

        `leave` is the part of the space kept free that it may not use.
        """

    def store(self, staged: StagedBlob) -> None:
        """Store a staged archive durably, under the lock of its digest; it may be repeated."""

    def discard(self, staged: StagedBlob) -> None:
        """Delete what only staging has left, now or by `sweep`; no effect after `store`."""

    def open(self, digest: str) -> BinaryIO:
        """Read an archive; BlobNotFound."""

    def delete(self, digest: str) -> None:
        """Delete an archive, if it exists, under the lock of its digest."""

    def digests(self, *, before: datetime) -> Iterator[str]:
        """Digests of all archives stored before that time."""

    def sweep(self, *, before: datetime) -> int:
        """Delete what was staged before that time and never stored; how many archives."""


class MeasuredChunks:
    """Chunks of an archive, measured as they pass; TooLarge beyond `limit` bytes."""

    def __init__(self, chunks: Iterable[bytes], *, limit: int) -> None:
        self._chunks, self._limit = chunks, limit
        self._digest = hashlib.sha256()
        self.size = 0  #: bytes that have passed

    @property
    def digest(self) -> str:
        """The digest of what has passed."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.size += len(chunk)
            if self.size > self._limit:
                raise TooLarge(f"the archive is larger than {self._limit:,} bytes, which is the limit")
            self._digest.update(chunk)
            yield chunk


def is_digest(name: str) -> bool:
    """Whether it is one: others may put files and objects beside archives, which are left alone."""
    return _DIGEST.fullmatch(name) is not None


def check_digest(digest: str) -> str:
    """The digest; BlobNotFound for other text: it comes from outside, and becomes part of a name."""
    if not is_digest(digest):
        raise BlobNotFound(digest)
    return digest


def probe(store: BlobStore) -> None:
    """Put, list, read and delete an archive, as the service and retention do; StorageAway."""
    content = secrets.token_bytes(32)
    staged = store.stage([content], limit=len(content))
    try:
        store.store(staged)
        next(store.digests(before=datetime.now(UTC) + timedelta(days=1)), None)
        with store.open(staged.digest) as file:
            if file.read() != content:
                raise StorageAway("archives come back with other bytes")
    finally:
        store.delete(staged.digest)
