"""Two stores while archives move from one to the other, with all processes at work."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import BinaryIO

from taskqueue.blob_stores.store import BlobStore, StagedBlob
from taskqueue.errors import BlobNotFound

#: Bytes that are copied at a time.
_PIECE = 1 << 20


class MovingStore(BlobStore):
    """A store that is written, and another that is read for what the first lacks."""

    def __init__(self, written: BlobStore, other: BlobStore) -> None:
        self._written, self._other = written, other

    def check_space(self, *, part: float = 1.0) -> None:
        """Of the store that is written."""
        self._written.check_space(part=part)

    def stage(self, chunks: Iterable[bytes], *, limit: int, leave: float = 1.0) -> StagedBlob:
        """To the store that is written."""
        return self._written.stage(chunks, limit=limit, leave=leave)

    def store(self, staged: StagedBlob) -> None:
        """In the store that is written."""
        self._written.store(staged)

    def discard(self, staged: StagedBlob) -> None:
        """In the store that is written."""
        self._written.discard(staged)

    def open(self, digest: str) -> BinaryIO:
        """From either store; BlobNotFound."""
        try:
            return self._written.open(digest)
        except BlobNotFound:
            return self._other.open(digest)

    def delete(self, digest: str) -> None:
        """From both stores."""
        self._other.delete(digest)
        self._written.delete(digest)

    def digests(self, *, before: datetime) -> Iterator[str]:
        """Of both stores; a digest may come twice."""
        yield from self._written.digests(before=before)
        yield from self._other.digests(before=before)

    def sweep(self, *, before: datetime) -> int:
        """In both stores."""
        return self._written.sweep(before=before) + self._other.sweep(before=before)


@dataclass(slots=True)
class CopyResult:
    """What a copy of all archives did."""

    copied: int = 0
    present: int = 0  #: were there before
    gone: int = 0  #: were deleted meanwhile
    corrupt: int = 0  #: have another digest than their name says, and were not copied
    bytes: int = 0


def copy_all(source: BlobStore, target: BlobStore, *, before: datetime) -> Iterator[CopyResult]:
    """Copy the archives that the target lacks, with what was done after each; may be repeated at any time."""
    done = CopyResult()
    for digest in source.digests(before=before):
        try:
            if _has(target, digest):
                done.present += 1
            else:
                _copy(source, target, digest, done)
        except BlobNotFound:
            done.gone += 1
        yield done


def _has(store: BlobStore, digest: str) -> bool:
    try:
        store.open(digest).close()
    except BlobNotFound:
        return False
    return True


def _copy(source: BlobStore, target: BlobStore, digest: str, done: CopyResult) -> None:
    with source.open(digest) as file:
        size = file.seek(0, 2)
        file.seek(0)
        staged = target.stage(iter(partial(file.read, _PIECE), b""), limit=size)
    if staged.digest != digest:
        target.discard(staged)  # where it is stored already, retention finds it without a row
        done.corrupt += 1
        return
    target.store(staged)
    done.copied += 1
    done.bytes += staged.size
