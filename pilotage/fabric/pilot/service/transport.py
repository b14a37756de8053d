"""HTTP with the standard library only: JSON, archives and streams of events, over connections that stay open.

All our programs that send requests to the service use it. Also the choice of the site's HTTP proxy and of the
CA certificates.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import select
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Callable, Protocol
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pilotage.fabric.pilot import errors

#: Value instead of a proxy address: no proxy, whatever the environment contains.
NONE = "none"
_PORT = 3128


class InvalidAddress(ValueError):
    """An address of the service that is none; the message names it and what is allowed."""


def split_address(url: str) -> SplitResult:
    """The parts of the service's address; raises `InvalidAddress`."""
    parts = _split(url)
    if parts is None or parts.scheme not in ("http", "https"):
        raise InvalidAddress(
            f"{url!r} is not a service address such as https://pilotage.example.org:8443: "
            "http or https, a host, and a port up to 65535"
        )
    return parts


def _split(address: str) -> SplitResult | None:
    """The parts of an address, if it has a host that can be looked up and no port that does not exist."""
    try:
        parts = urlsplit(address)
        host, _ = (parts.hostname or "").encode("idna"), parts.port  # both raise ValueError
    except ValueError:
        return None
    return parts if host.split() == [host] else None


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy: its address and the headers for authentication."""

    host: str
    port: int
    headers: Mapping[str, str]


def choose_proxy(url: str, said: str | None, environment: Mapping[str, str]) -> Proxy | None:
    """Choose the proxy for a service; None: connect directly.

    `said` is its address or `none`; None: the environment's HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in lower or
    upper case. Raises ValueError for an invalid address.
    """
    if said is not None:
        return None if said.lower() == NONE else _parse_proxy(said)
    parts = split_address(url)
    named = {name.lower(): value for name, value in sorted(environment.items()) if value}
    address = named.get(f"{parts.scheme}_proxy")
    if not address or _is_near(parts.hostname or "", named.get("no_proxy", "")):
        return None
    return _parse_proxy(address)


def _is_near(host: str, exceptions: str) -> bool:
    """Whether the host, or a domain that contains it, is in NO_PROXY."""
    names = [name.strip().lower().lstrip(".") for name in exceptions.split(",")]
    return any(name == "*" or host == name or host.endswith(f".{name}") for name in names if name)


def _parse_proxy(address: str) -> Proxy:
    parts = _split(address if "//" in address else f"http://{address}")
    if parts is None or parts.scheme != "http":
        # The part before the @ may contain a password.
        shown = address.rpartition("@")[2]
        raise ValueError(f"{shown!r} is not a proxy address such as http://proxy.example.org:3128")
    host, port = parts.hostname or "", parts.port or _PORT
    if parts.username is None:
        return Proxy(host, port, {})
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(host, port, {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"})


_API = "/api/v1"
_UNAUTHORIZED = 401
#: Signs of a path that are sent as they are (RFC 3986); `%`: what is quoted already.
_SAFE = "/%:@!$&'()*+,;="
#: Header of a request that has one effect however often it is sent.
_KEY = "Idempotency-Key"
#: Bytes of an archive held in memory at a time.
_CHUNK = 1 << 18
#: Pools of queues to ask for in one response.
MOST_POOLS = 20_000
#: Maximum bytes of a JSON response.
_LONGEST_ANSWER = 64 << 20
#: Status codes below 500 after which a retry may succeed.
_PASSING = frozenset({408, 425, 429})
#: The code of a 409 to an end whose output was among lost commits.
_OUTPUT_MISSING = "output_missing"
#: The code of a permanent 401: an operator revoked the token.
_REVOKED = "revoked"
#: The code of any other 401.
_NOT_AUTHENTICATED = "not_authenticated"
#: Our code for a response that is not in the service's format.
_FOREIGN = "error"
#: Codes of a 403, 404 or 409 that concerns no attempt: from another server, or an unknown path.
_ASTRAY = frozenset({_FOREIGN, "not_found"})


class Away(Exception):
    """The service is unreachable or temporarily unable; a retry may succeed."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after  #: seconds, from the Retry-After header


