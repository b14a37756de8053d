"""Clients that send no end of a request, or none at all: over real connections, by a clock of the test."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from pilotage.cli import process_setup
from pilotage.cli.processes import serve
from pilotage.cli.processes.client_connections import ClientConnection, ClientConnections

_REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"
_POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"


async def _app(_scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, and says how long it was."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0)


@dataclass
class Client:
    """One that speaks with a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connections: ClientConnections  #: of the server

    def write(self, content: bytes) -> None:
        self.writer.write(content)

    async def answer(self) -> tuple[bytes, bytes]:
        """The status line, and the body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        return head.partition(b"\r\n")[0], await self.reader.readexactly(length)

    async def two_answers(self) -> list[tuple[bytes, bytes]]:
        return [await self.answer(), await self.answer()]

    async def heard(self) -> None:
        """Wait until a request is being read."""
        await until(lambda: any(each._request and each._request.is_awaited for each in self.connections.open))

    async def accepted(self) -> ClientConnection:
        """The connection of the client."""
        await until(lambda: self.connections.open)
        [connection] = self.connections.open
        return connection

    async def look(self, seconds: float) -> None:
        """Look for silent clients, as if so much time had passed since this one said anything."""
        connection = await self.accepted()
        self.connections.end_silent(connection._received_at + seconds)

    async def is_left(self) -> None:
        """The server has ended the connection without an answer."""
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await self.reader.readexactly(1)


def talk(
    said: Callable[[Client], Awaitable[None]], *, level: str = "error", app: Any = _app, idle: int = 300
) -> None:
    """Let a client speak with a server, which closes a connection that is idle for some seconds.

    However slow the machine is, the next request comes in time.
    """

    async def run() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        config = serve.configuration(app, log_level=level)
        config.timeout_keep_alive = idle
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[bound]))
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        try:
            async with asyncio.timeout(300):
                assert isinstance(config.http, ClientConnections)
                await said(Client(reader, writer, config.http))
        finally:
            writer.transport.abort()
            server.should_exit = True
            await task
            bound.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "endless",
    [b"GET /" + b"a" * 100_000, _REQUEST + b"X: " + b"a" * 100_000, _REQUEST + b"X: a\r\n" * 20_000],
    ids=["address", "header", "headers"],
)
def test_a_head_without_an_end_is_refused(endless: bytes):
    async def said(client: Client) -> None:
        client.write(endless)
        status, body = await client.answer()
        assert (status, body) == (b"HTTP/1.1 400 Bad Request", b"A head has 65536 bytes at most.")
        assert await client.reader.read() == b""

    talk(said)


def test_a_body_may_be_longer_than_a_head_and_requests_may_follow_each_other():
    async def said(client: Client) -> None:
        for _number in range(3):
            client.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"a" * 300_000)
            assert await client.answer() == (b"HTTP/1.1 200 OK", b"300000")
            client.write(_REQUEST + b"X: " + b"a" * 40_000 + b"\r\n\r\n")
            assert await client.answer() == (b"HTTP/1.1 200 OK", b"0")

    talk(said)


@pytest.mark.parametrize("begun", [b"", _REQUEST])
def test_who_does_not_come_to_the_end_of_a_head_is_left(begun: bytes):
    async def said(client: Client) -> None:
        client.write(begun)
        await client.look(29)
        assert not client.reader.at_eof()
        await client.look(31)
        await client.is_left()

    talk(said)


def test_a_beginning_of_a_head_that_came_with_a_whole_request_is_idle():
    async def said(client: Client) -> None:
        client.write(_REQUEST + b"\r\n" + _REQUEST)
        await client.answer()
        await client.is_left()

    talk(said, idle=1)


def test_who_falls_silent_within_a_body_is_left_and_who_goes_on_is_not():
    async def said(client: Client) -> None:
        client.write(_POST + b"12345")
        await client.heard()
        await client.look(119)
        client.write(b"67890")
        assert await client.answer() == (b"HTTP/1.1 200 OK", b"10")
        await client.look(1000)
        client.write(_POST + b"12345")
        await client.heard()
        await client.look(121)
        await client.is_left()

    talk(said)


@pytest.mark.parametrize(("size", "is_late"), [(1, True), (100_000, False)])
def test_a_body_has_to_come_at_the_least_rate(size: int, *, is_late: bool):
    async def said(client: Client) -> None:
        client.write(_POST.replace(b"10", b"%d" % (30 * size)))
        await client.heard()
        connection = await client.accepted()
        now = connection._received_at
        for part in range(1, 26):
            client.write(b"a" * size)
            while connection._read < part * size:
                await asyncio.sleep(0)
            connection._received_at = now = now + 8
            client.connections.end_silent(now)
        assert connection.transport.is_closing() is is_late

    talk(said)


def test_a_client_that_waits_to_send_its_body_is_told_to_go_on():
    async def said(client: Client) -> None:
        client.write(_POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        client.write(b"0123456789")
        assert await client.answer() == (b"HTTP/1.1 200 OK", b"10")

    talk(said)


_UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize("head", [_POST, _POST.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked")])
def test_the_body_of_a_request_for_another_protocol_is_not_taken_for_the_next_request(head: bytes):
    async def said(client: Client) -> None:
        client.write(head.replace(b"\r\n\r\n", b"\r\n" + _UPGRADE + b"\r\n"))
        status, body = await client.answer()
        assert status == b"HTTP/1.1 400 Bad Request"
        assert b"without the header Upgrade" in body
        with suppress(ConnectionError):
            client.write(_REQUEST + b"\r\n")
            assert await client.reader.read() == b""

    talk(said)


def test_a_request_for_another_protocol_is_not_answered_before_the_one_that_came_earlier():
    async def said(client: Client) -> None:
        second = _POST.replace(b"\r\n\r\n", b"\r\n" + _UPGRADE + b"\r\n")
        client.write(_POST + b"0123456789" + second)
        assert await client.answer() == (b"HTTP/1.1 200 OK", b"10")
        assert (await client.answer())[0] == b"HTTP/1.1 400 Bad Request"
        assert await client.reader.read() == b""

    talk(said)


def test_a_request_for_another_protocol_is_answered_and_is_the_last_one():
    async def said(client: Client) -> None:
        client.write(_REQUEST + _UPGRADE + b"\r\n" + _REQUEST + b"\r\n")
        assert await client.answer() == (b"HTTP/1.1 200 OK", b"0")
        with suppress(ConnectionError):
            client.write(_REQUEST + b"\r\n")
            assert await client.reader.read() == b""

    talk(said)


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"nonsense\r\n\r\n", b"400 Bad Request"), (_REQUEST + _UPGRADE + b"\r\n", b"200 OK")],
    ids=["nonsense", "another protocol"],
)
def test_what_is_no_http_writes_no_line_into_the_log(
    content: bytes, status: bytes, capsys: pytest.CaptureFixture[str]
):
    async def said(client: Client) -> None:
        client.write(content)
        assert (await client.answer())[0] == b"HTTP/1.1 " + status

    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        process_setup.configure_logs("warning")
        talk(said, level="warning")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert not capsys.readouterr().err


class _Peer:
    """A connection of which only the address matters."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_of_too_many_connections_without_a_whole_head_the_oldest_are_closed(
    caplog: pytest.LogCaptureFixture,
):
    pending = ClientConnections(
        asyncio.Protocol, by_address=True, files=160
    )  # 40 in all, 10 from one address
    flood = [_Peer("192.0.2.1") for _ in range(30)]
    honest = _Peer("192.0.2.2")
    for number, each in enumerate([*flood[:15], honest, *flood[15:]]):
        pending.add(each, now=number)  # type: ignore[arg-type]
    assert [each.is_aborted for each in flood] == [True] * 20 + [False] * 10
    assert not honest.is_aborted
    others = [_Peer(f"198.51.100.{number}") for number in range(40)]
    for each in others:
        pending.add(each, now=100)  # type: ignore[arg-type]
    assert [each.is_aborted for each in (*flood[20:], honest)] == [True] * 11
    assert not any(each.is_aborted for each in others)
    for each in (*others, *flood):
        pending.discard(each)  # type: ignore[arg-type]
    assert not pending._all
    assert not pending._by_address
    assert [record.args[2] for record in caplog.records] == ["192.0.2.1", "198.51.100.29"]


