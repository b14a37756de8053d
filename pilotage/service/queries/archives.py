"""Archives: streamed in and out in pieces, and listed without unpacking.

An archive may be hostile: a few kilobytes may unpack to gigabytes of contents or headers, and names may be
anything. So it is read once, in order, up to a number of unpacked bytes.
"""

import asyncio
import gzip
import io
import logging
import tarfile
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import anyio.from_thread
import anyio.to_thread
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from cs_config.cache import Cache
from cs_config.options import bounds
from pilotage.service import lease_reports
from pilotage.service.auth import rate_limits
from pilotage.service.auth.rate_limits import Limiter, Patience
from pilotage.service.http_errors import BodyTooLarge, SenderSilent
from pilotage.service.routing import refuse_by_length
from pilotage.service.services import Services
from pilotage.tar_headers import CheckedTarInfo
from requirements.errors import InvalidRequest, PilotageError, Problem
from taskqueue import blobs
from taskqueue.blob_stores.store import BlobStore, StagedBlob
from taskqueue.db import database
from taskqueue.errors import BlobNotFound, StorageAway, TooLarge
from taskqueue.leases import lifecycle
from taskqueue.leases.reports import OutputReport

_log = logging.getLogger(__name__)

#: Seconds for the next upload of a subject that has used up its patience; and how many subjects are kept.
_LEAST_PATIENCE = 5.0
_REMEMBERED = 10_000
#: Unpacked bytes that are read.
MOST_BYTES = 32 << 20
#: Entries that are read.
MOST_MEMBERS = 1000
#: Bytes shown of a file, and number of files that are shown.
HEAD = 8 << 10
MOST_HEADS = 20
#: Characters of a name.
_NAME = 500
_GZIP = b"\x1f\x8b"
#: Errors of `tarfile` and the decompressor on bad input.
_BAD = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError)
#: Error handler for names that are not UTF-8.
_DECODE_ERRORS = "replace"


class Uploads:
    """Concurrent uploads of one kind, a few of each subject, with shares of VOs and sites; of one event loop.

    Each has a thread, apart from those of the other requests, so that slow senders do not delay them.
    """

    def __init__(self, store: BlobStore, *, leave: float = 1.0) -> None:
        """`leave` is the part of the space kept free that they may not use."""
        self._store = store
        self._leave = leave
        self._threads = anyio.CapacityLimiter(rate_limits.UPLOADS.of_all)
        self._of_callers = Limiter(rate_limits.UPLOADS_OF_CALLER)
        self._places = Limiter(rate_limits.UPLOADS)
        #: Of subjects whose last upload was ended: the patience that was left, and when.
        self._left: Cache[str, tuple[float, float]] = Cache(_REMEMBERED)

    async def receive(
        self, request: Request, subject: str, *, vo: str, site: str | None = None, limit: int
    ) -> StagedBlob:
        """Write the body, of at most `limit` bytes, to a staged blob; the caller stores or discards it.

        It may have to wait for a place of its VO, and of its site if it comes from one: a director makes as
        many pilots as it wants.

        Raises:
            BodyTooLarge: It is longer.
            SenderSilent: It came too slowly.
            StorageFull: There is no space for it.
            TooManyRequests: Too many uploads of the subject wait.
        """
        refuse_by_length(request, limit)
        async with self._of_callers.place(vo, subject), self._places.place(vo, site or subject):
            patience = self._patience_with(subject)
            chunks = _chunks(request.stream(), patience)
            stage = partial(self._store.stage, chunks, limit=limit, leave=self._leave)
            try:
                staged = await anyio.to_thread.run_sync(stage, limiter=self._threads)
            except TooLarge:
                raise BodyTooLarge(limit) from None
            except (SenderSilent, ClientDisconnect):
                self._left.store(subject, (patience.seconds, time.monotonic()))
                raise
            self._left.remove(subject)
            return staged

    def _patience_with(self, subject: str) -> Patience:
        """Less with one whose uploads begin anew again and again; a second more for each that passes."""
        left, at = self._left.find(subject) or (bounds.SENDER_PATIENCE, 0.0)
        return Patience(bounds.SENDER_PATIENCE, max(_LEAST_PATIENCE, left + time.monotonic() - at))


def store_input(parts: Services, staged: StagedBlob, vo: str, quota: int) -> None:
    """Store an input sandbox of a VO within its quota, and remove the staged file."""

    @database.retry_on_conflict
    def record() -> None:
        with database.writing(parts.engine) as conn:
            blobs.store_blob(conn, parts.blobs, staged, vo=vo, quota=quota, now=parts.clock())

    with _discard_at_end(parts, staged):
        if not staged.size:
            raise InvalidRequest([Problem(path="body", message="is empty, it should be a tar archive")])
        record()


def store_output(parts: Services, report: OutputReport, staged: StagedBlob) -> None:
    """Store the output of an attempt, remove the staged file, and what the output replaces."""

    @database.retry_on_conflict
    def record() -> str | None:
        rules, now = lease_reports.build_rules(parts.live.current), parts.clock()
        with database.writing(parts.engine) as conn:
            [outcome] = lifecycle.record(conn, [report], rules=rules, now=now)
            if isinstance(outcome, PilotageError):
                raise outcome
            replaced = outcome.replaced_output
            return blobs.store_output(conn, parts.blobs, staged, vo=outcome.vo, replaced=replaced, now=now)

    with _discard_at_end(parts, staged):
        if (dropped := record()) is not None:
            _remove_file(parts, dropped)


