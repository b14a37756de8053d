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
from pilotage.cli.processes import client_connections, serve
from pilotage.service.fast_path import PlainExchange

_Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, uvicorn.Server], Awaitable[None]]
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


def talk(said: _Talk, *, level: str = "error", app: Any = _app) -> None:
    """Let a client speak with a server."""

    async def run() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(serve.configuration(app, log_level=level))  # type: ignore[arg-type]
        task = asyncio.create_task(server.serve(sockets=[bound]))
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        try:
            async with asyncio.timeout(300):
                await said(reader, writer, server)
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


async def heard(server: uvicorn.Server) -> None:
    """Wait until the head of a request has arrived."""
    while not any(each._is_open for each in server.server_state.connections):  # type: ignore[union-attr]
        await asyncio.sleep(0)


async def look(server: uvicorn.Server, seconds: float) -> None:
    """Have the server look, as if so much time had passed since its client said anything."""
    while not server.server_state.connections:
        await asyncio.sleep(0)
    [connection] = server.server_state.connections
    now = connection._received_at + seconds  # type: ignore[union-attr]
    client_connections.end_silent([connection], now=now)


@pytest.mark.parametrize(
    "endless",
    [b"GET /" + b"a" * 100_000, _REQUEST + b"X: " + b"a" * 100_000, _REQUEST + b"X: a\r\n" * 20_000],
    ids=["address", "header", "headers"],
)
def test_a_head_without_an_end_is_refused(endless: bytes):
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: uvicorn.Server) -> None:
        writer.write(endless)
        status, body = await answer(reader)
        assert (status, body) == (b"HTTP/1.1 400 Bad Request", b"A head has 65536 bytes at most.")
        assert await reader.read() == b""

    talk(said)


def test_a_body_may_be_longer_than_a_head_and_requests_may_follow_each_other():
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: uvicorn.Server) -> None:
        for _number in range(3):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"a" * 300_000)
            assert await answer(reader) == (b"HTTP/1.1 200 OK", b"300000")
            writer.write(_REQUEST + b"X: " + b"a" * 40_000 + b"\r\n\r\n")
            assert await answer(reader) == (b"HTTP/1.1 200 OK", b"0")

    talk(said)


@pytest.mark.parametrize("begun", [b"", _REQUEST, _REQUEST + b"\r\n" + _REQUEST])
def test_who_does_not_come_to_the_end_of_a_head_is_left(begun: bytes):
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: uvicorn.Server
    ) -> None:
        writer.write(begun)
        if b"\r\n\r\n" in begun:
            await answer(reader)
        await look(server, 29)
        assert not reader.at_eof()
        await look(server, 31)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)

    talk(said)


def test_who_falls_silent_within_a_body_is_left_and_who_goes_on_is_not():
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: uvicorn.Server
    ) -> None:
        writer.write(_POST + b"12345")
        await heard(server)
        await look(server, 119)
        writer.write(b"67890")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"10")
        await look(server, 1000)
        writer.write(_POST + b"12345")
        await heard(server)
        await look(server, 121)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)

    talk(said)


def test_a_client_that_waits_to_send_its_body_is_told_to_go_on():
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: uvicorn.Server) -> None:
        writer.write(_POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"0123456789")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"10")


_UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize("head", [_POST, _POST.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked")])
def test_the_body_of_a_request_for_another_protocol_is_not_taken_for_the_next_request(head: bytes):
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: uvicorn.Server) -> None:
        writer.write(head.replace(b"\r\n\r\n", b"\r\n" + _UPGRADE + b"\r\n"))
        status, body = await answer(reader)
        assert status == b"HTTP/1.1 400 Bad Request"
        assert b"without the header Upgrade" in body
        with suppress(ConnectionError):
            writer.write(_REQUEST + b"\r\n")
            assert await reader.read() == b""

    talk(said)


def test_a_request_for_another_protocol_is_not_answered_before_the_one_that_came_earlier():
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: uvicorn.Server) -> None:
        second = _POST.replace(b"\r\n\r\n", b"\r\n" + _UPGRADE + b"\r\n")
        writer.write(_POST + b"0123456789" + second)
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"10")
        assert await reader.read() == b""

    talk(said)


def test_a_request_for_another_protocol_is_answered_and_is_the_last_one(caplog: pytest.LogCaptureFixture):
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: uvicorn.Server) -> None:
        writer.write(_REQUEST + _UPGRADE + b"\r\n" + _REQUEST + b"\r\n")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"0")
        with suppress(ConnectionError):
            writer.write(_REQUEST + b"\r\n")
            assert await reader.read() == b""

    talk(said, level="warning")
    assert not caplog.records


def test_what_is_no_http_writes_no_line_into_the_log(capsys: pytest.CaptureFixture[str]):
    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: uvicorn.Server) -> None:
        writer.write(b"nonsense\r\n\r\n")
        assert (await answer(reader))[0] == b"HTTP/1.1 400 Bad Request"

    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        process_setup.configure_logs("warning")
        talk(said, level="warning")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert "Invalid HTTP" not in capsys.readouterr().err


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
    pending = client_connections.PendingHeads(by_address=True, files=160)  # 40 in all, 10 from one address
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
    pending = client_connections.PendingHeads(by_address=False, files=160)
    peers = [_Peer("192.0.2.1") for _ in range(40)]
    for each in peers:
        pending.add(each, now=0)  # type: ignore[arg-type]
    assert not any(each.is_aborted for each in peers)


