"""Clients that read no answers, or read them slowly: over real connections, by a clock of the test."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cs_config.options import bounds
from examples.servers.certificates import Authority
from pilotage.cli.processes import serve
from pilotage.cli.processes.client_connections import ClientConnection

_GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
_LONG = 20 << 20
_BUFFER = 32 << 10

_Run = Callable[[Coroutine[Any, Any, None]], None]


class Application:
    """Answers with many bytes, and notes when they are sent."""

    def __init__(self, size: int = _LONG) -> None:
        self.size = size
        self.ended = 0
        self.is_streaming = False
        self.more = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [] if self.is_streaming else [(b"content-length", str(self.size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while self.is_streaming:
            await send({"type": "http.response.body", "body": b"event\n", "more_body": True})
            self.more.clear()
            await self.more.wait()
        await send({"type": "http.response.body", "body": bytes(self.size)})
        self.ended += 1


class Reader:
    """A client with a small buffer, and the clock of the server that serves it."""

    def __init__(self, client: socket.socket, server: serve._Server) -> None:
        self.client = client
        self._server = server
        self._now = asyncio.get_running_loop().time()

    async def connection(self) -> ClientConnection:
        while not self._server.connections.open:
            await asyncio.sleep(0)
        [found] = self._server.connections.open
        return found

    async def send(self, content: bytes) -> ClientConnection:
        """Send a request, and wait until no more of its answer can be sent."""
        await asyncio.get_running_loop().sock_sendall(self.client, content)
        connection = await self.connection()
        while connection._sent is None:
            await asyncio.sleep(0)
        return connection

    async def read(self, size: int) -> int:
        """Read so many bytes, fewer at the end of the connection; how many."""
        left = size
        while left and (got := await asyncio.get_running_loop().sock_recv(self.client, min(left, 1 << 16))):
            left -= len(got)
        return size - left

    def look(self, seconds: float) -> None:
        """Have the server look as if so much time had passed, five seconds at a time."""
        for _ in range(int(seconds / 5)):
            self._now += 5
            self._server.connections.end_silent(self._now)

    async def is_left(self) -> bool:
        """Wait until the server has closed the connection."""
        while self._server.connections.open:
            await asyncio.sleep(0)
        return True


def run_uvloop(work: Coroutine[Any, Any, None]) -> None:
    uvloop.run(work)


@pytest.fixture(params=[asyncio.run, run_uvloop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> _Run:
    found: _Run = request.param
    return found


def talk(run: _Run, app: Any, said: Callable[[Reader], Awaitable[None]]) -> None:
    """Let a client speak with a server."""

    async def go() -> None:
        bound = serve.bind_socket("127.0.0.1", 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        ready = asyncio.Event()
        config = serve.configuration(app, log_level="error")
        config.timeout_keep_alive = 300  # however slow the machine is, the next request comes in time
        server = serve._Server(config, ready=ready.set)
        server.on_tick = _no_tick  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(server.serve(sockets=[bound]))
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        client.setblocking(False)
        try:
            async with asyncio.timeout(300):
                await ready.wait()
                await asyncio.get_running_loop().sock_connect(client, bound.getsockname())
                await said(Reader(client, server))
        finally:
            client.close()
            stop.set()
            await task
            bound.close()

    stop = asyncio.Event()

    async def _no_tick(_counter: int) -> bool:
        return stop.is_set()

    run(go())


def test_an_answer_that_nobody_reads_is_given_up(run: _Run) -> None:
    app = Application()

    async def said(reader: Reader) -> None:
        connection = await reader.send(_GET)
        held = connection.transport.get_write_buffer_size()
        assert 0 < held <= bounds.ANSWER_PIECE, "the rest waits where it is counted"
        reader.look(30)
        assert not connection.transport.is_closing()
        assert not app.ended
        reader.look(10)
        assert await reader.is_left()
        while not app.ended:
            await asyncio.sleep(0)

    talk(run, app, said)


def test_an_answer_ends_when_the_last_byte_is_sent_and_the_next_one_follows(run: _Run) -> None:
    app = Application()

    async def said(reader: Reader) -> None:
        connection = await reader.send(_GET + _GET)
        await reader.read(_LONG - (1 << 20))
        assert not app.ended
        await reader.read(1 << 20)
        while app.ended < 1:
            await asyncio.sleep(0)
        reader.look(20)
        await reader.read(_LONG)
        while app.ended < 2:
            await asyncio.sleep(0)
        reader.look(1000)
        assert not connection.transport.is_closing()

    talk(run, app, said)


@pytest.mark.parametrize(("rate", "is_served"), [(15_000, True), (5_000, False)])
def test_a_reader_has_to_reach_the_least_rate(run: _Run, rate: int, *, is_served: bool) -> None:
    app = Application()

    async def said(reader: Reader) -> None:
        connection = await reader.send(_GET)
        for _ in range(40):
            # As much at a time as empties the buffers of the kernel by more than one step.
            taken = connection._written
            with suppress(ConnectionResetError):
                while connection._written == taken and not connection.transport.is_closing():
                    await reader.read(_BUFFER)
            reader.look(5 * round((connection._written - taken) / rate / 5))
        assert connection.transport.is_closing() is not is_served

    talk(run, app, said)


def test_a_client_that_closes_in_the_middle_ends_its_answer(run: _Run) -> None:
    app = Application()

    async def said(reader: Reader) -> None:
        await reader.send(_GET)
        reader.client.close()
        assert await reader.is_left()
        while not app.ended:
            await asyncio.sleep(0)

    talk(run, app, said)


def test_small_answers_that_nobody_reads_are_given_up(run: _Run) -> None:
    app = Application(size=1000)

    async def said(reader: Reader) -> None:
        connection, asked = await reader.connection(), 0
        while not connection.transport.get_write_buffer_size():
            await asyncio.get_running_loop().sock_sendall(reader.client, _GET)
            asked += 1
            while app.ended < asked:
                await asyncio.sleep(0)
        assert connection._sent is None
        reader.look(30)
        assert not connection.transport.is_closing()
        reader.look(10)
        assert await reader.is_left()

    talk(run, app, said)


def test_a_flood_of_requests_in_one_piece_is_read_as_it_is_answered(run: _Run) -> None:
    app, flood = Application(size=0), 3000

    async def said(reader: Reader) -> None:
        connection = await reader.connection()
        sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(reader.client, _GET * flood))
        while not app.ended:
            await asyncio.sleep(0)
        assert len(connection._kept_back) > (flood - 1000) * len(_GET) / 2, "the server got a few of them"
        while app.ended < flood:
            await reader.read(1000)
        await sending

    talk(run, app, said)


def test_a_stream_may_be_idle_and_not_unread(run: _Run) -> None:
    app = Application()
    app.is_streaming = True

    async def said(reader: Reader) -> None:
        await asyncio.get_running_loop().sock_sendall(reader.client, _GET)
        connection = await reader.connection()
        await reader.read(50)
        reader.look(1000)
        assert not connection.transport.is_closing()
        while not connection.transport.get_write_buffer_size():
            app.more.set()
            await asyncio.sleep(0)
        reader.look(40)
        assert await reader.is_left()
        app.is_streaming = False
        app.more.set()

    talk(run, app, said)


def test_pauses_of_the_service_itself_do_not_count(run: _Run) -> None:
    app = Application()

    async def said(reader: Reader) -> None:
        connection = await reader.send(_GET)
        reader.look(5)
        reader._now += 3600
        reader.look(5)
        assert not connection.transport.is_closing()

    talk(run, app, said)


def test_over_tls_few_bytes_wait_uncounted(run: _Run, tmp_path: Path) -> None:
    app = Application()
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)

    async def go() -> None:
        bound, ready = serve.bind_socket("127.0.0.1", 0), asyncio.Event()
        server = serve._Server(serve.configuration(app, log_level="error"), tls=tls, ready=ready.set)
        task = asyncio.create_task(server.serve(sockets=[bound]))
        await ready.wait()
        reader, writer = await asyncio.open_connection(
            *bound.getsockname(), ssl=trusting, server_hostname="localhost", limit=1000
        )
        try:
            async with asyncio.timeout(300):
                writer.write(_GET)
                await reader.readuntil(b"\r\n\r\n")
                [connection] = server.connections.open
                while connection._sent is None:
                    await asyncio.sleep(0)
                assert connection._written < _LONG - (10 << 20)
                assert connection.transport.get_write_buffer_size() <= 2 * bounds.ANSWER_PIECE
                assert not app.ended
                await reader.readexactly(_LONG)
                while not app.ended:
                    await asyncio.sleep(0)
        finally:
            writer.transport.abort()
            server.should_exit = True
            await task
            bound.close()

    run(go())
