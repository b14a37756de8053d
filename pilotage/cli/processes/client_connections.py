"""Connections of clients: what one that sends a request for ever, or none at all, may cost the service.

Nobody has shown a token yet when the head of a request is read, and the server itself bounds neither its size
nor the time that it takes.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

#: Bytes between two steps of a request: its head, with the token of a large community, has them at most.
_LONGEST = 64 << 10
#: Seconds until the head of a request is there, from its first byte or from the connection.
_HEAD = 30.0
#: Seconds without a byte of a body that we wait for; longer than those who read one do.
_SILENCE = 120.0


class ClientConnection(HttpToolsProtocol):
    """HTTP/1.1 that a client speaks with us."""

    _taken = 0  # bytes since the last step
    _heard_at = 0.0  # on the clock of the loop
    _head_since: float | None = None  # None: no head is being read
    _is_open = False  # whether a request has begun and is not whole

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._heard_at = self._head_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """It says something."""
        self._heard_at = self.loop.time()
        self._taken += len(data)
        super().data_received(data)
        if self._taken > _LONGEST and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head_since, self._is_open = self._heard_at, True

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._taken, self._head_since = 0, None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body is."""
        self._taken = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        self._taken, self._is_open = 0, False
        super().on_message_complete()

    def end_if_silent(self, now: float) -> None:
        """End the connection if its client lets us wait for a request, or for the rest of one.

        Args:
            now: On the clock of the loop.
        """
        if not self._is_answering and (self._head_is_late(now) or self._body_is_late(now)):
            self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        """Whether it waits for an answer, and has begun the next request already."""
        answer: RequestResponseCycle | None = self.cycle
        return self._head_since is not None and answer is not None and not answer.response_complete

    def _head_is_late(self, now: float) -> bool:
        return self._head_since is not None and now - self._head_since > _HEAD

    def _body_is_late(self, now: float) -> bool:
        return self._is_open and not self.flow.read_paused and now - self._heard_at > _SILENCE

    def _refuse(self) -> None:
        if self._is_answering:
            self.transport.abort()
        else:
            self.send_400_response(f"A head has {_LONGEST} bytes at most.")


def end_silent(connections: Iterable[Any], *, now: float) -> None:
    """End those whose clients let us wait; others than ours are left alone."""
    for each in [each for each in connections if isinstance(each, ClientConnection)]:
        each.end_if_silent(now)
