"""The asynchronous door: a request waits for the claimer without a thread of its own."""

import asyncio
import time
from contextlib import suppress

from fastapi import Request

from matcher.claim.worker import ClaimWorker
from matcher.errors import NotInTime
from matcher.request.match_request import MatchRequest, MatchResult
from pilotage.service.http_errors import ClientGone


async def answer_of(request: Request, claimer: ClaimWorker, wanted: MatchRequest) -> MatchResult:
    """What the claimer answers, if it does so in time and the client is still there.

    Otherwise the request is abandoned: what nobody waits for is not claimed, or given back at once.

    Raises:
        Busy: Too many requests wait already.
        NotInTime: The deadline is over.
        ClientGone: The client closed the connection.
    """
    loop = asyncio.get_running_loop()
    over = _Over(loop)
    ticket = claimer.submit(wanted)
    ticket.future.add_done_callback(over.tell_from_elsewhere)
    deadline = loop.call_later(wanted.deadline - time.monotonic(), over.tell)
    gone = asyncio.create_task(_disconnected(request))
    gone.add_done_callback(over.tell)
    delivered = False
    try:
        await over.told
        if gone.done():
            raise ClientGone("the client did not wait for the answer")
        if not ticket.future.done():
            raise NotInTime("there was no answer in time; ask again")
        delivered = True
        return ticket.future.result()
    finally:
        if not delivered:
            claimer.abandon(ticket)
        deadline.cancel()
        gone.cancel()


class _Over:
    """There is nothing more to wait for, whatever the reason: cheaper than to wait for several futures."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.told: asyncio.Future[None] = loop.create_future()

    def tell(self, *_: object) -> None:
        """In the loop's thread."""
        if not self.told.done():
            self.told.set_result(None)

    def tell_from_elsewhere(self, *_: object) -> None:
        """In any thread; a loop that has ended needs no word."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.tell)


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
