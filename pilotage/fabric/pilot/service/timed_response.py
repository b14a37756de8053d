"""HTTP responses that end in a bounded time: a socket's timeout holds for one read, say of a byte."""

from __future__ import annotations

import io
import socket
import time
from http.client import HTTPResponse
from typing import Any

#: Bytes in a second, on average, of a body.
LEAST_RATE = 1000.0


class TimedResponse(HTTPResponse):
    """A response of which reads, also those of its head, raise TimeoutError once it comes too slowly.

    Only waiting for the server counts: a reader may take its time between two reads.
    """

    def __init__(self, sock: socket.socket, *args: Any, seconds: float, **more: Any) -> None:
        """`seconds`: for one read, and for the head; the body may fall behind its least rate by as much."""
        super().__init__(sock, *args, **more)
        self._timed = _TimedReader(self.fp.detach(), sock, seconds)
        self.fp = io.BufferedReader(self._timed)

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        self._timed.rate = LEAST_RATE


class _TimedReader(io.RawIOBase):
    def __init__(self, raw: io.RawIOBase, sock: socket.socket, seconds: float) -> None:
        self._raw, self._sock, self._seconds = raw, sock, seconds
        self._waited, self._received = 0.0, 0
        self.rate = float("inf")  #: of the head, whatever its length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if self._received:
            late = self._waited - self._received / self.rate
            if late >= self._seconds:
                raise TimeoutError("the response comes too slowly")
            self._sock.settimeout(min(self._seconds, self._seconds - late))
        begin = time.monotonic()
        found = self._raw.readinto(buffer)
        if self._received:
            self._waited += time.monotonic() - begin
        self._received += found or 0
        return found

    def close(self) -> None:
        self._raw.close()
        super().close()
