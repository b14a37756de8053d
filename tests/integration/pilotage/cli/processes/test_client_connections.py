"""Clients that send no end of a request, or none at all: over real connections, by a clock of the test."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from pilotage.cli import process_setup
from pilotage.cli.processes import serve
from pilotage.cli.processes.client_connections import ClientConnection, ClientConnections

_Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, ClientConnections], Awaitable[None]]
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


def talk(said: _Talk, *, level: str = "error", app: Any = _app, idle: int = 300) -> None:
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
                await said(reader, writer, config.http)
        finally:
            writer.transport.abort()
            server.should_exit = True
            await task
            bound.close()

    asyncio.run(run())


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The status line, and the body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    return head.partition(b"\r\n")[0], await reader.readexactly(length)


async def two_answers(reader: asyncio.StreamReader) -> list[tuple[bytes, bytes]]:
    return [await answer(reader), await answer(reader)]


async def heard(connections: ClientConnections) -> None:
    """Wait until a request is being read."""
    while not any(each._request and each._request.is_awaited for each in connections.open):
        await asyncio.sleep(0)


async def accepted(connections: ClientConnections) -> ClientConnection:
    """The connection of the client."""
    while not connections.open:
        await asyncio.sleep(0)
    [connection] = connections.open
    return connection


async def look(connections: ClientConnections, seconds: float) -> None:
    """Look for silent clients, as if so much time had passed since the client said anything."""
    connection = await accepted(connections)
    connections.end_silent(connection._received_at + seconds)


@pytest.mark.parametrize(
    "endless",
    [b"GET /" + b"a" * 100_000, _REQUEST + b"X: " + b"a" * 100_000, _REQUEST + b"X: a\r\n" * 20_000],
    ids=["address", "header", "headers"],
)
def test_a_head_without_an_end_is_refused(endless: bytes):
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: ClientConnections) -> None:
        writer.write(endless)
        status, body = await answer(reader)
        assert (status, body) == (b"HTTP/1.1 400 Bad Request", b"A head has 65536 bytes at most.")
        assert await reader.read() == b""

    talk(said)


def test_a_body_may_be_longer_than_a_head_and_requests_may_follow_each_other():
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: ClientConnections) -> None:
        for _number in range(3):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"a" * 300_000)
            assert await answer(reader) == (b"HTTP/1.1 200 OK", b"300000")
            writer.write(_REQUEST + b"X: " + b"a" * 40_000 + b"\r\n\r\n")
            assert await answer(reader) == (b"HTTP/1.1 200 OK", b"0")

    talk(said)


@pytest.mark.parametrize("begun", [b"", _REQUEST, _REQUEST + b"\r\n" + _REQUEST])
def test_who_does_not_come_to_the_end_of_a_head_is_left(begun: bytes):
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        writer.write(begun)
        if b"\r\n\r\n" in begun:
            await answer(reader)
        await look(connections, 29)
        assert not reader.at_eof()
        await look(connections, 31)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)

    talk(said, idle=5)  # a beginning that came with a whole request is idle


def test_who_falls_silent_within_a_body_is_left_and_who_goes_on_is_not():
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        writer.write(_POST + b"12345")
        await heard(connections)
        await look(connections, 119)
        writer.write(b"67890")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"10")
        await look(connections, 1000)
        writer.write(_POST + b"12345")
        await heard(connections)
        await look(connections, 121)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)

    talk(said)


@pytest.mark.parametrize(("size", "is_late"), [(1, True), (100_000, False)])
def test_a_body_has_to_come_at_the_least_rate(size: int, *, is_late: bool):
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        writer.write(_POST.replace(b"10", b"%d" % (30 * size)))
        await heard(connections)
        connection = await accepted(connections)
        now = connection._received_at
        for part in range(1, 26):
            writer.write(b"a" * size)
            while connection._read < part * size:
                await asyncio.sleep(0)
            connection._received_at = now = now + 8
            connections.end_silent(now)
        assert connection.transport.is_closing() is is_late

    talk(said)


def test_a_client_that_waits_to_send_its_body_is_told_to_go_on():
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: ClientConnections) -> None:
        writer.write(_POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"0123456789")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"10")


_UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize("head", [_POST, _POST.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked")])
def test_the_body_of_a_request_for_another_protocol_is_not_taken_for_the_next_request(head: bytes):
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: ClientConnections) -> None:
        writer.write(head.replace(b"\r\n\r\n", b"\r\n" + _UPGRADE + b"\r\n"))
        status, body = await answer(reader)
        assert status == b"HTTP/1.1 400 Bad Request"
        assert b"without the header Upgrade" in body
        with suppress(ConnectionError):
            writer.write(_REQUEST + b"\r\n")
            assert await reader.read() == b""

    talk(said)


def test_a_request_for_another_protocol_is_not_answered_before_the_one_that_came_earlier():
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: ClientConnections) -> None:
        second = _POST.replace(b"\r\n\r\n", b"\r\n" + _UPGRADE + b"\r\n")
        writer.write(_POST + b"0123456789" + second)
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"10")
        assert (await answer(reader))[0] == b"HTTP/1.1 400 Bad Request"
        assert await reader.read() == b""

    talk(said)


def test_a_request_for_another_protocol_is_answered_and_is_the_last_one():
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: ClientConnections) -> None:
        writer.write(_REQUEST + _UPGRADE + b"\r\n" + _REQUEST + b"\r\n")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"0")
        with suppress(ConnectionError):
            writer.write(_REQUEST + b"\r\n")
            assert await reader.read() == b""

    talk(said)


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"nonsense\r\n\r\n", b"400 Bad Request"), (_REQUEST + _UPGRADE + b"\r\n", b"200 OK")],
    ids=["nonsense", "another protocol"],
)
def test_what_is_no_http_writes_no_line_into_the_log(
    content: bytes, status: bytes, capsys: pytest.CaptureFixture[str]
):
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: ClientConnections) -> None:
        writer.write(content)
        assert (await answer(reader))[0] == b"HTTP/1.1 " + status

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
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        connection = await accepted(connections)
        assert list(connections._all) == [connection]
        writer.write(_REQUEST + b"\r\n")
        await answer(reader)
        assert not connections._all
        writer.write(_REQUEST)
        while connection.head_since is None:
            await asyncio.sleep(0)
        await look(connections, 5)
        assert list(connections._all) == [connection]
        writer.transport.abort()
        while connections._all:
            await asyncio.sleep(0)

    talk(said)


_ANSWER_EMPTY = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}


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
        await send(_ANSWER_EMPTY)
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("behind", "answers"),
    [(b"GARBAGE\r\n\r\n", [b"400 Bad Request"]), ((_REQUEST + b"\r\n") * 9, [b"200 OK"] * 9)],
    ids=["garbage", "requests"],
)
def test_what_comes_behind_a_request_is_read_when_this_one_is_answered(behind: bytes, answers: list[bytes]):
    app = Held()

    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        writer.write(_REQUEST + b"\r\n")
        while not app.requests:
            await asyncio.sleep(0)
        writer.write(behind)
        connection = await accepted(connections)
        while connection._kept_back != behind:
            await asyncio.sleep(0)
        assert app.requests == 1
        app.goes_on.set()
        for expected in (b"200 OK", *answers):
            assert (await answer(reader))[0] == b"HTTP/1.1 " + expected

    talk(said, app=app)


@pytest.mark.parametrize("others", [0, 9])
def test_who_has_gone_is_noticed_also_behind_other_requests(others: int):
    app = Held()

    async def said(
        _: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        writer.write((_REQUEST + b"\r\n") * (1 + others))
        while not app.requests:
            await asyncio.sleep(0)
        connection = await accepted(connections)
        assert not connection.is_gone()
        writer.transport.abort()
        while not app.gone:
            await asyncio.sleep(0)
        assert connection.is_gone()

    talk(said, app=app)
    assert app.requests == 1


def test_more_than_a_head_that_comes_behind_a_request_waits_in_the_network():
    app = Held()

    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        writer.write(_REQUEST + b"\r\n")
        while not app.requests:
            await asyncio.sleep(0)
        connection = await accepted(connections)
        writer.write(_POST.replace(b"10", b"10000000") + bytes(10_000_000))
        while connection.transport.is_reading():
            await asyncio.sleep(0)
        assert len(connection._kept_back) < 1_000_000
        app.goes_on.set()
        for _ in range(2):
            assert (await answer(reader))[0] == b"HTTP/1.1 200 OK"

    talk(said, app=app)


@pytest.mark.parametrize("reads", [False, True])
def test_of_a_long_body_little_waits_in_memory(reads: bool):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and reads:
            await _app(scope, receive, send)
        elif scope["type"] == "http":
            await send(_ANSWER_EMPTY)
            await send({"type": "http.response.body", "body": b""})

    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        connection = await accepted(connections)
        writer.write(_POST.replace(b"10", b"20000000") + bytes(20_000_000) + _REQUEST + b"\r\n")
        answers = asyncio.create_task(two_answers(reader))
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
            await send(_ANSWER_EMPTY)
            await send({"type": "http.response.body", "body": b""})

    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        for _ in range(2):
            writer.write(_POST.replace(b"10", b"300000") + b"a" * 100_000)
            assert (await answer(reader))[0] == b"HTTP/1.1 200 OK"
            writer.write(b"a" * 200_000)
            writer.write(_REQUEST + b"\r\n")
            assert (await answer(reader))[0] == b"HTTP/1.1 200 OK"
        writer.write(_POST.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked"))
        assert b"connection: close" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""

    talk(said, app=app)


def test_a_broken_body_is_refused():
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        writer.write(head)
        await heard(connections)
        writer.write(b"no length\r\n")
        assert (await answer(reader))[0] == b"HTTP/1.1 400 Bad Request"

    talk(said)


@pytest.mark.parametrize(
    "head",
    [
        _REQUEST + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 70_000 + _REQUEST[5:] + b"\r\n",
        _REQUEST + b"HOST: y\r\n\r\n",
        _REQUEST + b"Authorization: Bearer x\r\nAuthorization: Bearer y\r\n\r\n",
    ],
    ids=["long header", "long address", "two hosts", "two tokens"],
)
def test_a_head_that_is_too_long_or_ambiguous_is_refused_whole(head: bytes):
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connections: ClientConnections
    ) -> None:
        connection = await accepted(connections)
        connection.data_received(head)
        assert (await answer(reader))[0] == b"HTTP/1.1 400 Bad Request"
        del writer

    talk(said)


def test_cookies_that_take_quadratic_time_to_read_are_left_out():
    seen: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value for name, value in scope["headers"] if name == b"cookie")
        await _app(scope, receive, send)

    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: ClientConnections) -> None:
        escaped = b'other="' + b"\\\\" * 10_000 + b'"'
        writer.write(
            _REQUEST + b"Cookie: pilotage-1=a.b; " + escaped + b"; c=d\r\nCookie: " + escaped + b"\r\n\r\n"
        )
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"0")

    talk(said, app=app)
    assert seen == [b"pilotage-1=a.b; c=d", b""]