class Refused(Exception):
    """The service refused the request; a retry gets the same response."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{message} ({status} {code})")
        self.status = status  #: HTTP status
        self.code = code  #: `error.code` of the response

    @property
    def ends_attempt(self) -> bool:
        """Whether the attempt is over for the service, or our token was revoked: all reports will be refused.

        Any other refusal is about the content of the request.
        """
        return (self.status in (404, 409) and not self.needs_output) or self.code == _REVOKED

    @property
    def needs_output(self) -> bool:
        """Whether the output has to be sent again before the end can be reported."""
        return self.code == _OUTPUT_MISSING


class TokenNotAccepted(Away):
    """The service does not accept the token, although it was not revoked.

    A token that was accepted before will be accepted again: a clock or a key file of the service is behind.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} (401 {code})")
        self.code = code  #: `error.code` of the response
        self.message = message

    def as_refusal(self) -> Refused:
        """Convert for a token that was never accepted: it is wrong."""
        return Refused(401, self.code, self.message)


class TooLarge(Exception):
    """A download exceeds its size limit."""


@dataclass(frozen=True)
class Answer:
    """A JSON object and the time of the response by the service's clock."""

    body: Mapping[str, Any]
    at: datetime


class TokenSource(Protocol):
    """A token that may be another one for each request."""

    def __call__(self) -> str:
        """The token to use now; empty: none."""

    def reject(self, token: str) -> None:
        """The service has refused this token."""


@dataclass(frozen=True)
class Rejection:
    """A response other than 2xx."""

    status: int  #: of HTTP
    code: str  #: `error.code`
    message: str
    details: Mapping[str, Any]
    retry_after: float | None  #: seconds, from the Retry-After header


#: Seconds after which an idle connection is not used again; the service closes it after 5.
_MOST_IDLE = 4.0


class _IdleConnections:
    """Connections that stayed open after a response; thread-safe, since each is in one list operation."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []

    def take(self, timeout: float) -> http.client.HTTPConnection | None:
        """The one used last, if the service has not closed it, with another timeout."""
        with suppress(IndexError):
            while True:
                since, connection = self._idle.pop()
                if self._clock() - since < _MOST_IDLE and not _has_input(connection):
                    connection.timeout = timeout
                    connection.sock.settimeout(timeout)
                    return connection
                connection.close()
        return None

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Keep one whose response was read to its end."""
        self._idle.append((self._clock(), connection))

    def close(self) -> None:
        """Close all; without names of the module, which may be gone when the interpreter ends."""
        while True:
            try:
                _, connection = self._idle.pop()
            except IndexError:
                return
            connection.close()

    __del__ = close  # not everybody closes a client