def test_only_connections_without_a_whole_head_are_counted():
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: uvicorn.Server
    ) -> None:
        while not server.server_state.connections:
            await asyncio.sleep(0)
        [connection] = server.server_state.connections
        pending = connection._pending  # type: ignore[union-attr]
        assert list(pending._all) == [connection]
        writer.write(_REQUEST + b"\r\n")
        await answer(reader)
        assert not pending._all
        writer.write(_REQUEST)
        while not pending._all:
            await asyncio.sleep(0)
        writer.transport.abort()
        while pending._all:
            await asyncio.sleep(0)

    talk(said)


_PLAIN = b"POST /api/v1/matcher/requestJob HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


class _FastPath:
    """Answers at once."""

    def authenticate(self, exchange: PlainExchange) -> bool:
        return b"authorization" not in exchange.headers

    def begin(self, exchange: PlainExchange) -> bool:
        exchange.connection.write_answer(200, None, b"{}")
        return True


@pytest.fixture
def fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    always = property(lambda _: _FastPath(), _ignore)
    monkeypatch.setattr(client_connections.ClientConnection, "_fast_path", always, raising=False)


def _ignore(*_: object) -> None: ...


@pytest.mark.usefixtures("fast_path")
def test_the_body_of_a_plain_request_has_the_limits_of_a_head():
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: uvicorn.Server
    ) -> None:
        writer.write(_PLAIN[:-1])
        await heard(server)
        [connection] = server.server_state.connections
        pending = connection._pending  # type: ignore[union-attr]
        assert list(pending._all) == [connection]
        await look(server, 29)
        writer.write(_PLAIN[-1:])
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"{}")
        assert not pending._all
        await look(server, 1000)
        writer.write(_PLAIN[:-1])
        await heard(server)
        await look(server, 31)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(1)

    talk(said)


@pytest.mark.usefixtures("fast_path")
def test_an_answered_plain_request_does_not_end_the_connection_under_the_next_one():
    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: uvicorn.Server
    ) -> None:
        writer.write(_PLAIN + _POST)
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"{}")
        [connection] = server.server_state.connections
        assert connection.timeout_keep_alive_task is None  # type: ignore[union-attr]
        writer.write(b"0123456789")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"10")

    talk(said)


@pytest.mark.parametrize(
    "behind",
    [b"GARBAGE\r\n\r\n", _REQUEST + b"\r\nGARBAGE\r\n\r\n", (_REQUEST + b"\r\n") * 9],
    ids=["garbage", "request and garbage", "requests"],
)
def test_answers_for_a_client_that_has_gone_are_dropped(behind: bytes):
    """Those of all its requests; and no refusal is sent in place of an answer."""
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        asked.set()
        await goes_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: uvicorn.Server
    ) -> None:
        writer.write(_REQUEST + b"\r\n")
        await asked.wait()
        [connection] = server.server_state.connections
        writer.write(behind)
        if b"GARBAGE" in behind:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        else:
            while len(connection._cycles) < 10:  # type: ignore[union-attr]
                await asyncio.sleep(0)
            connection.transport.abort()
        while server.server_state.connections:
            await asyncio.sleep(0)
        assert all(each.disconnected for each in connection._cycles)  # type: ignore[union-attr]
        goes_on.set()

    talk(said, app=app)


def test_a_broken_body_is_refused():
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def said(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: uvicorn.Server
    ) -> None:
        writer.write(head)
        await heard(server)
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
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: uvicorn.Server
    ) -> None:
        while not server.server_state.connections:
            await asyncio.sleep(0)
        [connection] = server.server_state.connections
        connection.data_received(head)  # type: ignore[union-attr]
        assert (await answer(reader))[0] == b"HTTP/1.1 400 Bad Request"
        del writer

    talk(said)


class _LaterPath(_FastPath):
    """Answers when the test wants it."""

    exchange: PlainExchange | None = None

    def begin(self, exchange: PlainExchange) -> bool:
        self.exchange = exchange
        return True


def test_a_plain_request_is_answered_also_with_an_upgrade_behind_it(monkeypatch: pytest.MonkeyPatch):
    path = _LaterPath()
    fixed = property(lambda _: path, _ignore)
    monkeypatch.setattr(client_connections.ClientConnection, "_fast_path", fixed, raising=False)

    async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: uvicorn.Server) -> None:
        writer.write(_PLAIN + _REQUEST + _UPGRADE + b"\r\n")
        while path.exchange is None:
            await asyncio.sleep(0)
        path.exchange.connection.write_answer(200, None, b"{}")
        assert await answer(reader) == (b"HTTP/1.1 200 OK", b"{}")
        assert await reader.read() == b"", "the client sends the other one again"

    talk(said)
