"""How a process of the service takes the connections that wait at its socket."""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from fastapi import FastAPI

from pilotage.cli.processes import serve
from tests.support.wait import until

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
MakeLoop = Callable[[], asyncio.AbstractEventLoop]


class ShortOfFiles(socket.socket):
    """Accepts nothing the first time, as if too many files were open."""

    is_short = True

    def accept(self) -> tuple[socket.socket, Any]:
        if self.is_short:
            self.is_short = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def make_server(*, is_alone: bool = True) -> serve._Server:
    config = serve.configuration(FastAPI(), log_level="error")
    config.load()
    server = serve._Server(config, is_alone=is_alone)
    server.lifespan = config.lifespan_class(config)
    return server


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_process_leaves_connections_to_the_others(
    make_loop: MakeLoop, *, is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_TURN", 300.0)

    async def take(bound: socket.socket) -> list[int]:
        server = make_server(is_alone=is_alone)
        server._accept_from(bound)
        server._accept_some(bound)
        counts = [len(server.connections._all)]
        for _ in range(100):
            await asyncio.sleep(0)
        counts.append(len(server.connections._all | dict.fromkeys(server.connections.open)))
        asyncio.get_running_loop().remove_reader(bound)
        return counts

    with socket.create_server(("127.0.0.1", 0)) as bound, asyncio.Runner(loop_factory=make_loop) as runner:
        bound.settimeout(0)
        clients = [socket.create_connection(bound.getsockname()) for _ in range(6)]
        assert runner.run(take(bound)) == [4, 6 if is_alone else 4]
        for each in clients:
            each.close()


@pytest.mark.parametrize("make_loop", LOOPS)
def test_connections_are_taken_again_once_there_are_files(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve, "_PAUSE", 0.0)

    async def take(bound: socket.socket) -> None:
        server = make_server()
        server._accept_from(bound)
        await asyncio.to_thread(lambda: until(lambda: server.connections._all or server.connections.open))
        asyncio.get_running_loop().remove_reader(bound)

    with ShortOfFiles() as bound, asyncio.Runner(loop_factory=make_loop) as runner:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        bound.settimeout(0)
        with socket.create_connection(bound.getsockname()):
            runner.run(take(bound))
    assert "no connection can be accepted: [Errno 24] Too many open files" in caplog.text


@pytest.mark.parametrize("make_loop", LOOPS)
def test_a_process_that_ends_takes_none_after_its_pause(make_loop: MakeLoop) -> None:
    async def end(bound: socket.socket) -> int:
        server = make_server(is_alone=False)
        await server.startup([])
        await server.shutdown([])
        server._accept_from(bound)  # as after the pause that was on
        with socket.create_connection(bound.getsockname()):
            for _ in range(100):
                await asyncio.sleep(0)
            return len(server.connections._all) + len(server.connections.open)

    with socket.create_server(("127.0.0.1", 0)) as bound, asyncio.Runner(loop_factory=make_loop) as runner:
        bound.settimeout(0)
        assert runner.run(end(bound)) == 0
