"""Batches of requests: all that arrived while the last batch was served are served together.

There is no timer, so a single request is not delayed. If a batch fails, its requests are retried one by one,
so that one bad request fails alone.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from matcher.request.match_request import Busy
from taskqueue.db import database

#: Requests that may wait; further ones are rejected.
_MOST_WAITING = 4096
#: Requests in one batch.
_AT_ONCE = 256

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Collect requests and serve all that wait in one call; use it from one event loop only."""

    def __init__(self, serve: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]]) -> None:
        self._serve = serve
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def answer(self, item: Item) -> Answer:
        """Wait for the answer to one item; `Busy` if too many requests wait."""
        if len(self._waiting) >= _MOST_WAITING:
            raise Busy(f"{_MOST_WAITING} requests wait already; try again later")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._serve_all())
        return await future

    async def _serve_all(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                await self._serve_batch([each for each in batch if not each[1].done()])
        finally:
            self._worker = None

    async def _serve_batch(self, batch: Sequence[tuple[Item, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._serve([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  (raised again in the waiting requests)
            if len(batch) == 1 or database.is_unavailable(error):
                _refuse(batch, error)
                return
            for each in batch:
                await self._serve_batch([each])
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def run_in_thread(serve: Callable[[Sequence[Item]], Sequence[Answer]]) -> Batcher[Item, Answer]:
    """Batch requests that are served in a thread of their own, independent of other requests."""
    limiter = anyio.CapacityLimiter(1)

    async def serve_in_thread(items: Sequence[Item]) -> Sequence[Answer]:
        return await anyio.to_thread.run_sync(serve, items, limiter=limiter)

    return Batcher(serve_in_thread)


def _refuse(batch: Sequence[tuple[Item, "asyncio.Future[Answer]"]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
