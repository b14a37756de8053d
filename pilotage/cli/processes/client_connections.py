"""HTTP connections of clients, and their limits.

uvicorn limits neither size, time nor number of heads of requests, which are read before any token is checked,
nor the time in which an answer is read. A `ClientConnection` stands between the transport and uvicorn's
protocol and counts bytes and seconds; `LimitedRequests`, around the application, notes how far each request
has come. Both use the interfaces of asyncio and ASGI only.
"""

import asyncio
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cs_config.options import bounds
from pilotage.cli import process_setup
from pilotage.cli.processes import tls as process_tls
from pilotage.service.auth.rate_limits import Patience
from pilotage.service.clients import STATE

_log = logging.getLogger(__name__)

#: Limit in bytes of the head of a request; one with the token of a large community is smaller.
_LONGEST = 64 << 10
#: Limit in seconds for the head of a request, from its first byte or from the connection.
_HEAD = 30.0
#: Limit in seconds without a byte of a body, and those that its sender may let the service wait beyond the
#: least rate (`bounds.SLOWEST`); longer than the timeouts of the readers of a body.
_SILENCE = 120.0
#: Bytes that the server gets at once: as many requests as these hold may wait for the answer to the first.
_PIECE = 8 << 10
#: Seconds between two looks at a client, at most: longer ones were pauses of this process, not of the client.
_LONGEST_LOOK = 10.0

#: Shares of the open files that connections without a whole head may use: in all, and from one address.
_PENDING_SHARE = 4
_ADDRESS_SHARE = 16
#: Seconds between two lines in the log about too many of them, and about refused certificates.
_COMPLAIN_EVERY = 60.0

#: Headers of which the first would count here, and another one for a proxy.
_ONCE = (b"host", b"authorization")
_TOO_LONG = f"A head has {_LONGEST} bytes at most."
_TWICE = "A header is there twice that may be there once."
_NO_HOST = "A request of HTTP/1.1 needs the header Host."
_NO_UPGRADE = "A request with a body cannot change the protocol: send it without the header Upgrade."


class _Incomplete(Protocol):
    """A connection without a whole head."""

    @property
    def address(self) -> str:
        """The host at the other end."""

    def abort(self) -> None:
        """Close it at once."""


