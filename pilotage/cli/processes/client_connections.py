"""HTTP connections of clients: their limits, and plain requests past the framework.

uvicorn limits neither size, time nor number of heads of requests, which are read before any token is checked:
these connections limit all three, and the time in which an answer is read. A long answer is written in
pieces, each when those before are sent, so that its end is known to what counts the bytes in memory. A plain
request of a pilot goes to the fast path of the service; for all others, and all that uvicorn refuses, uvicorn
calls the application.
"""

import asyncio
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_client_addr

from cs_config.options import bounds
from pilotage.cli import process_setup
from pilotage.service import middleware
from pilotage.service.auth.rate_limits import Patience
from pilotage.service.fast_path import LONGEST, FastPath, PlainExchange, find_route

_log = logging.getLogger(__name__)

#: Limit in bytes between two steps of a request; a head with the token of a large community is smaller.
_LONGEST = 64 << 10
#: Limit in seconds for the head of a request, from its first byte or from the connection; and for the body of
#: a plain request, which is short.
_HEAD = 30.0
#: Limit in seconds without a byte of a body; longer than the timeouts of the readers of a body.
_SILENCE = 120.0
#: Requests of one connection that wait for the answer to the one before.
_MOST_PIPELINED = 100
#: Seconds between two looks at a reader, at most: longer ones were pauses of this process, not of the reader.
_LONGEST_LOOK = 10.0

#: Shares of the open files that connections without a whole head, or a whole plain request, may use: in all,
#: and from one address.
_PENDING_SHARE = 4
_ADDRESS_SHARE = 16
#: Digits of a length of a body that is not plain.
_DIGITS = 8
#: Seconds between two lines in the log about too many of them.
_COMPLAIN_EVERY = 60.0


class _Incomplete(Protocol):
    """A connection without a whole head or plain request."""

    @property
    def address(self) -> str:
        """The host at the other end."""

    def abort(self) -> None:
        """Close it at once."""


class PendingHeads:
    """Connections that wait for the rest of a handshake, head or plain request; of too many the oldest close.

    A client of good will sends these at once, so that it is never among the oldest for long.
    """

    def __init__(self, *, by_address: bool, files: int | None = None) -> None:
        """Share `files` (None: the limit of this process); `by_address` False: they come from a proxy."""
        files = process_setup.read_file_limit() if files is None else files
        self._most = max(1, files // _PENDING_SHARE)
        self._most_of_address = max(1, files // _ADDRESS_SHARE) if by_address else self._most
        self._all: dict[_Incomplete, None] = {}  # in the order in which they began
        self._by_address: defaultdict[str, dict[_Incomplete, None]] = defaultdict(dict)
        self._complained_at = -_COMPLAIN_EVERY

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

    def _complain(self, connection: "_Incomplete", now: float) -> None:
        if now - self._complained_at >= _COMPLAIN_EVERY:
            self._complained_at = now
            _log.warning(
                "%d connections wait for the rest of a request, %d of them from %s: the oldest are closed",
                len(self._all),
                len(self._by_address[connection.address]),
                connection.address,
            )


#: Headers of requests that are not plain.
_SPECIAL = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
#: Headers of which the first would count here, and another one for a proxy.
_ONCE = (b"host", b"authorization")
_NO_UPGRADE = "A request with a body cannot change the protocol: send it without the header Upgrade."


def _cut(body: bytes) -> Iterator[bytes]:
    """The pieces of a body."""
    for begin in range(0, len(body), bounds.ANSWER_PIECE):
        yield body[begin : begin + bounds.ANSWER_PIECE]


def _write_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % each for each in headers])


#: What follows the length in the head of an answer with JSON.
_JSON = _write_headers([(b"content-type", b"application/json"), *middleware.ALWAYS])
_JSON_OVER_TLS = _write_headers([(b"content-type", b"application/json"), *middleware.OVER_TLS])


class _Reader:
    """A client while not all that was written for it is sent."""

    def __init__(self, *, taken: int, now: float) -> None:
        self._patience = Patience(bounds.READER_PATIENCE)
        self._taken, self._seen_at = taken, now

    def is_late(self, *, taken: int, now: float) -> bool:
        """Whether it reads too slowly, or nothing at all; `taken` are the bytes that were sent to it."""
        waited = min(now - self._seen_at, _LONGEST_LOOK)
        self._patience.note(size=taken - self._taken, waited=waited)
        self._taken, self._seen_at = taken, now
        return self._patience.seconds < 0