def test_behind_a_proxy_all_come_from_one_address():
    pending = ClientConnections(asyncio.Protocol, by_address=False, files=160)
    peers = [_Peer("192.0.2.1") for _ in range(40)]
    for each in peers:
        pending.add(each, now=0)  # type: ignore[arg-type]
    assert not any(each.is_aborted for each in peers)


def test_only_connections_without_a_whole_head_are_counted():
    async def said(client: Client) -> None:
        connection = await client.accepted()
        assert list(client.connections._all) == [connection]
        client.write(_REQUEST + b"\r\n")
        await client.answer()
        assert not client.connections._all
        client.write(_REQUEST)
        await until(lambda: connection.head_since is not None)
        await client.look(5)
        assert list(client.connections._all) == [connection]
        client.writer.transport.abort()
        await until(lambda: not client.connections._all)

    talk(said)


async def answer_nothing(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Held:
    """An application that answers when the test wants it, and notes who has gone."""

    def __init__(self) -> None:
        self.requests = self.gone = 0
        self.goes_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.requests += 1
        await receive()
        if not self.goes_on.is_set():
            await asyncio.wait(
                [asyncio.ensure_future(receive()), asyncio.ensure_future(self.goes_on.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
        self.gone += not self.goes_on.is_set()
        await answer_nothing(send)


@pytest.mark.parametrize(
    ("behind", "answers"),
    [(b"GARBAGE\r\n\r\n", [b"400 Bad Request"]), ((_REQUEST + b"\r\n") * 9, [b"200 OK"] * 9)],
    ids=["garbage", "requests"],
)
def test_what_comes_behind_a_request_is_read_when_this_one_is_answered(behind: bytes, answers: list[bytes]):
    app = Held()

    async def said(client: Client) -> None:
        client.write(_REQUEST + b"\r\n")
        await until(lambda: app.requests)
        client.write(behind)
        connection = await client.accepted()
        await until(lambda: connection._kept_back == behind)
        assert app.requests == 1
        app.goes_on.set()
        for expected in (b"200 OK", *answers):
            assert (await client.answer())[0] == b"HTTP/1.1 " + expected

    talk(said, app=app)


@pytest.mark.parametrize("others", [0, 9])
def test_who_has_gone_is_noticed_also_behind_other_requests(others: int):
    app = Held()

    async def said(client: Client) -> None:
        client.write((_REQUEST + b"\r\n") * (1 + others))
        await until(lambda: app.requests)
        connection = await client.accepted()
        assert not connection.is_gone()
        client.writer.transport.abort()
        await until(lambda: app.gone)
        assert connection.is_gone()

    talk(said, app=app)
    assert app.requests == 1


def test_more_than_a_head_that_comes_behind_a_request_waits_in_the_network():
    app = Held()

    async def said(client: Client) -> None:
        client.write(_REQUEST + b"\r\n")
        await until(lambda: app.requests)
        connection = await client.accepted()
        client.write(_POST.replace(b"10", b"10000000") + bytes(10_000_000))
        await until(lambda: not connection.transport.is_reading())
        assert len(connection._kept_back) < 1_000_000
        app.goes_on.set()
        for _ in range(2):
            assert (await client.answer())[0] == b"HTTP/1.1 200 OK"

    talk(said, app=app)


@pytest.mark.parametrize("reads", [False, True])
def test_of_a_long_body_little_waits_in_memory(reads: bool):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and reads:
            await _app(scope, receive, send)
        elif scope["type"] == "http":
            await answer_nothing(send)

    async def said(client: Client) -> None:
        connection = await client.accepted()
        client.write(_POST.replace(b"10", b"20000000") + bytes(20_000_000) + _REQUEST + b"\r\n")
        answers = asyncio.create_task(client.two_answers())
        most = 0
        while not answers.done():
            most = max(most, len(connection._kept_back))
            await asyncio.sleep(0)
        assert {status for status, _ in await answers} == {b"HTTP/1.1 200 OK"}
        assert most < 1_000_000

    talk(said, app=app)


def test_the_rest_of_a_body_that_nobody_reads_is_skipped():
    async def app(scope: Any, _: Any, send: Any) -> None:
        if scope["type"] == "http":
            await answer_nothing(send)

    async def said(client: Client) -> None:
        for _ in range(2):
            client.write(_POST.replace(b"10", b"300000") + b"a" * 100_000)
            assert (await client.answer())[0] == b"HTTP/1.1 200 OK"
            client.write(b"a" * 200_000)
            client.write(_REQUEST + b"\r\n")
            assert (await client.answer())[0] == b"HTTP/1.1 200 OK"
        client.write(_POST.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked"))
        assert b"connection: close" in await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.read() == b""

    talk(said, app=app)


def test_a_broken_body_is_refused():
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def said(client: Client) -> None:
        client.write(head)
        await client.heard()
        client.write(b"no length\r\n")
        assert (await client.answer())[0] == b"HTTP/1.1 400 Bad Request"

    talk(said)


@pytest.mark.parametrize(
    "head",
    [
        _REQUEST + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 70_000 + _REQUEST[5:] + b"\r\n",
        _REQUEST + b"HOST: y\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        _REQUEST + b"Authorization: Bearer x\r\nAuthorization: Bearer y\r\n\r\n",
    ],
    ids=["long header", "long address", "two hosts", "no host", "two tokens"],
)
def test_a_head_that_is_too_long_or_ambiguous_is_refused_whole(head: bytes):
    async def said(client: Client) -> None:
        connection = await client.accepted()
        connection.data_received(head)
        assert (await client.answer())[0] == b"HTTP/1.1 400 Bad Request"

    talk(said)


def test_a_client_of_http_1_0_needs_no_host():
    async def said(client: Client) -> None:
        client.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.answer())[0].endswith(b"200 OK")

    talk(said)


def test_cookies_that_take_quadratic_time_to_read_are_left_out():
    seen: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value for name, value in scope["headers"] if name == b"cookie")
        await _app(scope, receive, send)

    async def said(client: Client) -> None:
        escaped = b'other="' + b"\\\\" * 10_000 + b'"'
        client.write(
            _REQUEST + b"Cookie: pilotage-1=a.b; " + escaped + b"; c=d\r\nCookie: " + escaped + b"\r\n\r\n"
        )
        assert await client.answer() == (b"HTTP/1.1 200 OK", b"0")

    talk(said, app=app)
    assert seen == [b"pilotage-1=a.b; c=d", b""]
