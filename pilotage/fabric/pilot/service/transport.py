"""HTTP with the standard library only: one connection per request, JSON or archives.

Also the choice of the site's HTTP proxy and of the CA certificates.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from pilotage.fabric.pilot import errors

#: Value instead of a proxy address: no proxy, whatever the environment contains.
NONE = "none"
_PORT = 3128


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
    parts = urlsplit(url)
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
    parts = urlsplit(address if "//" in address else f"http://{address}")
    try:
        host, port = parts.hostname, parts.port or _PORT
    except ValueError:
        host, port = None, 0
    if parts.scheme != "http" or not host:
        # The part before the @ may contain a password.
        shown = address.rpartition("@")[2]
        raise ValueError(f"{shown!r} is not a proxy address such as http://proxy.example.org:3128")
    if parts.username is None:
        return Proxy(host, port, {})
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(host, port, {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"})


#: Bytes of an archive held in memory at a time.
_CHUNK = 1 << 18
#: Maximum bytes of a JSON response.
_LONGEST_ANSWER = 64 << 20
#: Status codes below 500 after which a retry may succeed.
_PASSING = frozenset({408, 425, 429})
#: The code of a 409 to an end whose output was among lost commits.
_OUTPUT_MISSING = "output_missing"
#: The code of a permanent 401: an operator revoked the token.
_REVOKED = "revoked"
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


class Transport:
    """Requests to one service with one bearer token; thread-safe.

    Every method raises `Away` or `Refused`, and OSError for a failure of this host. Redirects are not
    followed: the token is for this service only.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout: float = 30.0,
        context: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not a service address such as https://pilotage.example.org")
        self.url = url.rstrip("/")
        self.host, self.port, self._tls = parts.hostname, parts.port, parts.scheme == "https"
        self._authority = parts.netloc
        self._prefix = parts.path.rstrip("/") + "/api/v1"
        self._token = token
        self._timeout = timeout
        self._context = context
        self._proxy = proxy

    def use_token(self, token: str) -> None:
        """Use this token from now on; requests under way keep theirs."""
        self._token = token

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Send a JSON object and return the response."""
        data = None if body is None else json.dumps(body).encode("utf-8")
        said = {"Content-Type": "application/json", **(headers or {})} if data is not None else headers or {}
        with self._response(method, path, data, said, timeout) as response:
            return self._read_answer(path, response)

    def download(self, path: str, to: BinaryIO, *, limit: int) -> None:
        """Download an archive into a file; raises `TooLarge` beyond `limit` bytes."""
        with self._response("GET", path, None, {}, None) as response:
            length, received = response.length, 0
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                if received > limit:
                    raise TooLarge(f"has more than {limit} bytes")
                to.write(chunk)
            if length is not None and received != length:
                raise Away(f"{self.url}{path} broke off after {received} of {length} bytes")

    def upload(self, path: str, archive: BinaryIO, *, size: int) -> Answer:
        """Send an archive from its start."""
        archive.seek(0)
        headers = {"Content-Type": "application/x-tar", "Content-Length": str(size)}
        with self._response("PUT", path, archive, headers, None) as response:
            return self._read_answer(path, response)

    def _read_answer(self, path: str, response: http.client.HTTPResponse) -> Answer:
        text = response.read(_LONGEST_ANSWER)
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            raise Away(f"{self.url}{path} sent a response that is not JSON: {text[:80]!r}") from None
        if not isinstance(answer, dict):
            raise Away(f"{self.url}{path} sent {text[:80]!r} instead of a JSON object")
        return Answer(body=answer, at=_date(response))

    @contextmanager
    def _response(
        self,
        method: str,
        path: str,
        data: bytes | BinaryIO | None,
        headers: Mapping[str, str],
        timeout: float | None,
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection(timeout or self._timeout)
        try:
            connection.connect()
            # A service that refuses before it has read the whole body explains this in its response.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._target(path), data, self._with_token(headers))
            response = connection.getresponse()
            _refuse_failure(response)
            yield response
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and errors.is_to_blame(error):
                raise  # such as a full disk under a download
            raise Away(f"{self.url}: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        """Connect to the service or to the proxy, with a CONNECT tunnel where the service uses TLS."""
        to = self._proxy or self
        if not self._tls:
            return http.client.HTTPConnection(to.host, to.port, timeout=timeout)
        made = http.client.HTTPSConnection(to.host, to.port, timeout=timeout, context=self._context)
        if self._proxy is not None:
            made.set_tunnel(self.host, self.port, headers=dict(self._proxy.headers))
        return made

    def _target(self, path: str) -> str:
        """Request target: a proxy needs the absolute URL unless it only tunnels."""
        if self._proxy is None or self._tls:
            return self._prefix + path
        return f"http://{self._authority}{self._prefix}{path}"

    def _with_token(self, headers: Mapping[str, str]) -> dict[str, str]:
        said = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", **headers}
        return said if self._proxy is None or self._tls else {**said, **self._proxy.headers}


def _refuse_failure(response: http.client.HTTPResponse) -> None:
    """Raise the exception for a status other than 2xx."""
    if 200 <= response.status < 300:
        return
    code, message = _error(response)
    if response.status == 401 and code != _REVOKED:
        raise TokenNotAccepted(code, message)
    # A load balancer without a backend may respond with 403 or 404.
    is_astray = response.status in (403, 404, 409) and code in _ASTRAY
    # The service never redirects: a sign-in or maintenance page in front of it does, for a while.
    is_redirect = 300 <= response.status < 400
    if response.status >= 500 or response.status in _PASSING or is_astray or is_redirect:
        raise Away(f"{message} ({response.status} {code})", _seconds(response.getheader("Retry-After")))
    raise Refused(response.status, code, message)


def _error(response: http.client.HTTPResponse) -> tuple[str, str]:
    try:
        error = json.loads(response.read(1 << 16))["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        to = response.getheader("Location")
        where = f" to {to!r:.200}" if to else ""
        return _FOREIGN, f"the service responds {response.status} {response.reason}{where}"


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None


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
