"""Serving an application over HTTP: the socket, the signals, the banner at the right moment."""

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from pilotage.cli import connections
from pilotage.cli.failures import Refused
from pilotage.cli.settings import Settings

#: Seconds that requests under way get to end.
_GRACE = 10
#: Ticks of the server, ten a second, between two looks for clients that fell silent.
_LOOK_EVERY = 50
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 takes a free one.

    Raises:
        Refused: The address is taken, or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise Refused(f"cannot listen at {host}:{port}: {error.strerror} (choose another --port)") from None
    bound.set_inheritable(True)
    return bound


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """The URL under which this machine reaches what listens at the socket."""
    host, port = bound.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"{'https' if tls else 'http'}://{name}:{port}"


def serve(
    app: FastAPI,
    bound: socket.socket,
    chosen: Settings,
    *,
    tls: ssl.SSLContext | None,
    ready: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then end what is under way and return.

    Args:
        app: The application.
        bound: Where it listens.
        chosen: The settings of the installation.
        tls: What it speaks TLS with; None: it does not.
        ready: Called when requests are answered.
        ending: Called when the end was asked for, while requests are still answered.
    """
    config = configuration(app, log_level=chosen.log_level, tls=tls, trusted_proxies=chosen.trusted_proxies)
    with _signals_end_nothing_else():
        _Server(config, ready=ready, ending=ending).run(sockets=[bound])


def configuration(
    app: FastAPI,
    *,
    log_level: str,
    tls: ssl.SSLContext | None = None,
    trusted_proxies: Sequence[str] = (),
) -> uvicorn.Config:
    """How the server is to behave.

    Args:
        app: What it serves.
        log_level: From which level on it says what it does.
        tls: What it speaks TLS with; None: it does not.
        trusted_proxies: Addresses and networks whose word on where a request came from is taken.
    """
    return uvicorn.Config(
        app,
        log_config=None,
        log_level=log_level,
        access_log=log_level == "debug",
        timeout_graceful_shutdown=_GRACE,
        server_header=False,
        http=connections.Connection,
        ws="none",
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )


class _Server(uvicorn.Server):
    """A server that says when it is ready and when it is about to end."""

    def __init__(
        self, config: uvicorn.Config, *, ready: Callable[[], None], ending: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % _LOOK_EVERY == 0:
            now = asyncio.get_running_loop().time()
            connections.end_silent(self.server_state.connections, now=now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._ending)
        await super().shutdown(sockets)


@contextmanager
def _signals_end_nothing_else() -> Iterator[None]:
    """The server raises a signal again when it has ended; that must not cut off our own end."""
    before = {each: signal.signal(each, lambda *_: None) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
