"""Links of the campaign do what their state says."""

import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.acceptance.campaign.network import Link, LinkState, Network


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(seed=1) as network:
        yield network


@pytest.fixture
def echo(network: Network, tmp_path: Path) -> Iterator[Link]:
    """A link to a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    while data := connection.recv(100):
                        connection.sendall(data)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield network.add_link("echo", [listener.getsockname()[1]])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(300)


def _exchange(link: Link, connection: socket.socket) -> bytes:
    connection.settimeout(300)
    try:
        connection.sendall(b"x")
        return connection.recv(10)
    except ConnectionError:
        return b""


def test_an_open_link_forwards_and_a_slow_one_too(network: Network, echo: Link) -> None:
    with socket.create_connection(("127.0.0.1", echo.port)) as connection:
        assert _exchange(echo, connection) == b"x"
        echo.delay = 0.01
        network.set_state(echo, LinkState.SLOW)
        assert _exchange(echo, connection) == b"x"


@pytest.mark.parametrize("state", [LinkState.CUT, LinkState.NO_ANSWERS])
def test_a_cut_link_ends_connections_until_it_opens_again(
    network: Network, echo: Link, state: LinkState
) -> None:
    with socket.create_connection(("127.0.0.1", echo.port)) as connection:
        assert _exchange(echo, connection) == b"x"
        network.set_state(echo, state)
        assert _exchange(echo, connection) == b""
    network.set_state(echo, LinkState.OPEN)
    with socket.create_connection(("127.0.0.1", echo.port)) as connection:
        assert _exchange(echo, connection) == b"x"


def test_a_silent_link_delivers_later(network: Network, echo: Link) -> None:
    with socket.create_connection(("127.0.0.1", echo.port)) as connection:
        assert _exchange(echo, connection) == b"x"
        network.set_state(echo, LinkState.SILENT)
        connection.sendall(b"late")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        network.set_state(echo, LinkState.OPEN)
        connection.settimeout(300)
        assert connection.recv(10) == b"late"


def test_a_link_uses_a_target_that_accepts(network: Network, echo: Link, tmp_path: Path) -> None:
    both = network.add_link("both", [tmp_path / "nobody", *echo.targets])
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", both.port)) as connection:
            assert _exchange(both, connection) == b"x"
