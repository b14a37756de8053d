"""`pilotage serve`: the HTTP service, and the server with its socket and signals that `up` shares.

uvicorn limits neither size, time nor number of heads of requests, which are read before any token is checked:
the server limits all three.
"""

import asyncio
import logging
import signal
import socket
import ssl
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import typer
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from cs_config import gc_tuning
from pilotage.cli import engine as cli_engine
from pilotage.cli import process_setup, settings, wiring
from pilotage.cli.errors import CommandRefused
from pilotage.cli.processes import tls
from pilotage.cli.settings import Settings
from pilotage.service.app import create_app

_log = logging.getLogger(__name__)

#: Seconds that running requests have to finish.
_GRACE = 10
#: Seconds for which a thread keeps the interpreter while others wait for it. The event loop gives it away
#: with each wait for a socket, and would often get it back only after Python's default of 5 ms.
_TURN = 0.0005
#: Seconds until the next try where no connection can be accepted.
_PAUSE = 1.0
#: Ticks of the server, ten a second, between two checks for silent clients.
_LOOK_EVERY = 50
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise CommandRefused(
            f"cannot listen at {host}:{port}: {error.strerror} (choose another --port)"
        ) from None
    bound.set_inheritable(True)
    return bound


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """The URL of the socket for clients on this machine."""
    host, port = bound.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"{'https' if tls else 'http'}://{name}:{port}"


