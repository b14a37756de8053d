"""Size and time limits for HTTP connections of clients.

The head of a request is read before any token is checked, and uvicorn limits neither its size nor its time.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

#: Limit in bytes between two steps of a request; a head with the token of a large community is smaller.
_LONGEST = 64 << 10
#: Limit in seconds for the head of a request, from its first byte or from the connection.
_HEAD = 30.0
#: Limit in seconds without a byte of a body; longer than the timeouts of the readers of a body.
_SILENCE = 120.0


class ClientConnection(HttpToolsProtocol):
    """An HTTP/1.1 connection with limits."""

    _received = 0  # bytes since the last step
    _received_at = 0.0  # on the clock of the loop
    _head_since: float | None = None  # None: no head is being read
    _is_open = False  # whether a request has started and is not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first head."""
        super().connection_made(transport)
        self._received_at = self._head_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Count received bytes, and reject a head that is too long."""
        self._received_at = self.loop.time()
        self._received += len(data)
        super().data_received(data)
        if self._received > _LONGEST and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        """Start the time limit of a head."""
        super().on_message_begin()
        self._head_since, self._is_open = self._received_at, True

    def on_headers_complete(self) -> None:
        """End the limits of the head."""
        self._received, self._head_since = 0, None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the byte count: bodies are limited elsewhere."""
        self._received = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        self._received, self._is_open = 0, False
        super().on_message_complete()

    def end_if_silent(self, now: float) -> None:
        """Abort the connection if a request, or the rest of one, is overdue.

        Args:
            now: On the clock of the event loop.
        """
        if not self._is_answering and (self._head_is_late(now) or self._body_is_late(now)):
            self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        """Whether a response is pending while the next request has started already."""
        answer: RequestResponseCycle | None = self.cycle
        return self._head_since is not None and answer is not None and not answer.response_complete

    def _head_is_late(self, now: float) -> bool:
        return self._head_since is not None and now - self._head_since > _HEAD

    def _body_is_late(self, now: float) -> bool:
        return self._is_open and not self.flow.read_paused and now - self._received_at > _SILENCE

    def _refuse(self) -> None:
        if self._is_answering:
            self.transport.abort()
        else:
            self.send_400_response(f"A head has {_LONGEST} bytes at most.")


def end_silent(connections: Iterable[Any], *, now: float) -> None:
    """Abort connections with overdue requests; ignore connections of other classes."""
    for each in [each for each in connections if isinstance(each, ClientConnection)]:
        each.end_if_silent(now)