def _has_input(connection: http.client.HTTPConnection) -> bool:
    """Whether there is something to read on an idle connection, such as its end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


class Transport:
    """Requests to one service with one bearer token, or those of a source; thread-safe.

    Every method raises `Away` or `Refused`, and OSError for a failure of this host. Redirects are not
    followed: the token is for this service only.
    """

    #: Maximum bytes of a JSON response.
    longest_answer: int = _LONGEST_ANSWER

    def __init__(
        self,
        url: str,
        token: str | TokenSource,
        *,
        timeout: float = 30.0,
        context: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        """Set up; raises `InvalidAddress`."""
        parts = split_address(url)
        self.url = url.rstrip("/")
        self.host, self.port, self._tls = parts.hostname or "", parts.port, parts.scheme == "https"
        self._authority = parts.netloc
        self._prefix = quote(parts.path.rstrip("/"), safe=_SAFE)
        self._token = token
        self._timeout = timeout
        self._context = context
        self._proxy = proxy
        self._idle = _IdleConnections()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._idle.close()

    def use_token(self, token: str) -> None:
        """Use this token from now on, unless a source has them; requests under way keep theirs."""
        if isinstance(self._token, str):
            self._token = token

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Send a JSON object, or its bytes, and return the response."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode("utf-8")
        said = {"Content-Type": "application/json", **(headers or {})} if data is not None else headers or {}
        with self.open(method, path, data, said, timeout) as response:
            return self._read_answer(path, response)

    def download(self, path: str, to: BinaryIO, *, limit: int | None = None) -> None:
        """Download into a file; raises `TooLarge` beyond `limit` bytes."""
        with self.open("GET", path) as response:
            length, received = response.length, 0
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                if limit is not None and received > limit:
                    raise TooLarge(f"has more than {limit} bytes")
                to.write(chunk)
            if length is not None and received != length:
                raise self.unreachable(f"{path} broke off after {received} of {length} bytes")

    def upload(self, path: str, archive: BinaryIO, *, size: int) -> Answer:
        """Send an archive from its start."""
        archive.seek(0)
        headers = {"Content-Type": "application/x-tar", "Content-Length": str(size)}
        with self.open("PUT", path, archive, headers) as response:
            return self._read_answer(path, response)

    def upload_stream(self, path: str, content: BinaryIO) -> Answer:
        """Send a file of unknown size from where it stands."""
        with self.open("POST", path, content) as response:
            return self._read_answer(path, response)

    def _read_answer(self, path: str, response: http.client.HTTPResponse) -> Answer:
        text = response.read(self.longest_answer)
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            raise self.unreachable(f"{path} sent a response that is not JSON: {text[:80]!r}") from None
        if not isinstance(answer, dict):
            raise self.unreachable(f"{path} sent {text[:80]!r} instead of a JSON object")
        return Answer(body=answer, at=_date(response))

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        data: bytes | BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        *,
        root: str = _API,
        may_pause: bool = False,  # a stream of events: no least rate
    ) -> Iterator[http.client.HTTPResponse]:
        """A response whose body is read as it comes; the token is shown again if there is another by then."""
        target, token = f"{self._prefix}{root}{path}", self._current_token()
        begin = 0 if data is None or isinstance(data, bytes) else data.tell()
        exchange_as = partial(self._exchange, method, target, data, timeout, may_pause)
        try:
            with ExitStack() as stack:
                response = stack.enter_context(exchange_as(self._with_token(token, headers)))
                if response.status == _UNAUTHORIZED and (other := self._replace(token)) != token:
                    if data is not None and not isinstance(data, bytes):
                        data.seek(begin)
                    stack.close()
                    response = stack.enter_context(exchange_as(self._with_token(other, headers)))
                if not 200 <= response.status < 300:
                    raise self.rejection(_read_rejection(response))
                yield response
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and errors.is_to_blame(error):
                raise  # such as a full disk under a download
            raise self.unreachable(error) from None

    def unreachable(self, error: Exception | str) -> Exception:
        """The exception for a response that did not come, or is not the service's."""
        return Away(f"{self.url}{error if isinstance(error, str) else f': {name_error(error)}'}")

    def rejection(self, found: Rejection) -> Exception:
        """The exception for a response other than 2xx; a pilot waits wherever that may help."""
        if found.status == _UNAUTHORIZED and found.code != _REVOKED:
            return TokenNotAccepted(found.code, found.message)
        # A load balancer without a backend may respond with 403 or 404.
        is_astray = found.status in (403, 404, 409) and found.code in _ASTRAY
        # The service never redirects: a sign-in or maintenance page in front of it does, for a while.
        is_redirect = 300 <= found.status < 400
        if found.status >= 500 or found.status in _PASSING or is_astray or is_redirect:
            return Away(f"{found.message} ({found.status} {found.code})", found.retry_after)
        return Refused(found.status, found.code, found.message)

    def _current_token(self) -> str:
        return self._token if isinstance(self._token, str) else self._token()

    def _replace(self, token: str) -> str:
        """The token to use after one was refused; the same if there is no other."""
        if not isinstance(self._token, str):
            self._token.reject(token)
        return self._current_token()

    @contextmanager
    def _exchange(
        self,
        method: str,
        target: str,
        data: bytes | BinaryIO | None,
        timeout: float | None,
        may_pause: bool,  # noqa: FBT001
        headers: Mapping[str, str],
    ) -> Iterator[http.client.HTTPResponse]:
        """One request and its response; the connection is kept if the response was read to its end.

        A connection that stayed open may end just when it is used again: what is the same if it is done twice
        is then sent on a new one.
        """
        seconds = timeout or self._timeout
        kept = self._idle.take(seconds)
        connection = kept or self._connect(seconds)
        from pilotage.fabric.pilot.service.timed_response import TimedResponse  # once there is one

        timed = http.client.HTTPResponse if may_pause else partial(TimedResponse, seconds=seconds)
        connection.response_class = timed  # type: ignore[assignment]
        request = (method, self._as_seen_by_proxy(target), data, dict(headers))
        is_done = False
        try:
            try:
                response, is_sent = _send(connection, *request)
            except ConnectionError:
                if kept is None or not _is_repeatable(method, data, headers):
                    raise
                connection.close()  # the next request opens it
                response, is_sent = _send(connection, *request)
            yield response
            is_done = is_sent and response.isclosed() and not response.will_close
        finally:
            if is_done:
                self._idle.keep(connection)
            else:
                connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        """A connection to the service or to the proxy, with a CONNECT tunnel where the service uses TLS."""
        to = self._proxy or self
        if not self._tls:
            made = http.client.HTTPConnection(to.host, to.port, timeout=timeout)
        else:
            made = http.client.HTTPSConnection(to.host, to.port, timeout=timeout, context=self._context)
            if self._proxy is not None:
                made.set_tunnel(self.host, self.port, headers=dict(self._proxy.headers))
        made.connect()
        return made

    def _as_seen_by_proxy(self, target: str) -> str:
        """Request target: a proxy needs the absolute URL unless it only tunnels."""
        return target if self._proxy is None or self._tls else f"http://{self._authority}{target}"

    def _with_token(self, token: str, headers: Mapping[str, str] | None) -> dict[str, str]:
        if not (token.isascii() and token.isprintable()):
            wrong = "the token has signs that no token has, such as line breaks"  # it is not shown to anybody
            raise self.rejection(Rejection(_UNAUTHORIZED, _NOT_AUTHENTICATED, wrong, {}, None))
        shown = {"Authorization": f"Bearer {token}"} if token else {}
        own = {} if self._proxy is None or self._tls else self._proxy.headers
        return {**shown, "Accept": "application/json", **(headers or {}), **own}


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    data: bytes | BinaryIO | None,
    headers: dict[str, str],
) -> tuple[http.client.HTTPResponse, bool]:
    """The response to a request, and whether the whole request was sent before it."""
    is_sent = False
    # A service that refuses before it has read the whole body explains this in its response.
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.request(method, target, data, headers)
        is_sent = True
    return connection.getresponse(), is_sent


