"""A deadline for requests that change something: the database may not confirm a commit for minutes.

A commit waits for its synchronous standby without a time-out of the database, and must not be cancelled: it
is stored already, and would be taken for confirmed. So the answer is that the outcome is unknown, while the
work goes on and ends by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskqueue.errors import NotConfirmed

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

#: Less than the 30 s that our own clients and pilots wait for an answer.
SECONDS: Final = 25.0
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: Requests that were answered so and still run.
_abandoned: set[asyncio.Task[None]] = set()
#: The request in whose task this runs.
_current: ContextVar["_Watched | None"] = ContextVar("_current", default=None)


async def confirm(work: Awaitable[_Answer]) -> _Answer:
    """The result of what stores something; `NotConfirmed` if it is not there in time."""
    try:
        async with asyncio.timeout(SECONDS):
            return await work
    except TimeoutError:
        raise NotConfirmed(SECONDS) from None


@contextmanager
def suspended() -> Iterator[None]:
    """No deadline of the request within: what is waited for has one of its own."""
    if (request := _current.get()) is None:
        yield
        return
    request.suspend()
    try:
        yield
    finally:
        request.resume()


def is_abandoned() -> bool:
    """Whether the request was answered already, so that nobody gets its result."""
    request = _current.get()
    return request is not None and request.is_abandoned


def require_waiting() -> None:
    """Raise `NotConfirmed` if the request was answered already."""
    if is_abandoned():
        raise NotConfirmed(SECONDS)


async def answer_in_time(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Let `app` answer; `NotConfirmed` if that does not begin in time after the last piece of the body."""
    if scope["method"] in _READING:
        await app(scope, receive, send)
        return
    request = _Watched(receive, send)
    token = _current.set(request)
    work = asyncio.ensure_future(app(scope, request.receive, request.send))
    _current.reset(token)
    try:
        while not work.done() and (left := request.seconds_left()) > 0:
            await asyncio.wait({work}, timeout=left)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if work.done():
        work.result()
        return
    request.is_abandoned = True
    _abandoned.add(work)
    work.add_done_callback(_forget)
    raise NotConfirmed(SECONDS)


class _Watched:
    """The two ends of a request, with the time since when its answer is due."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._since: float | None = self._clock()  #: None: not now
        self._has_body = False
        self.is_abandoned = False

    def seconds_left(self) -> float:
        """Seconds until the answer has to begin; never less than all while the body comes."""
        return SECONDS if self._since is None else self._since + SECONDS - self._clock()

    def suspend(self) -> None:
        self._since = None

    def resume(self) -> None:
        self._since = self._clock()

    async def receive(self) -> Message:
        if self._has_body:  # what comes now is that the client is gone
            return await self._receive()
        self.suspend()
        message = await self._receive()
        self._has_body = not message.get("more_body", False)
        self.resume()
        return message

    async def send(self, message: Message) -> None:
        if self.is_abandoned:
            return
        self.suspend()  # the answer has begun
        await self._send(message)


def _forget(work: asyncio.Task[None]) -> None:
    _abandoned.discard(work)
    with suppress(asyncio.CancelledError):
        if (error := work.exception()) is not None:
            _log.warning("a request whose outcome was unknown has failed: %s", error)
