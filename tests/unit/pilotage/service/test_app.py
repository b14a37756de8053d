"""What a service looks at again and again while it runs."""

import asyncio
import logging

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
