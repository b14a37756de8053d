"""Archives on their way in and out, in pieces: none is ever in memory as a whole."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import BinaryIO

import anyio.from_thread
import anyio.to_thread
from fastapi import Request
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection

from pilotage.service.api_route import refuse_by_length
from pilotage.service.refusals import BodyTooLarge, SenderSilent
from taskqueue import blobs
from taskqueue.blob_store import BlobStore, Staged
from taskqueue.errors import BlobNotFound, TooLarge

#: Archives that are received at a time. Each has a thread, apart from those of the other requests:
#: slow senders keep nobody else waiting.
MOST_UPLOADS = 64
#: Seconds without a byte after which the sender is given up.
_SILENCE = 60.0
#: Bytes that are sent at a time.
_CHUNK = 256 << 10


async def receive(request: Request, store: BlobStore, *, limit: int) -> Staged:
    """Write the body aside; the caller keeps or discards it.

    Raises:
        BodyTooLarge: It has more than `limit` bytes.
        SenderSilent: Its sender fell silent.
        StorageFull: The store has no room.
    """
    refuse_by_length(request, limit)
    uploads: anyio.CapacityLimiter = request.app.state.uploads
    chunks = _chunks(request.stream())
    try:
        return await anyio.to_thread.run_sync(partial(store.stage, chunks, limit=limit), limiter=uploads)
    except TooLarge:
        raise BodyTooLarge(limit) from None


def send(file: BinaryIO, *, size: int, name: str) -> StreamingResponse:
    """An answer with the archive, closed when it was sent or its receiver went away."""
    headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_pieces(file), media_type="application/x-tar", headers=headers)


def answer(
    store: BlobStore, conn: Connection, digest: str | None, *, vo: str, name: str
) -> StreamingResponse:
    """The same for an archive of the store.

    Raises:
        BlobNotFound: There is none.
    """
    if digest is None:
        raise BlobNotFound(name)
    return send(store.open(digest), size=blobs.size(conn, digest, vo=vo), name=name)


def _chunks(body: AsyncIterator[bytes]) -> Iterator[bytes]:
    """What the event loop receives, for the thread that writes it."""
    while (chunk := anyio.from_thread.run(_next, body)) is not None:
        yield chunk


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(_SILENCE):
            return await anext(body, None)
    except TimeoutError:
        raise SenderSilent(f"nothing came for {_SILENCE:.0f} s") from None


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(_CHUNK):
            yield piece