class ClientConnections:
    """The connections of a process; of too many that wait for the rest of a handshake or head the oldest end.

    A well-behaved client sends its head at once and is never among the oldest.
    """

    def __init__(
        self,
        make_protocol: Callable[..., asyncio.Protocol],
        *,
        by_address: bool,
        files: int | None = None,
    ) -> None:
        """Share `files` (None: the limit of this process); `by_address` False: they come from a proxy.

        `make_protocol` makes the protocol of the server in a connection.
        """
        self.make_protocol = make_protocol
        files = process_setup.read_file_limit() if files is None else files
        self._most = max(1, files // _PENDING_SHARE)
        self._most_of_address = max(1, files // _ADDRESS_SHARE) if by_address else self._most
        self.open: set[ClientConnection] = set()
        self._all: dict[_Incomplete, None] = {}  # that wait, in the order in which they began
        self._by_address: defaultdict[str, dict[_Incomplete, None]] = defaultdict(dict)
        self._complained_at = self._told_refused_at = -_COMPLAIN_EVERY
        self._refused = 0  # certificates since the line about the last one

    def __call__(self, **named: Any) -> "ClientConnection":
        """Make a connection, as uvicorn makes protocols."""
        return ClientConnection(self, **named)

    def add(self, connection: "_Incomplete", *, now: float) -> None:
        """Note one, unless it is noted; the oldest of its address, or of all, makes room for it."""
        if connection in self._all:
            return
        same = self._by_address[connection.address]
        crowded = same if len(same) >= self._most_of_address else self._all
        if crowded is same or len(self._all) >= self._most:
            oldest = next(iter(crowded))
            self.discard(oldest)
            oldest.abort()
            self._complain(connection, now)
        self._all[connection] = self._by_address[connection.address][connection] = None

    def discard(self, connection: "_Incomplete") -> None:
        """Forget one, if it is noted."""
        if connection in self._all:
            del self._all[connection]
            same = self._by_address[connection.address]
            del same[connection]
            if not same:
                del self._by_address[connection.address]

    def note_refused(self, address: str, why: str, *, now: float) -> None:
        """Note that the certificate of a client was refused: many clients show no reason."""
        self._refused += 1
        if now - self._told_refused_at >= _COMPLAIN_EVERY:
            more = (
                f"; {self._refused - 1} others since the last line of this kind" if self._refused > 1 else ""
            )
            _log.warning("the certificate or proxy of %s is refused: %s%s", address, why, more)
            self._told_refused_at, self._refused = now, 0

    def end_silent(self, now: float) -> None:
        """Abort those with overdue requests or readers, on the clock of the loop."""
        for each in list(self.open):
            if each.is_silent(now):
                each.abort()
            elif each.head_since is not None:
                self.add(each, now=now)

    def _complain(self, connection: "_Incomplete", now: float) -> None:
        if now - self._complained_at >= _COMPLAIN_EVERY:
            self._complained_at = now
            _log.warning(
                "%d connections wait for the rest of a request, %d of them from %s: the oldest are closed",
                len(self._all),
                len(self._by_address[connection.address]),
                connection.address,
            )


class _Pace:
    """How fast a client sends a body, or reads what was written for it, while the service waits for that."""

    def __init__(self, patience: float, *, passed: int, now: float) -> None:
        self._patience = Patience(patience)
        self._passed, self._seen_at = passed, now

    def is_late(self, *, passed: int, now: float) -> bool:
        """Whether it is too slow, or has stopped; `passed` are the bytes that it has sent or read."""
        waited = min(now - self._seen_at, _LONGEST_LOOK)
        self._patience.note(size=passed - self._passed, waited=waited)
        self._passed, self._seen_at = passed, now
        return self._patience.seconds < 0


def _cut(body: bytes) -> Iterator[bytes]:
    """The pieces of a body."""
    for begin in range(0, len(body), bounds.ANSWER_PIECE):
        yield body[begin : begin + bounds.ANSWER_PIECE]


class _ServerTransport:
    """The transport as the server sees it: the connection decides what is read from the network."""

    def __init__(self, connection: "ClientConnection") -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection.transport, name)

    def pause_reading(self) -> None:
        self._connection.fill_server(is_full=True)

    def resume_reading(self) -> None:
        self._connection.fill_server(is_full=False)


class ClientConnection(asyncio.Protocol):
    """A connection with limits, around the protocol of the server.

    The server gets what comes in small pieces, and nothing while it answers a request: so it reads one
    request after the other, refuses none in place of an answer, and never has many at once.
    """

    transport: asyncio.Transport
    address = ""
    _request: "LimitedRequest | None" = None  # the latest
    head_since: float | None = None  #: on the clock of the loop; None: no head is being read
    _received_at = 0.0
    _received = 0  # bytes since the latest answer, while no request has begun
    _unread = 0  # bytes of these that belong to a body which was not read before its answer
    _is_paused = False  # whether reading is, as too much is kept back
    _server_is_full = False  # whether it has more of a body than the application has read
    _is_gone = False
    is_last = False  #: whether nothing more is read
    _read = 0  # bytes in all
    _written = 0  # bytes of answers that were passed to the server
    _sender: _Pace | None = None  # None: no body was awaited at the last look
    _reader: _Pace | None = None  # None: nothing waited to be sent at the last look
    _sent: asyncio.Event | None = None  # None: nothing waits to be sent
    _gone: asyncio.Event | None = None

    def __init__(self, connections: ClientConnections, *, app_state: Mapping[str, Any], **named: Any) -> None:
        """The rest is for the protocol of the server, whose requests have this connection in their state."""
        self._connections = connections
        self._protocol = connections.make_protocol(app_state={**app_state, STATE: self}, **named)
        self._loop = asyncio.get_running_loop()
        self._kept_back = bytearray()

    def abort(self) -> None:
        """Close it at once."""
        self.transport.abort()

    def is_gone(self) -> bool:
        """Whether the client has closed it."""
        return self._is_gone

    async def wait_until_gone(self) -> None:
        """Return when the client has closed it."""
        if not self._is_gone:
            self._gone = self._gone or asyncio.Event()
            await self._gone.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the limits of the first head."""
        self.transport = cast("asyncio.Transport", transport)
        # Writing is paused by more than a short answer, until all is sent.
        self.transport.set_write_buffer_limits(high=bounds.SHORT_ANSWER, low=0)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self._connections.open.add(self)
        self._received_at = self.head_since = self._loop.time()
        self._connections.add(self, now=self.head_since)
        self._protocol.connection_made(cast("asyncio.Transport", _ServerTransport(self)))

    def connection_lost(self, exc: Exception | None) -> None:
        """End all waits."""
        self._connections.open.discard(self)
        self._connections.discard(self)
        self._is_gone = True
        self.resume_writing()
        if self._gone is not None:
            self._gone.set()
        self._protocol.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """Pass it on."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """Note that an answer waits to be sent."""
        self._sent = asyncio.Event()
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Note that all is sent."""
        if self._sent is not None:
            self._sent.set()
            self._sent = None
            self._protocol.resume_writing()

    async def drain(self) -> None:
        """Return when all is sent, or none will be."""
        if self._sent is not None:
            await self._sent.wait()

    def data_received(self, data: bytes) -> None:
        """Give it to the server, unless something before it is kept back, or a request is being answered."""
        if self.is_last:
            return
        self._received_at = self._loop.time()
        self._read += len(data)
        if self._kept_back or self._is_answering or self._server_is_full:
            self._kept_back += data
        else:
            self._deliver(data)
        self._read_as_room_allows()

    def fill_server(self, *, is_full: bool) -> None:
        """Note whether the server takes no more of a body for now."""
        self._server_is_full = is_full
        if not is_full and self._kept_back:
            self._loop.call_soon(self.go_on)

    def _read_as_room_allows(self) -> None:
        """Read nothing from the network while much is kept back: its client has to wait."""
        is_full = len(self._kept_back) > _LONGEST
        if is_full is self._is_paused or self.transport.is_closing():
            return
        self._is_paused = is_full
        if is_full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _deliver(self, data: bytes) -> None:
        """Give it to the server in pieces, until it is full; in a head the next when all requests began.

        After a request for another protocol its parser would take a body for the next request, which a proxy
        that has checked the first one has never seen.
        """
        for begin in range(0, len(data), _PIECE):
            piece = data[begin : begin + _PIECE]
            if is_head := self._awaits_head:
                self._received += len(piece)
                if self._received - self._unread > _LONGEST:
                    self._refuse(_TOO_LONG)
                    return
                if self.head_since is None and self._received > self._unread:
                    self.head_since = self._received_at  # counted at the next look for silent ones
            self._protocol.data_received(piece)
            if len(data) > begin + _PIECE and (is_head or self._server_is_full):
                self._kept_back += data[begin + _PIECE :]
                if is_head:
                    self._loop.call_soon(self.go_on)
                return

    def go_on(self) -> None:
        """Give the server what was kept back, unless it is full or answers a request."""
        is_held = self._is_answering or self._server_is_full or self.is_last
        if not self._kept_back or is_held or self.transport.is_closing():
            return
        data, self._kept_back = bytes(self._kept_back), bytearray()
        self._deliver(data)
        self._read_as_room_allows()

    def begin(self, request: "LimitedRequest") -> None:
        """Note that a request has begun: its head is whole."""
        self._request, self.head_since = request, None
        self._connections.discard(self)

    def end(self, request: "LimitedRequest") -> None:
        """Note that a request is answered; what was kept back follows after those that were read before."""
        if request is self._request:
            self._received, self._unread = 0, request.unread
        if self._kept_back:
            self._loop.call_soon(self.go_on)

    def note_written(self, size: int) -> None:
        """Count bytes of an answer."""
        self._written += size

    def read_nothing_more(self) -> None:
        """Ignore what comes behind the latest request."""
        self.is_last = True

    @property
    def _awaits_head(self) -> bool:
        return self._request is None or self._request.is_answered

    @property
    def _is_answering(self) -> bool:
        """Whether a request is read and not answered."""
        return self._request is not None and self._request.is_read and not self._request.is_answered

    def _refuse(self, why: str) -> None:
        self.is_last = True
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(why)}\r\n\r\n{why}".encode())
        self.transport.close()

    def is_silent(self, now: float) -> bool:
        """Whether a head, the rest of a body, or a reader is overdue on the clock of the loop."""
        since = self.head_since
        is_late = self._awaits_head and since is not None and now - since > _HEAD
        return is_late or self._sender_is_late(now) or self._reader_is_late(now)

    def _sender_is_late(self, now: float) -> bool:
        if not self._awaits_body:
            self._sender = None
            return False
        if self._sender is None:
            self._sender = _Pace(_SILENCE, passed=self._read, now=now)
        return now - self._received_at > _SILENCE or self._sender.is_late(passed=self._read, now=now)

    @property
    def _awaits_body(self) -> bool:
        """Whether the rest of a body has to come, which may be that of an answered request."""
        if self._awaits_head:
            return self._received < self._unread
        return self._request is not None and self._request.is_awaited

    def _reader_is_late(self, now: float) -> bool:
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._reader = None
            return False
        if self._reader is None:
            self._reader = _Pace(bounds.READER_PATIENCE, passed=self._written - unsent, now=now)
        return self._reader.is_late(passed=self._written - unsent, now=now)


