"""`pilotage serve`: the HTTP service, and the server with its socket and signals that `up` shares."""

import asyncio
import itertools
import logging
import math
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from types import FrameType

import typer
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.types import ASGIApp

from cs_config import gc_tuning, notifications
from cs_config.options import bounds
from cs_config.versions.store import LiveConfiguration
from matcher.claim.claim_thread import ClaimWorker
from matcher.claim.matcher import Matcher
from optimizers.workers.inline import InlineOptimizer
from pilotage.cli import engine as cli_engine
from pilotage.cli import process_setup, settings, wiring
from pilotage.cli.engine import LastSeen
from pilotage.cli.errors import CommandRefused
from pilotage.cli.processes import tls
from pilotage.cli.processes.client_connections import BegunConnection, ClientConnections, LimitedRequests
from pilotage.cli.settings import Settings
from pilotage.service.app import create_app
from pilotage.service.auth import keys, rate_limits
from pilotage.service.auth.keys import KeyFile
from pilotage.service.auth.rate_limits import RateLimiter, SharedRates
from pilotage.service.auth.tokens import Tokens
from pilotage.service.lease_reports import RunningJobs
from pilotage.service.metrics import Metrics
from pilotage.service.services import Services
from taskqueue.db import replica
from taskqueue.jobs.optimizer_queue import OptimizerQueueState

_log = logging.getLogger(__name__)

#: Connections that a process accepts at a time, and seconds that it leaves to the others at its socket then:
#: the kernel wakes the same one first each time, and of many connections each is to get its share.
_ACCEPTED = 4
_TURN = 0.002
#: Seconds until the next try where no connection can be accepted.
_PAUSE = 1.0
#: Seconds between two readings of the number of running jobs, by which heartbeats become rarer.
_COUNT_EVERY = 30.0
#: Seconds between two ticks of the server.
_TICK = 0.1
#: Ticks between two checks for silent clients.
_LOOK_EVERY = 50
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds for which a thread may keep the interpreter from another one that waits for it. With Python's own
#: five milliseconds the event loop, which waits once for each system call, is late by tens of them beside two
#: explanations; with this one by a tenth of that, for two percent more processor time.
_LONGEST_TURN = 0.001


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Its connections have the same: else the kernel takes megabytes of an answer that nobody reads.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 2 * bounds.ANSWER_PIECE)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise CommandRefused(
            f"cannot listen at {host}:{port}: {error.strerror} (choose another --port)"
        ) from None
    bound.set_inheritable(True)
    return bound


def url_of(bound: socket.socket, *, tls: bool = False, name: str | None = None) -> str:
    """The URL of the socket for clients on this machine; `name` is for one that listens on all addresses."""
    host, port = bound.getsockname()[:2]
    every = {"0.0.0.0": name or "127.0.0.1", "::": name or "[::1]"}  # noqa: S104
    name = every.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if tls else 'http'}://{name}:{port}"