def serve_application(
    app: FastAPI,
    bound: socket.socket,
    chosen: Settings,
    *,
    tls: ssl.SSLContext | None,
    ready: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
    connection: "type[ClientConnection] | None" = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish running requests and return.

    `ready` is called when the server accepts requests, `ending` at shutdown, while it still does. Streams of
    events are ended then: they would last longer than running requests are waited for.
    """
    config = configuration(
        app, log_level=chosen.log_level, trusted_proxies=chosen.trusted_proxies, connection=connection
    )
    close = app.state.parts.job_events.close
    sys.setswitchinterval(_TURN)
    with _keep_signals():
        _Server(config, tls=tls, ready=ready, ending=ending, close=close).run(sockets=[bound])


def configuration(
    app: FastAPI,
    *,
    log_level: str,
    trusted_proxies: Sequence[str] = (),
    connection: "type[ClientConnection] | None" = None,
    files: int | None = None,
) -> uvicorn.Config:
    """The settings of uvicorn; the level `debug` also logs each request. `files` as for `PendingHeads`."""
    pending = PendingHeads(by_address=not trusted_proxies, files=files)
    return uvicorn.Config(
        app,
        log_config=None,
        log_level=log_level,
        access_log=log_level == "debug",
        timeout_graceful_shutdown=_GRACE,
        server_header=False,
        http=partial(connection or ClientConnection, pending=pending),  # type: ignore[arg-type]
        ws="none",
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
    )


class _Server(uvicorn.Server):
    """A server with callbacks at startup and before shutdown, and with bounded TLS handshakes."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        tls: ssl.SSLContext | None = None,
        ready: Callable[[], None] = lambda: None,
        ending: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._close = close
        self._ready = ready
        self._ending = ending
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would neither count handshakes nor end the oldest of too many.
        await super().startup(sockets if self._tls is None else [])
        if self._tls is not None:
            for each in sockets or ():
                each.listen(self.config.backlog)
                each.settimeout(0)
                accepting = asyncio.create_task(self._accept_tls(each, self._tls))
                accepting.add_done_callback(self._stop_unless_cancelled)
                self._accepting.append(accepting)
        self._ready()

    async def _accept_tls(self, bound: socket.socket, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        protocol: Any = self.config.http_protocol_class
        made = partial(
            protocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        pending: PendingHeads = protocol.keywords["pending"]
        while True:
            try:
                accepted, address = await loop.sock_accept(bound)
            except OSError as error:
                _log.warning("no connection can be accepted: %s", error)
                await asyncio.sleep(_PAUSE)
            else:
                handshake = _Handshake(accepted, str(address[0]))
                pending.add(handshake, now=loop.time())
                handshake.begin(made, tls, pending)
                await asyncio.sleep(0)  # a full queue of connections must not keep the others waiting

    def _stop_unless_cancelled(self, task: asyncio.Task[None]) -> None:
        """Shut down after an error of the program in the loop: else nobody would be served unnoticed."""
        if not task.cancelled():
            _log.error("connections are no longer accepted", exc_info=task.exception())
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if counter % _LOOK_EVERY == 0:
            now = asyncio.get_running_loop().time()
            end_silent(self.server_state.connections, now=now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._ending)
        for each in self._accepting:
            each.cancel()
        self._close()
        await super().shutdown(sockets)
        # No request comes any more while the threads end: it would be cut off in its middle.
        for connection in list(self.server_state.connections):
            if isinstance(connection, ClientConnection):
                connection.abort()


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again at its end: it would interrupt our own cleanup."""
    before = {each: signal.signal(each, lambda *_: None) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@settings.command_with(
    *("host", "port", "tls_certificate", "tls_key", "workers", "resources"),
    *("database_url", "redis_url", "log_level"),
)
def serve(chosen: Settings, *, as_json: bool) -> None:
    """Run the HTTP service; several can run, on any hosts, behind a load balancer.

    Run `pilotage db upgrade` first; workers and agents are separate processes. SIGINT or SIGTERM stops the
    service. With --json, log lines are JSON.
    """
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    tls.read_certificate(chosen)
    process_setup.raise_file_limit()
    with cli_engine.translate_unreachable(chosen.database_url), wiring.open_current_engine(chosen) as engine:
        wiring.import_resources(engine, chosen)
    bound = bind_socket(chosen.host, chosen.port)
    typer.echo(f"pilotage serves {url_of(bound, tls=chosen.tls_certificate is not None)}", err=True)
    one = partial(run, chosen, bound, as_json=as_json)
    if chosen.workers == 1:
        one()
    else:
        # While this process holds the socket open, the kernel would accept connections that no one serves.
        process_setup.keep_alive(one, chosen.workers, ending=bound.close)


def run(chosen: Settings, bound: socket.socket, *, as_json: bool) -> None:
    """Run one process of the service."""
    process_setup.configure_logs(chosen.log_level, as_json=as_json)
    gc_tuning.collect_seldom()
    with (
        wiring.open_current_engine(chosen) as engine,
        wiring.run_services(chosen, engine) as parts,
        tls.watch_certificate(tls.read_certificate(chosen)) as context,
    ):
        serve_application(create_app(parts), bound, chosen, tls=context)


#: Limit in bytes between two steps of a request; a head with the token of a large community is smaller.
_LONGEST = 64 << 10
#: Limit in seconds for the head of a request, from its first byte or from the connection.
_HEAD = 30.0
#: Limit in seconds without a byte of a body; longer than the timeouts of the readers of a body.
_SILENCE = 120.0


#: Shares of the open files that connections without a whole head may use: in all, and from one address.
_PENDING_SHARE = 4
_ADDRESS_SHARE = 16
#: Seconds between two lines in the log about too many of them.
_COMPLAIN_EVERY = 60.0


class _Incomplete(Protocol):
    """A connection without a whole head."""

    @property
    def address(self) -> str:
        """The host at the other end."""

    def abort(self) -> None:
        """Close it at once."""


class PendingHeads:
    """Connections that wait for the rest of a handshake or head; of too many the oldest are closed.

    A client of good will sends a head at once, so that it is never among the oldest for long.
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


class ClientConnection(HttpToolsProtocol):
    """An HTTP/1.1 connection with limits."""

    _received = 0  # bytes since the last step
    _received_at = 0.0  # on the clock of the loop
    _head_since: float | None = None  # None: no head is being read
    _is_open = False  # whether a request has started and is not complete

    def __init__(self, *args: Any, pending: PendingHeads, **named: Any) -> None:
        super().__init__(*args, **named)
        self._pending = pending

    @property
    def address(self) -> str:
        """The host at the other end."""
        return self.client[0] if self.client else ""

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the limits of the first head."""
        super().connection_made(transport)
        self._received_at = self._head_since = self.loop.time()
        self._pending.add(self, now=self._received_at)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all limits."""
        self._pending.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count received bytes, and reject a head that is too long."""
        self._received_at = self.loop.time()
        self._received += len(data)
        super().data_received(data)
        if self._head_since is None or self.transport.is_closing():
            self._pending.discard(self)
        else:
            self._pending.add(self, now=self._received_at)
        if self._received > _LONGEST and not self.transport.is_closing():
            self._refuse()

    def on_message_begin(self) -> None:
        """Start the time limit of a head."""
        super().on_message_begin()
        self._head_since, self._is_open = self._received_at, True

    def on_headers_complete(self) -> None:
        """End the limits of the head."""
        self._received, self._head_since = 0, None
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.transport = _JoinedWrites(self.transport)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Reset the byte count: bodies are limited elsewhere."""
        self._received = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Mark the request as complete."""
        self._received, self._is_open = 0, False
        super().on_message_complete()

    def end_if_silent(self, now: float) -> None:
        """Abort the connection if a request, or the rest of one, is overdue on the clock of the loop."""
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


class _Handshake:
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


#: Status line of an interim response, which has no body.
_CONTINUE = b"HTTP/1.1 100 "


class _JoinedWrites:
    """The transport of one response: its head is written with the first part of its body.

    Two writes are two system calls and wake the client twice: a seventh of the event loop's time per match.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None  #: None: not written yet; empty: sent

    def write(self, data: bytes) -> None:
        """Write a part of the response; the head waits for what follows."""
        if self._head is None and not data.startswith(_CONTINUE):
            self._head = data
        elif self._head:
            self._transport.writelines((self._head, data))
            self._head = b""
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection, after a head without a body."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self._transport.is_closing()


def end_silent(connections: Iterable[Any], *, now: float) -> None:
    """Abort connections with overdue requests; ignore connections of other classes."""
    for each in [each for each in connections if isinstance(each, ClientConnection)]:
        each.end_if_silent(now)
