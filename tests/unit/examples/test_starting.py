import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from examples.servers import starting
from examples.servers.starting import free_port


class Draw:
    """Gives these ports in turn."""

    def __init__(self, *ports: int) -> None:
        self._ports: Iterator[int] = iter(ports)

    def randint(self, *_: int) -> int:
        return next(self._ports)


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    port, other = free_port(), free_port()
    os.close(starting._RESERVATIONS.pop())
    monkeypatch.setattr(starting, "_DRAW", Draw(port, other))
    assert free_port() == other


def test_another_process_is_not_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from examples.servers.starting import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        taken, free = int(other.stdout.readline()), free_port()
        os.close(starting._RESERVATIONS.pop())
        monkeypatch.setattr(starting, "_DRAW", Draw(taken, free))
        assert free_port() == free
        other.stdin.close()


def test_a_port_that_a_connection_has_just_left_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    port, other = free_port(), free_port()
    with (
        socket.create_server(("127.0.0.2", port)) as server,
        socket.create_connection(("127.0.0.2", port)) as client,
    ):
        accepted, _ = server.accept()
        accepted.close()
        assert client.recv(1) == b""
    for _ in (other, port):
        os.close(starting._RESERVATIONS.pop())
    monkeypatch.setattr(starting, "_DRAW", Draw(port, other))
    assert free_port() == other
