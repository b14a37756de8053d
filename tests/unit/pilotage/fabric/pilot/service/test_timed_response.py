"""Responses that come too slowly end; readers may take their time."""

import io
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pilotage.fabric.pilot.service import timed_response
from pilotage.fabric.pilot.service.timed_response import LEAST_RATE, TimedResponse

SECONDS = 300.0
LENGTH = 100_000


class Raw(io.RawIOBase):
    """What a server sends, whose every read takes the same time."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)
        self.now = self.pause = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self.now += self.pause
        return self._content.readinto(memoryview(buffer)[:1000])


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> Raw:
    raw = Raw(f"HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n".encode() + b"1" * LENGTH)
    monkeypatch.setattr(timed_response, "time", SimpleNamespace(monotonic=lambda: raw.now))
    return raw


@pytest.fixture
def response(raw: Raw) -> Iterator[TimedResponse]:
    ours, theirs = socket.socketpair()
    sock: Any = SimpleNamespace(makefile=lambda _: io.BufferedReader(raw), settimeout=ours.settimeout)
    with ours, theirs:
        response = TimedResponse(sock, seconds=SECONDS)
        response.begin()
        yield response


def test_time_in_which_nobody_reads_is_not_the_servers(raw: Raw, response: TimedResponse) -> None:
    received = 0
    while piece := response.read(LENGTH // 10):
        raw.now += 3600
        received += len(piece)
    assert received == LENGTH


def test_a_server_that_is_slow_between_two_reads_is_too_slow(raw: Raw, response: TimedResponse) -> None:
    raw.pause = 1000 / LEAST_RATE + SECONDS / 10
    with pytest.raises(TimeoutError, match="too slowly"):
        response.read()
