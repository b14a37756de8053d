"""What waits for the claimer gets its answer, or gives back what it was given."""

import asyncio
import time

import pytest

from matcher.claim.claim_thread import PendingRequest
from matcher.request.match_request import MatchCaller, MatchRequest, MatchResult, NotInTime, read_resource
from pilotage.service.http_errors import ClientGone
from pilotage.service.routes.matcher import await_match

ANSWER = MatchResult(reason="no_task_queue")


class PretendedClaimer:
    """Keeps the ticket, and who was abandoned."""

    def __init__(self) -> None:
        self.ticket: PendingRequest | None = None
        self.given_back = False

    def submit(self, request: MatchRequest) -> PendingRequest:
        self.ticket = PendingRequest(request=request)
        return self.ticket

    def abandon(self, ticket: PendingRequest) -> None:
        assert ticket is self.ticket
        self.given_back = True


class Client:
    """One that waits until it goes."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    def is_gone(self) -> bool:
        return self.gone.is_set()

    async def wait_until_gone(self) -> None:
        await self.gone.wait()


def wanted(seconds: float = 60) -> MatchRequest:
    caller = MatchCaller(subject="pilot", vos=frozenset({"cms"}))
    return MatchRequest(
        presented=read_resource({"CPUTime": 60}), caller=caller, deadline=time.monotonic() + seconds
    )


def test_the_answer_comes_from_another_thread() -> None:
    claimer = PretendedClaimer()

    async def ask() -> MatchResult:
        waiting = asyncio.create_task(await_match(Client(), claimer, wanted()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert claimer.ticket is not None
        assert await asyncio.to_thread(claimer.ticket.deliver, ANSWER)
        return await waiting

    assert asyncio.run(ask()) == ANSWER
    assert not claimer.given_back


def test_who_goes_gives_back_what_comes_at_that_very_moment() -> None:
    claimer = PretendedClaimer()

    async def ask() -> None:
        client = Client()
        waiting = asyncio.create_task(await_match(client, claimer, wanted()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        client.gone.set()
        assert claimer.ticket is not None
        claimer.ticket.deliver(ANSWER)
        await waiting

    with pytest.raises(ClientGone):
        asyncio.run(ask())
    assert claimer.given_back


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.05])
def test_after_the_deadline_nothing_is_taken(seconds: float) -> None:
    claimer = PretendedClaimer()

    with pytest.raises(NotInTime):
        asyncio.run(await_match(Client(), claimer, wanted(seconds)))  # type: ignore[arg-type]
    assert claimer.given_back


def test_a_service_that_ends_gives_back_what_it_waited_for() -> None:
    claimer = PretendedClaimer()

    async def end() -> None:
        waiting = asyncio.create_task(await_match(Client(), claimer, wanted()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(end())
    assert claimer.given_back
    assert claimer.ticket is not None
    claimer.ticket.deliver(ANSWER)  # the loop has ended: nobody is told, and nothing breaks
