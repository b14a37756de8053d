"""What a service looks at again and again while it runs."""

import asyncio
import logging
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


def test_the_connections_of_claims_are_closed_whatever_fails_before_that():
    closed, bounded = [], []

    async def fail() -> None:
        raise RuntimeError("no such table: contacts")

    async def close() -> None:
        closed.append(True)

    nothing = SimpleNamespace(refresh=lambda: None)
    parts: Any = SimpleNamespace(
        revoked=nothing,
        tokens=nothing,
        issuers=(),
        places=SimpleNamespace(store_contacts=fail),
        claims=SimpleNamespace(close=close),
        wait_causes=SimpleNamespace(
            store=lambda: None, end=lambda *, within: bounded.append((within, closed.copy()))
        ),
        hardware=SimpleNamespace(store=lambda: None),
        answers_given=SimpleNamespace(store=lambda: None),
    )

    async def run() -> None:
        async with app.keep_running(parts):
            assert not bounded

    with pytest.raises(RuntimeError, match="contacts"):
        asyncio.run(run())
    assert closed == [True]
    assert bounded == [(5.0, [])], "what may take long is bounded first"