class ClientConnection(HttpToolsProtocol):
    """An HTTP/1.1 connection with limits."""

    _received = 0  # bytes since the last step
    _received_at = 0.0  # on the clock of the loop
    _head_since: float | None = None  # None: no head is being read
    _is_open = False  # whether a request has started and is not complete
    _exchange: PlainExchange | None = None  # a plain request until its answer
    _body: bytearray | None = None  # of the plain request that is being read
    _body_since = 0.0  # end of its head
    _is_last = False  # whether nothing more is read
    _written = 0  # bytes of answers that were passed to the transport
    _reader: _Reader | None = None  # None: nothing waited to be sent at the last look

    def __init__(self, *args: Any, pending: PendingHeads, fast_path: FastPath | None = None, **named: Any):
        super().__init__(*args, **named)
        self._pending = pending
        self._fast_path = fast_path
        self._cycles: list[RequestResponseCycle] = []  # not plain, and not all answered

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the limits of the first head."""
        super().connection_made(transport)
        # `flow` is paused by more than a short answer, until all is sent.
        transport.set_write_buffer_limits(high=bounds.SHORT_ANSWER, low=0)
        self.address = self.client[0] if self.client else ""
        self._received_at = self._head_since = self.loop.time()
        self._pending.add(self, now=self._received_at)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all limits."""
        self._pending.discard(self)
        if self._exchange is not None:
            self._exchange.lose()
        if isinstance(self.cycle, PlainExchange):
            self.cycle = None
        for each in self._cycles:  # the server knows the latest one only
            each.disconnected = True
            each.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count received bytes, and reject a head that is too long."""
        if self._is_last:
            return
        self._received_at = self.loop.time()
        self._received += len(data)
        super().data_received(data)
        is_whole = self._head_since is None and self._body is None
        if is_whole or self.transport.is_closing():
            self._pending.discard(self)
        else:
            self._pending.add(self, now=self._received_at)
        if self._received > _LONGEST and not self.transport.is_closing():
            self._refuse(f"A head has {_LONGEST} bytes at most.")

    def on_message_begin(self) -> None:
        """Start the time limit of a head."""
        super().on_message_begin()
        self._head_since, self._is_open = self._received_at, True

    def on_headers_complete(self) -> None:
        """End the limits of the head, and authenticate a plain request: no body is kept for a stranger."""
        self._check_head()
        self._received, self._head_since = 0, None
        # The answer to a plain request before this one in the same piece has set it.
        self._unset_keepalive_if_required()
        if self.parser.should_upgrade():
            self._end_with_upgrade()
            return
        exchange = None if self._fast_path is None else self._find_exchange()
        if exchange is None or self._fast_path is None or not self._fast_path.authenticate(exchange):
            self._begin_cycle()
        else:
            self._exchange = self.cycle = exchange  # type: ignore[assignment]
            self._body, self._body_since = bytearray(), self._received_at

    def _check_head(self) -> None:
        """Have the parser refuse a head that came in one piece and is too long, or states something twice."""
        names = [name for name, _ in self.headers]
        if any(names.count(each) > 1 for each in _ONCE):
            raise ValueError
        if self._received > _LONGEST and sum(map(len, chain([self.url], *self.headers))) > _LONGEST:
            raise ValueError

    def _end_with_upgrade(self) -> None:
        """Answer a request for another protocol in this one, as the last of its connection.

        The parser reads nothing after such a head: a body would be taken for the next request, which a proxy
        that has checked the first one has never seen.
        """
        self._is_last = True
        if not self._is_answered:
            # An answer now would be taken for that of the request before: the client sends this one again.
            self.cycle.keep_alive = False
            return
        stated = dict(self.headers)
        if b"transfer-encoding" in stated or int(stated.get(b"content-length", b"0")):
            self._refuse(_NO_UPGRADE)
            return
        self._begin_cycle()
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: anybody may send such requests."""

    def on_body(self, body: bytes) -> None:
        """Reset the byte count: bodies are limited elsewhere."""
        self._received = 0
        if self._body is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        self._received, self._is_open = 0, False
        if self._is_last and (self.transport.is_closing() or isinstance(self.cycle, PlainExchange)):
            return
        if self._body is None or self._exchange is None or self._fast_path is None:
            super().on_message_complete()
            return
        exchange, exchange.body, self._body = self._exchange, bytes(self._body), None
        if not self._fast_path.begin(exchange):
            self._hand_over(exchange)

    def _find_exchange(self) -> PlainExchange | None:
        """The request whose head was read, if it is plain as far as that tells."""
        found, parser, is_first = find_route(self.url), self.parser, self._is_answered
        if found is None or not is_first or parser.get_method() != b"POST":
            return None
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"0")
        if (
            len(headers) < len(self.headers)
            or not _SPECIAL.isdisjoint(headers)
            or not (length.isdigit() and len(length) < _DIGITS and int(length) <= LONGEST)
            or parser.get_http_version() != "1.1"
            or not parser.should_keep_alive()
            or self.flow.write_paused
        ):
            return None
        self.scope |= {"method": "POST", "path": self.url.decode(), "query_string": b""}
        scope: Scope = self.scope  # type: ignore[assignment]
        if isinstance(self.app, ProxyHeadersMiddleware):
            scope = _apply_proxy_headers(scope, self.app)
        return PlainExchange(self, *found, scope, headers)

    def _hand_over(self, exchange: PlainExchange) -> None:
        """Let the application answer, as if the request had just been read."""
        self._exchange = self.cycle = None  # type: ignore[assignment]
        self._begin_cycle()
        self.cycle.keep_alive = self.cycle.keep_alive and exchange.keep_alive
        super().on_body(exchange.body)
        super().on_message_complete()

    def _begin_cycle(self) -> None:
        """Let the application answer a request whose head was read.

        Too many requests at once are refused by the parser: a piece of them would take seconds.
        """
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError
        super().on_headers_complete()
        self._cycles = [each for each in self._cycles if not each.response_complete]
        if isinstance(self.cycle, RequestResponseCycle):
            self._cycles.append(self.cycle)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Let the application answer, in pieces."""
        super()._start_asgi_task(cycle, partial(self._answer_in_pieces, app))

    async def _answer_in_pieces(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_pieces(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) > bounds.SHORT_ANSWER:
                for piece in _cut(body):
                    await send({"type": message["type"], "body": piece, "more_body": True})
                    self._written += len(piece)
                await self.flow.drain()
                body, message = b"", {**message, "body": b""}
            await send(message)
            self._written += len(body)

        await app(scope, receive, send_in_pieces)

    def write_answer(self, status: int, headers: list[tuple[bytes, bytes]] | None, body: bytes) -> None:
        """Write the answer of a plain request; None: the headers of JSON."""
        exchange = self._require_exchange()
        if not exchange.disconnected:
            self._write(self._write_head(exchange, status, headers, len(body)) + body)
        self._end_exchange(exchange)

    async def send_answer(self, status: int, headers: list[tuple[bytes, bytes]] | None, body: bytes) -> None:
        """Write a long answer of a plain request in pieces, and return when all are sent, or none will be."""
        exchange = self._require_exchange()
        pieces = chain([self._write_head(exchange, status, headers, len(body))], _cut(body))
        for piece in pieces:
            if not exchange.disconnected:
                self._write(piece)
                await self.flow.drain()
        self._end_exchange(exchange)

    def _write(self, content: bytes) -> None:
        self.transport.write(content)
        self._written += len(content)

    def _require_exchange(self) -> PlainExchange:
        if self._exchange is None:
            raise TypeError("the request was answered")
        return self._exchange

    def _end_exchange(self, exchange: PlainExchange) -> None:
        self._exchange, exchange.response_complete = None, True
        if exchange.disconnected:
            return
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _write_head(
        self, exchange: PlainExchange, status: int, headers: list[tuple[bytes, bytes]] | None, length: int
    ) -> bytes:
        """The head of an answer, which is logged."""
        if self.access_log:
            client, path = get_client_addr(exchange.scope), exchange.scope["path"]  # type: ignore[arg-type]
            self.access_logger.info('%s - "%s %s HTTP/%s" %d', client, "POST", path, "1.1", status)
        if headers is None:
            rest = _JSON_OVER_TLS if exchange.scope["scheme"] == "https" else _JSON
            own = b"content-length: %d\r\n%b" % (length, rest)
        else:
            own = _write_headers(headers)
        default = _write_headers(self.server_state.default_headers)
        close = b"" if exchange.keep_alive else b"connection: close\r\n"
        return b"%b%b%b%b\r\n" % (STATUS_LINE[status], default, own, close)

    def end_if_silent(self, now: float) -> None:
        """Abort the connection if a request, or the rest of one, is overdue on the clock of the loop.

        The same if its client does not read what it is sent, or reads it too slowly.
        """
        request_is_late = not self._is_answering and (self._head_is_late(now) or self._body_is_late(now))
        if request_is_late or self._reader_is_late(now):
            self.transport.abort()

    @property
    def _is_answered(self) -> bool:
        """Whether no response is pending."""
        answer: RequestResponseCycle | None = self.cycle
        return answer is None or answer.response_complete

    @property
    def _is_answering(self) -> bool:
        """Whether a response is pending while the next request has started already."""
        return self._head_since is not None and not self._is_answered

    def _head_is_late(self, now: float) -> bool:
        return self._head_since is not None and now - self._head_since > _HEAD

    def _body_is_late(self, now: float) -> bool:
        if self._body is not None and now - self._body_since > _HEAD:
            return True
        return self._is_open and not self.flow.read_paused and now - self._received_at > _SILENCE

    def _reader_is_late(self, now: float) -> bool:
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._reader = None
            return False
        if self._reader is None:
            self._reader = _Reader(taken=self._written - unsent, now=now)
        return self._reader.is_late(taken=self._written - unsent, now=now)

    def send_400_response(self, msg: str) -> None:
        """Refuse what was received, and close the connection.

        Without an answer while a request before it has none: this would be taken for it.
        """
        reads_body = self._is_open and self._head_since is None
        own = self.cycle if reads_body else None
        is_begun = isinstance(own, RequestResponseCycle) and own.response_started
        if is_begun or any(not each.response_complete and each is not own for each in self._unanswered):
            self.transport.abort()
        else:
            super().send_400_response(msg)

    @property
    def _unanswered(self) -> Iterator[RequestResponseCycle | PlainExchange]:
        """Requests whose answer may be pending."""
        yield from self._cycles
        if self._exchange is not None:
            yield self._exchange

    def _refuse(self, why: str) -> None:
        if self._is_answering:
            self.transport.abort()
        else:
            self.send_400_response(why)


def _apply_proxy_headers(scope: Scope, app: ProxyHeadersMiddleware) -> Scope:
    """The scope with address and scheme as a trusted proxy states them, by the rules of uvicorn."""
    changed = dict(scope)
    rules = ProxyHeadersMiddleware(_ignore)
    rules.trusted_hosts = app.trusted_hosts
    step: Any = rules(changed, _ignore, _ignore)  # type: ignore[arg-type]
    with suppress(StopIteration):  # it waits for nothing
        step.send(None)
    return changed


async def _ignore(*_: object) -> Any:
    pass


class Handshake:
    """A connection until the end of its TLS handshake."""

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.address = address
        self._accepted = accepted
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False  # from then on the transport closes the socket

    def begin(self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext, pending: PendingHeads) -> None:
        """Begin; `make` makes the protocol of the connection."""
        self._task = asyncio.create_task(self._shake_hands(make, tls))
        self._task.add_done_callback(lambda _: pending.discard(self))

    def abort(self) -> None:
        """End it at once."""
        if self._task is not None:
            self._task.cancel()
        if not self._has_begun:
            self._accepted.close()

    async def _shake_hands(self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext) -> None:
        self._has_begun = True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make, self._accepted, ssl=tls, ssl_handshake_timeout=_HEAD
            )
        except OSError as error:  # of TLS, too
            _log.debug("no TLS connection with %s: %s", self.address, error)


def end_silent(connections: Iterable[Any], *, now: float) -> None:
    """Abort connections with overdue requests or readers; ignore connections of other classes."""
    for each in [each for each in connections if isinstance(each, ClientConnection)]:
        each.end_if_silent(now)