class LimitedRequests:
    """The application whose requests come over a `ClientConnection`, without cookies that need escapes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it answer, or refuse an ambiguous head."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = LimitedRequest(scope, receive, send)
        if fault := request.begin():
            await request.refuse(fault)
        else:
            await self._app(scope, request.receive, request.send)


class LimitedRequest:
    """A request over a `ClientConnection`: how far it has come, and the functions of ASGI for it."""

    __slots__ = (
        *("_connection", "_headers", "_is_taken", "_left", "_method", "_receive", "_send"),
        *("_has_twice", "_is_upgrade", "_lacks_host", "is_answered", "is_awaited", "is_read"),
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._connection: ClientConnection = scope["state"][STATE]
        self._receive, self._send = receive, send
        self._headers, self._method = scope["headers"], scope["method"]
        stated = dict(self._headers)
        self._has_twice = len(stated) < len(self._headers)
        self._lacks_host = b"host" not in stated and scope["http_version"] == "1.1"  # RFC 9112, 3.2
        if b"cookie" in stated:
            scope["headers"] = self._headers = [*_drop_escaped_cookies(self._headers)]
        self._is_upgrade = b"upgrade" in stated
        #: Bytes of the body that were not taken; None: unknown, as it comes in chunks.
        self._left = None if b"transfer-encoding" in stated else int(stated.get(b"content-length", b"0"))
        self._is_taken = False  # whether the application has got the end of the body
        self.is_awaited = False  #: whether the application waits for more of the body
        self.is_read = self._left == 0  #: whether the end of the body has come
        self.is_answered = False

    def begin(self) -> str | None:
        """Begin; the reason if it has to be refused."""
        self._connection.begin(self)
        if self._has_twice and any(self._count(name) > 1 for name in _ONCE):
            return _TWICE
        if self._lacks_host:
            return _NO_HOST
        if self._method == "CONNECT" or (self._is_upgrade and self._count(b"connection", b"upgrade")):
            self._connection.read_nothing_more()
            return None if self._left == 0 else _NO_UPGRADE
        return None

    def _count(self, name: bytes, part: bytes = b"") -> int:
        """How often a header is there with a part in its value."""
        return sum(each == name and part in value.lower() for each, value in self._headers)

    @property
    def unread(self) -> int:
        """Bytes of the body that may still come."""
        return 0 if self.is_read else self._left or 0

    async def receive(self) -> Message:
        """The next part of the body; after its end, that the client has gone.

        Of several requests of one connection the server notices that of the latest one only.
        """
        if self._is_taken:
            await self._connection.wait_until_gone()
            return {"type": "http.disconnect"}
        self.is_awaited = True
        message = await self._receive()
        self.is_awaited = False
        if self._left is not None:
            self._left = max(0, self._left - len(message.get("body", b"")))
        if not message.get("more_body", False):
            self.is_read = self._is_taken = True
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, a long one in pieces, each when those before are sent."""
        connection = self._connection
        if connection.is_gone():
            return
        if message["type"] == "http.response.start":
            await self._send(self._end_after(message))
            return
        size = len(message.get("body", b""))
        if size > bounds.SHORT_ANSWER:
            message, size = await self._send_in_pieces(message), 0
        self.is_answered = not message.get("more_body", False)
        await self._send(message)
        connection.note_written(size)
        if self.is_answered:
            connection.end(self)

    async def _send_in_pieces(self, message: Message) -> Message:
        """Send the body of a message; what is left of it."""
        connection = self._connection
        for piece in _cut(message["body"]):
            await self._send({"type": message["type"], "body": piece, "more_body": True})
            connection.note_written(len(piece))
        await connection.drain()
        return {**message, "body": b""}

    def _end_after(self, start: Message) -> Message:
        """The beginning of an answer, which closes the connection if it cannot be read on."""
        if self._left is None and not self.is_read:
            self._connection.read_nothing_more()
        if not self._connection.is_last:
            return start
        return {**start, "headers": [*start["headers"], (b"connection", b"close")]}

    async def refuse(self, why: str) -> None:
        """Answer 400, and close the connection."""
        self._connection.read_nothing_more()
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(why))]
        await self.send({"type": "http.response.start", "status": 400, "headers": headers})
        await self.send({"type": "http.response.body", "body": why.encode()})