def serve_application(
    app: FastAPI,
    bound: socket.socket,
    chosen: Settings,
    *,
    tls: ssl.SSLContext | None,
    ready: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then finish running requests and return.

    `ready` is called when the server accepts requests, `ending` at shutdown, while it still does. Streams of
    events are ended then: they would last longer than running requests are waited for.
    """
    sys.setswitchinterval(_LONGEST_TURN)
    config = configuration(
        app,
        log_level=chosen.log_level,
        trusted_proxies=chosen.trusted_proxies,
        grace=max(0.0, chosen.shutdown_grace - chosen.shutdown_delay),
    )
    parts: Services = app.state.parts
    server = _Server(
        config,
        tls=tls,
        ready=ready,
        leaving=parts.leaving.set,
        ending=ending,
        close=parts.job_events.close,
        delay=chosen.shutdown_delay,
        is_alone=chosen.workers == 1,
    )
    with _keep_signals():
        server.run(sockets=[bound])


def configuration(
    app: ASGIApp,
    *,
    log_level: str,
    trusted_proxies: Sequence[str] = (),
    grace: float = 10.0,
    files: int | None = None,
) -> uvicorn.Config:
    """The settings of uvicorn; `debug` also logs each request. `files` as for `ClientConnections`.

    `grace`: seconds that running requests have at the end.
    """
    own = uvicorn.Config(app, log_config=None)  # whose protocol is the one that fits the installed packages
    own.load()
    connections = ClientConnections(own.http_protocol_class, by_address=not trusted_proxies, files=files)
    return uvicorn.Config(
        LimitedRequests(app),
        log_config=None,
        log_level=log_level,
        access_log=log_level == "debug",
        timeout_graceful_shutdown=math.ceil(grace),
        server_header=False,
        http=connections,  # type: ignore[arg-type]
        ws="none",
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
    )


class _Server(uvicorn.Server):
    """A server with callbacks at startup and before shutdown, which accepts connections itself.

    After SIGTERM it goes on answering for `delay` seconds, with the end of the connection, and is not ready:
    balancers send what is new elsewhere. A signal by Ctrl-C ends that.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        tls: ssl.SSLContext | None = None,
        ready: Callable[[], None] = lambda: None,
        leaving: Callable[[], None] = lambda: None,
        ending: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
        delay: float = 0.0,
        is_alone: bool = True,
    ) -> None:
        super().__init__(config)
        self._is_alone = is_alone
        self._accepts = True
        self._leaving = leaving
        self._delay = delay
        self._is_terminated = False
        self.connections: ClientConnections = config.http  # type: ignore[assignment]
        self._tls = tls
        self._close = close
        self._ready = ready
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would take all connections that wait, and neither count handshakes nor end the oldest.
        await super().startup([])
        for each in sockets or ():
            each.listen(self.config.backlog)
            each.settimeout(0)
            self._accept_from(each)
        self._ready()

    def _accept_from(self, bound: socket.socket) -> None:
        if self._accepts:
            asyncio.get_running_loop().add_reader(bound, self._accept_some, bound)

    def _accept_some(self, bound: socket.socket) -> None:
        """Take a few of the connections that wait, and leave the next to other processes at this socket."""
        pause = 0.0 if self._is_alone else _TURN
        try:
            for _ in range(_ACCEPTED):
                self._take(*bound.accept())
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass  # no more wait
        except OSError as error:  # such as too many open files
            _log.warning("no connection can be accepted: %s", error)
            pause = _PAUSE
        if pause:
            loop = asyncio.get_running_loop()
            loop.remove_reader(bound)
            loop.call_later(pause, self._accept_from, bound)

    def _take(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        accepted.settimeout(0)
        begun = BegunConnection(accepted, address[0])
        self.connections.add(begun, now=asyncio.get_running_loop().time())
        made = partial(
            self.connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        begun.begin(made, self._tls, self.connections)

    async def on_tick(self, counter: int) -> bool:
        if counter % _LOOK_EVERY == 0:
            self.connections.end_silent(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._is_terminated = sig == signal.SIGTERM
        super().handle_exit(sig, frame)

    async def _answer_on(self) -> None:
        """Answer until balancers have noticed; the connections that are left have been silent for long."""
        self._leaving()
        self.config.encoded_headers.append((b"connection", b"close"))
        loop = asyncio.get_running_loop()
        until = loop.time() + (self._delay if self._is_terminated else 0)
        ticks = itertools.count()
        while loop.time() < until and not self.force_exit:
            await self.on_tick(next(ticks))
            await asyncio.sleep(_TICK)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._answer_on()
        await asyncio.to_thread(self._ending)
        self._accepts = False  # also after the pause that may be on
        for each in sockets or ():
            asyncio.get_running_loop().remove_reader(each)
        self._close()
        await super().shutdown(sockets)
        # No request comes any more while the threads end: it would be cut off in its middle.
        for connection in list(self.connections.open):
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


OptimizerNotifier = Callable[[Sequence[int]], None]


@contextmanager
def run_services(settings: Settings, engine: Engine) -> Iterator[Services]:
    """All parts of a service process with their threads started; they stop in reverse order."""
    with ExitStack() as stack:
        seen = stack.enter_context(wiring.track_last_seen(settings, engine))
        hub = stack.enter_context(wiring.open_notifications(settings, engine))
        clock = stack.enter_context(wiring.track_clock(engine))
        live = stack.enter_context(wiring.track_configuration(engine, hub, clock))
        metrics = Metrics()
        matcher = Matcher(engine, lambda: live.current, clock)
        claimer = ClaimWorker(engine, matcher)
        trusted = wiring.trusted_issuers(settings.issuers)
        claimer.start()
        stack.callback(claimer.stop)
        hub.subscribe(notifications.CHANGES, matcher.notify)
        hub.subscribe(notifications.CHANGES, claimer.wake)
        rates = RateLimiter()
        if settings.redis_url is not None:
            exchange = SharedRates(rates, settings.redis_url).exchange
            stack.enter_context(wiring.repeat_in_thread(exchange, name="rates", every=rate_limits.EVERY))
        running = RunningJobs(engine)
        stack.enter_context(wiring.repeat_in_thread(running.read, name="running jobs", every=_COUNT_EVERY))
        notify_optimizers, optimizer_queue = stack.enter_context(
            _open_optimizer_queue(settings, engine, live, clock, metrics)
        )
        parts = Services(
            engine=engine,
            rates=rates,
            live=live,
            matcher=matcher,
            claimer=claimer,
            blobs=wiring.open_blobs(settings),
            tokens=_tokens(settings, seen),
            issuers=trusted,
            notify_optimizers=notify_optimizers,
            optimizer_queue=optimizer_queue,
            metrics=metrics,
            clock=clock,
            clock_problem=lambda: clock.problem,
            commit_age=lambda: seen.commit_age,
            running_jobs=lambda: running.count,
            settings_of=settings.of,
            direct_url=settings.direct_url,
            certificate=settings.tls_certificate,
            replica_engine=stack.enter_context(wiring.open_replica(settings)),
        )
        if parts.replica.is_configured:
            look = wiring.repeat_in_thread(parts.replica.look, name="replica", every=replica.EVERY)
            stack.enter_context(look)
        yield parts


def _tokens(settings: Settings, seen: LastSeen) -> Tokens:
    file = KeyFile(settings.key)  # created before the key is read, so that no later change is missed
    ring = keys.load_or_create(settings.key)
    return Tokens(ring, changed=file.changed, incarnation=lambda: seen.incarnation)


@contextmanager
def _open_optimizer_queue(
    settings: Settings,
    engine: Engine,
    live: LiveConfiguration,
    clock: Callable[[], datetime],
    metrics: Metrics,
) -> Iterator[tuple[OptimizerNotifier, Callable[[], OptimizerQueueState | None]]]:
    """The notifier of the optimizers (workers through Redis, or a local thread), and their state."""
    if settings.redis_url is not None:
        from optimizers.workers.rq import RQNotifier

        notifier = RQNotifier(settings.redis_url)
        yield notifier.notify, notifier.read_state
        return
    optimizer = InlineOptimizer(engine, lambda: live.current, clock=clock, observe=metrics.optimized)
    optimizer.start()
    try:
        yield optimizer.notify, lambda: None
    finally:
        optimizer.stop()


@settings.command_with(
    *("host", "port", "tls_certificate", "tls_key", "workers", "resources"),
    *("database_url", "redis_url", "log_level"),
)
def serve(chosen: Settings, *, as_json: bool) -> None:
    """Run the HTTP service; several can run, on any hosts, behind a load balancer.

    Run `pilotage db upgrade` first; workers and agents are separate processes. SIGINT or SIGTERM stops the
    service. With --json, log lines are JSON.

    Example: `pilotage serve --port 8443 --tls-certificate host.pem --tls-key host.key`.
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
        run_services(chosen, engine) as parts,
        tls.watch_certificate(tls.read_certificate(chosen)) as context,
    ):
        serve_application(create_app(parts), bound, chosen, tls=context)
