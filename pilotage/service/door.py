"""The asynchronous door: a request waits for the claimer without a thread of its own."""

import asyncio
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import Request

from pilotage.service.refusals import ClientGone, NotInTime

_Answer = TypeVar("_Answer")


async def answer_of(request: Request, future: "Future[_Answer]", *, seconds: float) -> _Answer:
    """What the claimer answers, if it does so in time and the client is still there.

    Otherwise the future is cancelled: what nobody waits for is not claimed, or given back at once.

    Raises:
        NotInTime: It took longer than `seconds`.
        ClientGone: The client closed the connection.
    """
    answer = asyncio.wrap_future(future)
    gone = asyncio.create_task(_disconnected(request))
    try:
        either: set[asyncio.Future[Any]] = {answer, gone}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientGone("the client did not wait for the answer")
        if not answer.done():
            raise NotInTime(f"there was no answer within {seconds:g} s")
        return answer.result()
    finally:
        gone.cancel()
        answer.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection; the body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