def _is_repeatable(method: str, data: bytes | BinaryIO | None, headers: Mapping[str, str]) -> bool:
    """Whether a request has one effect if it is carried out twice, and can be sent again."""
    return (method == "GET" or _KEY in headers) and (data is None or isinstance(data, bytes))


def name_error(error: Exception) -> str:
    """The message of an error, or its kind if it has none."""
    return str(error) or type(error).__name__


def _read_rejection(response: http.client.HTTPResponse) -> Rejection:
    details: Mapping[str, Any] = {}
    try:
        error = json.loads(response.read(1 << 20))["error"]
        code, message, details = str(error["code"]), str(error["message"]), dict(error.get("details") or {})
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        to = response.getheader("Location")
        where = f" to {to!r:.200}" if to else ""
        code, message = _FOREIGN, f"the service responds {response.status} {response.reason}{where}"
    retry_after = _seconds(response.getheader("Retry-After"))
    return Rejection(response.status, code, message, details, retry_after)


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _date(response: http.client.HTTPResponse) -> datetime:
    try:
        said = parsedate_to_datetime(response.getheader("Date") or "")
        return said if said.tzinfo else said.replace(tzinfo=timezone.utc)
    except (TypeError, ValueError):
        return datetime.now(timezone.utc)


#: Certificates in a directory without hash links (`openssl rehash`).
_PATTERNS = ("*.pem", "*.crt")


def tls_context(authorities: Path | None) -> ssl.SSLContext:
    """Make the TLS context with a file of CA certificates, or a directory of them as grid sites have it.

    Raises:
        ValueError: No CA certificate was found.
    """
    if authorities is None:
        return ssl.create_default_context()
    try:
        if not authorities.is_dir():
            return ssl.create_default_context(cafile=str(authorities))
        made = ssl.create_default_context(capath=str(authorities))
        indexed = any(authorities.glob("*.0"))
        files = sorted(file for pattern in _PATTERNS for file in authorities.glob(pattern))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"authorities {authorities}: {error}") from None
    for file in files:
        with suppress(OSError, ssl.SSLError):  # one bad file among hundreds must not matter
            made.load_verify_locations(cafile=str(file))
    if not indexed and not made.cert_store_stats()["x509_ca"]:
        raise ValueError(f"authorities {authorities}: contains no CA certificate")
    return made