def _drop_escaped_cookies(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Headers without cookies with a backslash: ours have none.

    To read one takes quadratic time before Python 3.11.10 (CVE-2024-7592), and every route reads them: 60,000
    characters of a stranger stopped the event loop for 23 s.
    """
    for name, value in headers:
        if name == b"cookie" and b"\\" in value:
            value = b";".join(each for each in value.split(b";") if b"\\" not in each)
        yield name, value


class BegunConnection:
    """A connection until the server has it: with TLS until the end of its handshake."""

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.address = address
        self._accepted = accepted
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False  # from then on the transport closes the socket

    def begin(
        self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, pending: ClientConnections
    ) -> None:
        """Begin; `make` makes the protocol of the connection."""
        self._task = asyncio.create_task(self._connect(make, tls, pending))
        self._task.add_done_callback(lambda _: pending.discard(self))

    def abort(self) -> None:
        """End it at once."""
        if self._task is not None:
            self._task.cancel()
        if not self._has_begun:
            self._accepted.close()

    async def _connect(
        self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, pending: ClientConnections
    ) -> None:
        self._has_begun = True
        if tls is None:
            pending.discard(self)  # the server has it in a moment, and counts until its head is there
        loop = asyncio.get_running_loop()
        refused: list[ssl.SSLError] = []
        process_tls.refusals.set(refused)
        try:
            await loop.connect_accepted_socket(
                make, self._accepted, ssl=tls, ssl_handshake_timeout=None if tls is None else _HEAD
            )
        except OSError as error:  # of TLS, too
            why = next(iter(refused), error)
            if isinstance(why, ssl.SSLCertVerificationError):  # such as an expired proxy
                pending.note_refused(self.address, why.verify_message, now=loop.time())
            else:
                _log.debug("no connection with %s: %s", self.address, why)
