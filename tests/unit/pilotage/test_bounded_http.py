"""Connections to servers of others, to a network that is not there."""

import os
import socket
import ssl
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpcore
import httpx
import pytest

from pilotage.bounded_http import BoundedTransport
from tests.support.clocks import ManualClock

SECONDS = 5.0
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
URL = "http://host.example.org"


class Network(httpcore.MockBackend):
    """Each connection gets the same answer once or more often; it knows which were made."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__(list(answers))
        self.connections: list[tuple[str, int]] = []

    def connect_tcp(self, host: str, port: int, *args: Any, **more: Any) -> httpcore.NetworkStream:
        self.connections.append((host, port))
        return super().connect_tcp(host, port, *args, **more)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def make_client(network: httpcore.NetworkBackend | None = None, **more: Any) -> httpx.Client:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = BoundedTransport(context, seconds=SECONDS, most=1 << 20, backend=network, **more)
    return httpx.Client(transport=transport, timeout=SECONDS)


def test_a_connection_that_was_idle_for_five_seconds_is_not_used_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("httpcore._sync.http11.time", SimpleNamespace(monotonic=clock))
    network = Network(EMPTY, EMPTY, EMPTY)
    with make_client(network) as client:
        client.get(URL)
        clock.now += 4.9
        client.get(URL)
        assert len(network.connections) == 1
        clock.now += 5.1
        client.get(URL)
    assert len(network.connections) == 2


def test_more_than_ten_requests_at_once_wait_for_no_connection() -> None:
    network = Network(EMPTY)
    with make_client(network) as client:
        streams = [client.send(client.build_request("GET", URL), stream=True) for _ in range(11)]
        assert len(network.connections) == 11
        for each in streams:
            each.close()


def let_resolve(monkeypatch: pytest.MonkeyPatch, clock: ManualClock, addresses: Sequence[str]) -> list[str]:
    """Give each name these addresses, of which none answers; those that connections were tried to."""
    tried: list[str] = []
    resolve = socket.getaddrinfo

    def look_up(host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        named = addresses if host == "host.example.org" else [host]
        return [found for each in named for found in resolve(each, port, 0, socket.SOCK_STREAM)]

    def be_silent(self: socket.socket, address: tuple[Any, ...]) -> None:
        tried.append(str(address[0]))
        clock.now += self.gettimeout() or 0
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket.socket, "connect", be_silent)
    return tried


def test_a_host_of_many_silent_addresses_takes_no_longer_than_one(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [f"192.0.2.{last}" for last in range(1, 41)]
    tried = let_resolve(monkeypatch, clock, addresses)
    with make_client(clock=clock) as client, pytest.raises(httpx.ConnectTimeout):
        client.get(URL)
    assert tried == addresses
    assert clock.now == pytest.approx(SECONDS)


def test_a_name_without_address_is_a_failed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", find_nothing)
    with make_client() as client, pytest.raises(httpx.ConnectError, match="Name or service not known"):
        client.get(URL)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ALL_PROXY": "http://proxy:3128"}, ("proxy", 3128)),
        ({"all_proxy": "proxy:3128"}, ("proxy", 3128)),
        ({"ALL_PROXY": "http://proxy:3128", "http_proxy": "http://nearer:80"}, ("nearer", 80)),
        ({"ALL_PROXY": "http://proxy:3128", "NO_PROXY": "a, .example.org"}, ("host.example.org", 8080)),
        ({"ALL_PROXY": "http://proxy:3128", "NO_PROXY": "host.example.org:8080"}, ("host.example.org", 8080)),
        ({"ALL_PROXY": "http://proxy:3128", "NO_PROXY": "host.example.org:80"}, ("proxy", 3128)),
    ],
)
def test_proxies_are_those_that_the_environment_names(
    environment: dict[str, str], expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    network = Network(EMPTY)
    with make_client(network, with_proxies=True) as client:
        client.get(f"{URL}:8080")
    assert network.connections == [expected]


@pytest.mark.parametrize(
    "proxy", ["socks5://me:secret@proxy:1080", "ftp://me:secret@proxy", "http://me:secret@a:b"]
)
def test_a_proxy_of_another_kind_is_refused_by_name(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    shown = proxy.rpartition("@")[2]
    with make_client(Network(EMPTY), with_proxies=True) as client:
        with pytest.raises(httpx.ProxyError, match=f"environment's proxy '{shown}' is not") as caught:
            client.get(URL)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "br", "deflate, gzip"])
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304), ("GET", 200)])
def test_only_a_body_is_refused_for_its_encoding(encoding: str, method: str, status: int) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Encoding: {encoding}\r\nContent-Length: 4\r\n\r\n"
    has_body = (method, status) == ("GET", 200)
    with make_client(Network(head.encode() + b"body" * has_body)) as client:
        if has_body:
            with pytest.raises(httpx.DecodingError, match="the answer is compressed"):
                client.request(method, URL)
        else:
            assert client.request(method, URL).status_code == status


def test_an_encoding_that_is_none_is_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: Identity\r\nContent-Length: 4\r\n\r\n"
    with make_client(Network(head + b"body")) as client:
        assert client.get(URL).content == b"body"
