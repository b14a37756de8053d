"""Requests that share a turn."""

import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy.exc import InterfaceError

from matcher.request.match_request import Busy
from pilotage.service import batching
from pilotage.service.batching import Batcher


class Halves:
    """Halves even numbers; holds every turn up until `go` is set, and notes who went together."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.turns: list[list[int]] = []

    async def serve(self, numbers: Sequence[int]) -> Sequence[float]:
        self.turns.append(list(numbers))
        await self.go.wait()
        if 13 in numbers:
            raise ZeroDivisionError("a defect of ours")
        if 99 in numbers:
            raise InterfaceError("SELECT 1", {}, Exception("the server closed the connection"))
        return [number / 2 for number in numbers]


async def _ask(halves: Halves, *numbers: int) -> list[float | BaseException]:
    """The first has a turn of its own, since it came alone; the others wait until it is over."""
    gathered: Batcher[int, float] = Batcher(halves.serve)
    first = asyncio.create_task(gathered.answer(0))
    while not halves.turns:
        await asyncio.sleep(0)
    others = [asyncio.create_task(gathered.answer(number)) for number in numbers]
    await asyncio.sleep(0)
    halves.go.set()
    assert await first == 0
    return list(await asyncio.gather(*others, return_exceptions=True))


def test_whoever_waits_when_a_turn_is_over_shares_the_next_one() -> None:
    async def run() -> None:
        halves = Halves()
        assert await _ask(halves, 2, 4, 6) == [1, 2, 3]
        assert halves.turns == [[0], [2, 4, 6]]

    asyncio.run(run())


def test_what_breaks_a_turn_fails_alone() -> None:
    async def run() -> None:
        one, broken, three = await _ask(Halves(), 2, 13, 6)
        assert (one, three) == (1, 3)
        assert isinstance(broken, ZeroDivisionError)

    asyncio.run(run())


def test_a_database_that_is_away_is_told_to_all_without_trying_each() -> None:
    async def run() -> None:
        halves = Halves()
        answers = await _ask(halves, 2, 99, 6)
        assert all(isinstance(each, InterfaceError) for each in answers)
        assert halves.turns == [[0], [2, 99, 6]]

    asyncio.run(run())


def test_more_than_may_wait_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(batching, "_MOST_WAITING", 2)
        answers = await _ask(Halves(), 2, 4, 6)
        assert answers[:2] == [1, 2]
        assert isinstance(answers[2], Busy)

    asyncio.run(run())


def test_who_does_not_wait_any_more_holds_nobody_up() -> None:
    async def run() -> None:
        halves = Halves()
        gathered: Batcher[int, float] = Batcher(halves.serve)
        first = asyncio.create_task(gathered.answer(0))
        while not halves.turns:
            await asyncio.sleep(0)
        gone, there = (asyncio.create_task(gathered.answer(number)) for number in (2, 4))
        await asyncio.sleep(0)
        gone.cancel()
        first.cancel()
        halves.go.set()
        assert await there == 2
        assert halves.turns == [[0], [4]]

    asyncio.run(run())
