"""Requests that share a turn: whoever waits when the one before is over goes along.

No timer: who comes alone does not wait for company. What breaks a turn of several is found by serving each
alone, and fails alone.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from matcher.errors import Busy
from taskqueue import database

#: Requests that may wait; more are sent away.
_MOST_WAITING = 4096
#: Requests in one turn.
_AT_ONCE = 256

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Gathering(Generic[Asked, Answer]):
    """Belongs to the event loop in which it is asked.

    Args:
        serve: Answers some at once.
    """

    def __init__(self, serve: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer]]]) -> None:
        self._serve = serve
        self._waiting: deque[tuple[Asked, asyncio.Future[Answer]]] = deque()
        self._turns: asyncio.Task[None] | None = None

    async def answer(self, asked: Asked) -> Answer:
        """The answer to one of them.

        Raises:
            Busy: Too many wait.
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise Busy(f"{_MOST_WAITING} requests wait already; ask again later")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if self._turns is None:
            self._turns = asyncio.create_task(self._serve_all())
        return await future

    async def _serve_all(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                await self._turn([each for each in batch if not each[1].done()])
        finally:
            self._turns = None

    async def _turn(self, batch: Sequence[tuple[Asked, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._serve([asked for asked, _ in batch])
        except Exception as error:  # noqa: BLE001  (it goes to whoever asked)
            if len(batch) == 1 or database.is_away(error):
                _refuse(batch, error)
                return
            for each in batch:
                await self._turn([each])
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def in_a_thread(serve: Callable[[Sequence[Asked]], Sequence[Answer]]) -> Gathering[Asked, Answer]:
    """Those that are served in a thread of their own, so that they wait for no others."""
    turn = anyio.CapacityLimiter(1)

    async def served(some: Sequence[Asked]) -> Sequence[Answer]:
        return await anyio.to_thread.run_sync(serve, some, limiter=turn)

    return Gathering(served)


def _refuse(batch: Sequence[tuple[Asked, "asyncio.Future[Answer]"]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
