"""Requests that are under way for longer than a service waits for them at its end."""

import asyncio
import json
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilotage.cli import settings
from pilotage.cli.processes import serve
from pilotage.cli.settings import Settings
from pilotage.service import app as app_of_service
from pilotage.service.app import create_app
from tests.support import wait
from tests.support.routes_by_role import QUEUE
from tests.support.service import running_on_sqlite, served


class Arriving:
    """An application, and whether a request for work has arrived."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.arrived = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path", "").endswith("requestJob"):
            self.arrived.set()
        await self._app(scope, receive, send)


def test_a_request_that_the_end_of_the_service_cuts_off_is_to_be_repeated(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its threads are waited for at the end, and it would wait for the database as the claim does.
    monkeypatch.setattr(app_of_service, "_record_uptime", lambda *_: None)
    site, ce, queue = QUEUE.split("/")
    body = {"Site": site, "GridCE": ce, "Queue": queue, "CPUTime": 100_000}
    with running_on_sqlite(sqlite_template, tmp_path) as service, ThreadPoolExecutor(1) as threads:
        service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
        token = service.token("pilot", vo="cms", queue=QUEUE)
        headers = {"Authorization": f"Bearer {token}", "Request-Timeout": "60"}
        app = Arriving(create_app(service.parts))
        with closing(sqlite3.connect(tmp_path / "test.db", isolation_level=None)) as other:
            with served(app) as url:  # type: ignore[arg-type]
                other.execute("BEGIN IMMEDIATE")  # the claim has to wait
                asked = threads.submit(
                    httpx.post,
                    f"{url}/api/v1/matcher/requestJob",
                    json=body,
                    headers=headers,
                    timeout=300,
                    trust_env=False,
                )
                assert app.arrived.wait(300)
            answer = asked.result(300)
            other.execute("ROLLBACK")
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "service_ending"
    assert "Retry-After" in answer.headers


def test_streams_of_events_end_with_the_service(sqlite_template: Path, tmp_path: Path) -> None:
    """They would last five minutes; running requests are waited for, and cut off as a last resort."""
    with running_on_sqlite(sqlite_template, tmp_path) as service:
        app = create_app(service.parts)
        config = serve.configuration(app, log_level="info")
        config.timeout_graceful_shutdown = None  # without an end of the streams it waits for ever
        with _serving(serve._Server(config, close=service.parts.job_events.close)) as (server, at):
            headers = {"Authorization": f"Bearer {service.token('user', vo='cms', user='ada')}"}
            url = f"{at}/api/v1/jobs/events"
            with httpx.stream("GET", url, headers=headers, timeout=300, trust_env=False) as answer:
                lines = answer.iter_lines()
                assert next(lines) == "retry: 1000"
                server.should_exit = True
                for _ in lines:
                    pass


@contextmanager
def _serving(server: serve._Server) -> Iterator[tuple[serve._Server, str]]:
    """A server in a thread, with its URL; it ends with the block, by itself or else by force."""
    begun = threading.Event()
    server._ready = begun.set
    server.config.timeout_keep_alive = 300  # an idle client closes first
    bound = serve.bind_socket("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        assert begun.wait(300)
        yield server, serve.url_of(bound)
    finally:
        server.should_exit = True
        thread.join(300)
        bound.close()
    assert not thread.is_alive()


def test_after_sigterm_it_is_not_ready_and_answers_on(sqlite_template: Path, tmp_path: Path) -> None:
    with running_on_sqlite(sqlite_template, tmp_path) as service:
        leaving = service.parts.leaving
        server = serve._Server(
            serve.configuration(create_app(service.parts), log_level="info"), leaving=leaving.set, delay=3600
        )
        with _serving(server) as (_, at), httpx.Client(base_url=at, timeout=300, trust_env=False) as client:
            assert client.get("/readyz").status_code == 200
            assert "connection" not in client.get("/healthz").headers
            server.handle_exit(signal.SIGTERM, None)
            assert leaving.wait(300)
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["checks"]) == (503, {"service": "is about to end"})
            with httpx.Client(base_url=at, timeout=300, trust_env=False) as other:
                answer = other.get("/.well-known/jwks.json")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            server.handle_exit(signal.SIGINT, None)


def test_ctrl_c_ends_it_without_a_delay(sqlite_template: Path, tmp_path: Path) -> None:
    with running_on_sqlite(sqlite_template, tmp_path) as service:
        app = create_app(service.parts)
        server = serve._Server(serve.configuration(app, log_level="info"), delay=3600)
        with _serving(server):
            server.handle_exit(signal.SIGINT, None)


class BodyParts:
    """An application, and the event loops in which it has got a part of a body that is not the last."""

    def __init__(self, app: ASGIApp, loops: list[asyncio.AbstractEventLoop]) -> None:
        self._app = app
        self._loops = loops

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_part() -> Message:
            message = await receive()
            if message.get("more_body", False):
                self._loops.append(asyncio.get_running_loop())
            return message

        await self._app(scope, receive_part, send)


def test_a_request_whose_body_still_comes_is_waited_for_as_long_as_is_set(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = settings.load({"home": tmp_path, "shutdown_grace": 3600, "log_level": "info"}, {})
    body = json.dumps({"jobs": [{"Executable": "x"}]}).encode()
    may_go_on = threading.Event()

    def send_halves() -> Iterator[bytes]:
        yield body[:9]
        may_go_on.wait(300)
        yield body[9:]

    with running_on_sqlite(sqlite_template, tmp_path) as service, ThreadPoolExecutor(1) as threads:
        app = create_app(service.parts)
        loops: list[asyncio.AbstractEventLoop] = []
        app.add_middleware(BodyParts, loops=loops)
        with _serving(_make_server(app, chosen, monkeypatch)) as (server, at):
            try:
                asked = threads.submit(
                    httpx.post,
                    f"{at}/api/v1/jobs",
                    content=send_halves(),
                    headers={
                        "Authorization": f"Bearer {service.token('user', vo='cms', user='ada')}",
                        "Content-Type": "application/json",
                        "Content-Length": str(len(body)),
                    },
                    timeout=300,
                    trust_env=False,
                )
                wait.until(lambda: loops)
                server.handle_exit(signal.SIGTERM, None)
                wait.until(lambda: "Waiting for connections to close" in caplog.text)
                later = _advance(100, monkeypatch)
                asyncio.run_coroutine_threadsafe(later, loops[0]).result(300)
            finally:
                may_go_on.set()
            answer = asked.result(300)
    assert answer.status_code == 201, answer.text


def _make_server(app: FastAPI, chosen: Settings, monkeypatch: pytest.MonkeyPatch) -> serve._Server:
    """The server that these settings make, which does not run yet."""
    made: list[serve._Server] = []
    with monkeypatch.context() as patched, socket.socket() as unused:
        patched.setattr(serve._Server, "run", lambda server, **_: made.append(server))
        patched.setattr(serve.sys, "setswitchinterval", lambda _: None)
        serve.serve_application(app, unused, chosen, tls=None)
    [server] = made
    server.config.loop = "asyncio"  # whose clock can be set
    return server


async def _advance(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock of this event loop forward, and let all happen that is due by then."""
    loop = asyncio.get_running_loop()
    before = loop.time
    monkeypatch.setattr(loop, "time", lambda: before() + seconds)
    for _ in range(100):
        await asyncio.sleep(0)
