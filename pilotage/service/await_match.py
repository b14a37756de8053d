"""Wait for the claimer in the event loop, without a thread for each request."""

import asyncio
import time
from contextlib import suppress

from fastapi import Request

from matcher.claim.worker import ClaimWorker
from matcher.errors import NotInTime
from matcher.request.match_request import MatchRequest, MatchResult
from pilotage.service.http_errors import ClientGone


async def answer_of(request: Request, claimer: ClaimWorker, wanted: MatchRequest) -> MatchResult:
    """Return the claimer's result, unless the deadline passes or the client disconnects first.

    An abandoned request is not claimed; a claim already made for it is given back at once. `Busy` if too many
    requests wait already.
    """
    loop = asyncio.get_running_loop()
    completion = _Completion(loop)
    ticket = claimer.submit(wanted)
    ticket.future.add_done_callback(completion.set_threadsafe)
    deadline = loop.call_later(wanted.deadline - time.monotonic(), completion.set)
    gone = asyncio.create_task(_disconnected(request))
    gone.add_done_callback(completion.set)
    delivered = False
    try:
        await completion.future
        if gone.done():
            raise ClientGone("the client did not wait for the answer")
        if not ticket.future.done():
            raise NotInTime("there was no answer in time; try again")
        delivered = True
        return ticket.future.result()
    finally:
        if not delivered:
            claimer.abandon(ticket)
        deadline.cancel()
        gone.cancel()


class _Completion:
    """The end of the wait, for any reason: one future is cheaper than waiting for several."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def set(self, *_: object) -> None:
        """Call it in the loop's thread."""
        if not self.future.done():
            self.future.set_result(None)

    def set_threadsafe(self, *_: object) -> None:
        """Call it in any thread; a closed loop is ignored."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.set)


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
