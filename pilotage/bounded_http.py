"""HTTP to servers of others: a request ends after a time in all, and after so many bytes.

The timeouts of HTTP libraries hold for one read: a server that sends a byte each second, even of its
headers, would hold a request for ever. Here each read gets what is left of the whole time. An answer is
never unpacked.
"""

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

#: Bytes that are sent between two looks at the clock.
_PIECE: Final = 16 << 10
#: As httpx's own connections: what is idle for longer may be dead behind a NAT, which tells nobody.
_LIMITS: Final = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=5.0)


@dataclass(slots=True, kw_only=True)
class _Allowance:
    """What is left for one request."""

    seconds: float
    most: int  #: bytes of the answer, with its headers
    clock: Callable[[], float]
    until: float  #: by the clock
    received: int = 0

    def find_timeout(self, timeout: float | None) -> float:
        """Seconds for the next step."""
        left = self.until - self.clock()
        if left <= 0:
            raise httpcore.ReadTimeout(f"no whole answer within {self.seconds:g} s")
        return left if timeout is None else min(left, timeout)

    def count(self, received: int) -> None:
        """Add to what was received."""
        self.received += received
        if self.received > self.most:
            raise httpcore.ReadError(f"the answer has more than {self.most:,} bytes")


#: That of the request which is served in this thread now: a connection serves one after the other.
_CURRENT: Final[ContextVar[_Allowance]] = ContextVar("_CURRENT")


class BoundedTransport(httpx.BaseTransport):
    """Connections on which a request takes `seconds` in all, and its answer has `most` bytes at most.

    Beyond that `httpx.ReadTimeout` and `httpx.ReadError` are raised, and `httpx.DecodingError` for a body
    that is compressed though nobody asked: a few kilobytes would unpack to gigabytes. The look-up of a name
    counts, but ends when the resolver says.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        seconds: float,
        most: int,
        with_proxies: bool = False,
        backend: httpcore.NetworkBackend | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`with_proxies`: those that the environment names."""
        self._context, self._with_proxies = context, with_proxies
        self._seconds, self._most, self._clock = seconds, most, clock
        self._backend = _BoundedBackend(backend or _EachAddress())
        self._pools: dict[str | None, httpcore.ConnectionPool] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the body of the answer comes while it is read."""
        now = self._clock()
        allowance = _Allowance(
            seconds=self._seconds, most=self._most, clock=self._clock, until=now + self._seconds
        )
        request.headers["Accept-Encoding"] = "identity"
        url = request.url
        sent = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _within(allowance):
            answer = self._find_pool(url).handle_request(sent)
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_BoundedBody(answer, allowance),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        """Close the connections."""
        for pool in self._pools.values():
            pool.close()

    def _find_pool(self, url: httpx.URL) -> httpcore.ConnectionPool:
        proxy = None
        port = url.port or (443 if url.scheme == "https" else 80)  # NO_PROXY names hosts, or one port of them
        if self._with_proxies and not proxy_bypass(f"{url.host}:{port}"):
            named = getproxies()
            proxy = named.get(url.scheme) or named.get("all")
        if proxy not in self._pools:
            self._pools[proxy] = httpcore.ConnectionPool(
                self._context,
                proxy=None if proxy is None else _read_proxy(proxy),
                max_connections=_LIMITS.max_connections,
                max_keepalive_connections=_LIMITS.max_keepalive_connections,
                keepalive_expiry=_LIMITS.keepalive_expiry,
                network_backend=self._backend,
            )
        return self._pools[proxy]


def _read_proxy(address: str) -> httpcore.Proxy:
    try:
        named = httpx.Proxy(address if "//" in address else f"http://{address}")
    except (ValueError, httpx.InvalidURL):
        named = None
    if named is None or named.url.scheme not in ("http", "https"):
        # The part before the @ may contain a password.
        shown = address.rpartition("@")[2]
        raise httpx.ProxyError(f"the environment's proxy {shown!r} is not one such as http://host:3128")
    return httpcore.Proxy(str(named.url), auth=named.raw_auth)


class _BoundedBody(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response, allowance: _Allowance) -> None:
        self._answer, self._allowance = answer, allowance

    def __iter__(self) -> Iterator[bytes]:
        encoding = httpx.Headers(self._answer.headers).get("Content-Encoding", "identity")
        pieces = self._answer.iter_stream()
        while True:
            with _within(self._allowance):
                piece = next(pieces, None)
            if piece is None:
                return
            if encoding.lower() != "identity":  # answers to HEAD, and those of 304, have no body
                raise httpx.DecodingError("the answer is compressed")
            yield piece

    def close(self) -> None:
        with _within(self._allowance):
            self._answer.close()


@contextmanager
def _within(allowance: _Allowance) -> Iterator[None]:
    """Count for a request what happens on connections; errors are httpx's, which has the same names."""
    before = _CURRENT.set(allowance)
    try:
        yield
    except (httpcore.TimeoutException, httpcore.NetworkError, *_OTHERS) as error:
        kind: type[httpx.TransportError] = getattr(httpx, type(error).__name__)
        raise kind(str(error)) from error
    finally:
        _CURRENT.reset(before)


_OTHERS: Final = (httpcore.ProtocolError, httpcore.ProxyError, httpcore.UnsupportedProtocol)


class _EachAddress(httpcore.SyncBackend):
    """Connects to the addresses of a host one after the other, each within its share of the time left."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        now = _CURRENT.get().clock
        until = now() + _CURRENT.get().find_timeout(timeout)
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # of a name that is none
            raise httpcore.ConnectError(str(error)) from error
        addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
        failed: httpcore.ConnectError | httpcore.ConnectTimeout = httpcore.ConnectTimeout("timed out")
        for tried, address in enumerate(addresses):
            share = (until - now()) / (len(addresses) - tried)
            if share <= 0:
                break
            try:
                return super().connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed


class _BoundedBackend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _CURRENT.get().find_timeout(timeout)
        return _BoundedStream(self._backend.connect_tcp(host, port, left, local_address, socket_options))


class _BoundedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        found = self._stream.read(max_bytes, _CURRENT.get().find_timeout(timeout))
        _CURRENT.get().count(len(found))
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            piece = buffer[start : start + _PIECE]
            self._stream.write(piece, _CURRENT.get().find_timeout(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _CURRENT.get().find_timeout(timeout)
        return _BoundedStream(self._stream.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
