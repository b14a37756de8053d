"""The asynchronous door: a request waits for the claimer without a thread of its own."""

import asyncio
import time
from typing import Any

from fastapi import Request

from matcher.claimer import Claimer
from matcher.errors import NotInTime
from matcher.requests import MatchAnswer, MatchRequest
from pilotage.service.refusals import ClientGone


async def answer_of(request: Request, claimer: Claimer, wanted: MatchRequest) -> MatchAnswer:
    """What the claimer answers, if it does so in time and the client is still there.

    Otherwise the request is abandoned: what nobody waits for is not claimed, or given back at once.

    Raises:
        Busy: Too many requests wait already.
        NotInTime: The deadline is over.
        ClientGone: The client closed the connection.
    """
    ticket = claimer.submit(wanted)
    answer = asyncio.wrap_future(ticket.future)
    answer.add_done_callback(_retrieve)
    gone = asyncio.create_task(_disconnected(request))
    delivered = False
    try:
        either: set[asyncio.Future[Any]] = {answer, gone}
        left = wanted.deadline - time.monotonic()
        await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientGone("the client did not wait for the answer")
        if not answer.done():
            raise NotInTime("there was no answer in time; ask again")
        delivered = True
        return answer.result()
    finally:
        gone.cancel()
        if not delivered:
            claimer.abandon(ticket)


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _retrieve(answer: "asyncio.Future[MatchAnswer]") -> None:
    """Look at the error of an answer that nobody waits for, so that it is not reported as overlooked."""
    if not answer.cancelled():
        answer.exception()