@contextmanager
def _discard_at_end(parts: Services, staged: StagedBlob) -> Iterator[None]:
    """Delete what staging left, and the archive as well if it was refused."""
    try:
        yield
    except StorageAway:
        raise
    except PilotageError:
        with suppress(StorageAway):  # then retention does
            _remove_file(parts, staged.digest)
        raise
    finally:
        parts.blobs.discard(staged)


def _remove_file(parts: Services, digest: str) -> None:
    with database.writing(parts.engine) as conn:
        blobs.remove_file(conn, parts.blobs, digest)


def answer(parts: Services, digest: str | None, *, vo: str, name: str) -> StreamingResponse:
    """Stream an archive of a VO; `BlobNotFound` without a digest.

    Its file is closed at the end or when the client disconnects. No connection to the database is kept while
    the store is asked, which may be far away.
    """
    if digest is None:
        raise BlobNotFound(name)
    with database.reading(parts.engine) as conn:
        size = blobs.read_size(conn, digest, vo=vo)
    file = parts.blobs.open(digest)
    headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{name}"'}
    return _ArchiveStream(file, media_type="application/x-tar", headers=headers)


class _ArchiveStream(StreamingResponse):
    """The content of a file, which is closed at the end, however that comes.

    The framework leaves the iterator of a client that has gone to the garbage collector, and its file open.
    """

    def __init__(self, file: BinaryIO, *, media_type: str, headers: Mapping[str, str]) -> None:
        pieces = iter(partial(file.read, bounds.ANSWER_PIECE), b"")
        super().__init__(pieces, media_type=media_type, headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except StorageAway as error:  # the answer has begun: the server cuts it off, and clients see that
            _log.warning("a download was cut off: %s", error)
        finally:
            self._file.close()


def _chunks(body: AsyncIterator[bytes], patience: Patience) -> Iterator[bytes]:
    """Pass chunks from the event loop to the writing thread."""
    while (chunk := anyio.from_thread.run(_next, body, patience)) is not None:
        yield chunk


async def _next(body: AsyncIterator[bytes], patience: Patience) -> bytes | None:
    # Only the wait for the sender counts, not our own writing.
    begun = time.monotonic()
    try:
        async with asyncio.timeout(patience.seconds):
            chunk = await anext(body, None)
    except TimeoutError:
        patience.seconds = 0.0
        raise SenderSilent(f"fewer than {bounds.SLOWEST} bytes a second came for too long") from None
    patience.note(size=len(chunk or b""), waited=time.monotonic() - begun)
    return chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveMember:
    """A file of an archive."""

    name: str
    size: int  #: bytes
    head: str | None  #: beginning of its text; None: not text, or not read

    @property
    def is_whole(self) -> bool:
        """Whether the head is the whole file."""
        return self.head is not None and self.size <= HEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveListing:
    """The files of an archive."""

    members: Sequence[ArchiveMember]
    trouble: str | None  #: why the listing may be incomplete; None: it is complete


class _Bounded(io.RawIOBase):
    """A stream limited to a number of bytes; reading further raises `_TooMuch`."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int = -1) -> bytes:
        if not self._left:
            raise _TooMuch
        found = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found


class _TooMuch(Exception):
    """The limit of bytes is reached."""


def read(archive: BinaryIO) -> ArchiveListing:
    """List a tar archive, compressed by gzip or not."""
    members: list[ArchiveMember] = []
    try:
        is_gzip = archive.read(len(_GZIP)) == _GZIP
        archive.seek(0)
        plain = gzip.GzipFile(fileobj=archive) if is_gzip else archive
        trouble = _collect(_Bounded(plain, MOST_BYTES), members)
    except _TooMuch:
        trouble = f"only its first {MOST_BYTES >> 20} MB were looked at"
    except _BAD as error:
        trouble = f"it cannot be read to its end: {error}"
    except RecursionError:  # headers nested by the hundred
        trouble = "it cannot be read to its end: its headers are nested too deeply"
    return ArchiveListing(members=members, trouble=trouble)


def _collect(stream: _Bounded, members: list[ArchiveMember]) -> str | None:
    given: dict[str, Any] = {"encoding": "utf-8", "errors": _DECODE_ERRORS, "tarinfo": CheckedTarInfo}
    with tarfile.open(fileobj=stream, mode="r|", **given) as archive:
        for number, member in enumerate(archive):
            if number == MOST_MEMBERS:
                return f"only its first {MOST_MEMBERS} entries were looked at"
            if member.isfile():
                head = _head(archive, member) if len(members) < MOST_HEADS else None
                members.append(ArchiveMember(name=member.name[:_NAME], size=member.size, head=head))
    return None


def _head(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str | None:
    content = archive.extractfile(member)
    start = b"" if content is None else content.read(HEAD)
    if b"\0" in start:
        return None
    try:
        return start.decode()
    except UnicodeDecodeError as error:
        # The end may be in the middle of a character.
        return start[: error.start].decode() if error.start > len(start) - 4 and len(start) == HEAD else None
