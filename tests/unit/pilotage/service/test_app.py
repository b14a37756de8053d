"""What a service looks at again and again while it runs."""

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pilotage.service import app


def test_a_look_that_breaks_is_told_and_not_the_last(caplog: pytest.LogCaptureFixture):
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise RuntimeError("no such table: revoked_tokens")
        raise asyncio.CancelledError

    with caplog.at_level(logging.ERROR), pytest.raises(asyncio.CancelledError):
        asyncio.run(app.repeatedly(look, every=0))
    assert looks == 2
    assert "no such table: revoked_tokens" in caplog.text


async def _do_nothing() -> None:
    pass


def make_parts(**own: SimpleNamespace) -> Any:
    """Parts of a service that do nothing, but for those that are given."""
    nothing = SimpleNamespace(
        refresh=lambda: None, store=lambda _: None, store_contacts=_do_nothing, close=_do_nothing
    )
    names = "revoked", "tokens", "places", "claims", "hardware", "answers_given"
    return SimpleNamespace(**{**dict.fromkeys(names, nothing), "issuers": (), **own})


def test_the_connections_of_claims_are_closed_whatever_fails_before_that():
    closed, bounded = [], []

    async def fail() -> None:
        raise RuntimeError("no such table: contacts")

    async def close() -> None:
        closed.append(True)

    parts = make_parts(
        places=SimpleNamespace(store_contacts=fail),
        claims=SimpleNamespace(close=close),
        wait_causes=SimpleNamespace(
            store=lambda _: None, end=lambda *, within: bounded.append((within, closed.copy()))
        ),
    )

    async def run() -> None:
        async with app.keep_running(parts):
            assert not bounded

    with pytest.raises(RuntimeError, match="contacts"):
        asyncio.run(run())
    assert closed == [True]
    assert bounded == [(5.0, [])], "what may take long is bounded first"


def test_the_last_minute_is_stored_after_one_whose_storing_is_under_way():
    begun, second, bounded = threading.Event(), threading.Event(), threading.Event()
    under_way, most, pauses = 0, 0, []

    def store(pause: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if begun.is_set():
            second.set()
        else:
            begun.set()
            bounded.wait(300)
            second.wait(0.5)  # it must not come
        pauses.append(pause)
        under_way -= 1

    def end(*, within: float) -> None:
        assert within > 0
        bounded.set()

    parts = make_parts(wait_causes=SimpleNamespace(store=store, end=end))

    async def run() -> None:
        async with app.keep_running(parts):
            await asyncio.to_thread(begun.wait)

    asyncio.run(run())
    assert (len(pauses), most) == (2, 1)
    for pause in pauses:
        assert pause._ending.is_set(), "the service ends: there are none any more"
