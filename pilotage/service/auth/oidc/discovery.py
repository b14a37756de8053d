"""Metadata and keys that an issuer publishes: fetched over HTTP and cached in this process."""

import json
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from pilotage.bounded_http import BoundedTransport
from pilotage.service.auth.oidc.issuer import Issuer
from requirements.errors import PilotageError

_log = logging.getLogger(__name__)

#: Seconds for one request, while a user or program waits, and bytes of its answer.
TIMEOUT, MOST = 5.0, 1 << 20
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WELL_KNOWN = "/.well-known/openid-configuration"
#: Key type (JWK `kty`) of each allowed algorithm (RFC 7518, RFC 8037). `none` and shared secrets are
#: excluded: otherwise a public key would suffice to sign.
KEY_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
#: Seconds between two fetches: invented key ids must not cause more.
PATIENCE = 10.0


class IssuerAway(PilotageError):
    """An issuer does not answer, or its answer is invalid."""

    code = "issuer_away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An issuer's published metadata."""

    keys: tuple[Mapping[str, object], ...]  #: JWKs, unchanged
    endpoints: Mapping[str, str]  #: addresses by their name in the metadata (`token_endpoint` …)


def client(issuer: Issuer) -> httpx.Client:
    """HTTP client for the issuer. It follows no redirects, which could forward secrets to another host."""
    try:
        if issuer.authorities is None:
            context = httpx.create_ssl_context()
        else:
            context = ssl.create_default_context(cafile=str(issuer.authorities))
    except OSError as error:
        raise IssuerAway(f"{issuer.url}: {issuer.authorities} cannot be read: {error.strerror}") from None
    bounded = BoundedTransport(context, seconds=TIMEOUT, most=MOST, with_proxies=True)
    return httpx.Client(transport=bounded, timeout=TIMEOUT)


def fetch(issuer: Issuer) -> Published:
    """Fetch the issuer's endpoints and keys. Source: OpenID Connect Discovery 1.0."""
    with client(issuer) as http:
        metadata = get(http, issuer, issuer.url.rstrip("/") + _WELL_KNOWN)
        if not issuer.is_named(metadata.get("issuer")):
            raise IssuerAway(
                f"{issuer.url} calls itself {metadata.get('issuer')!r:.200}: state that in the settings"
            )
        endpoints = {name: value for name, value in metadata.items() if isinstance(value, str)}
        keys = get(http, issuer, endpoint(issuer, endpoints, "jwks_uri")).get("keys")
    if not isinstance(keys, list) or not keys:
        raise IssuerAway(f"{issuer.url} publishes no keys")
    return Published(keys=tuple(key for key in keys if isinstance(key, dict)), endpoints=endpoints)


def clock(issuer: Issuer) -> datetime:
    """The time by the issuer's clock, to the second; `IssuerAway` without a `Date`."""
    with client(issuer) as http:
        try:
            answer = http.head(issuer.url.rstrip("/") + _WELL_KNOWN)
            made = parsedate_to_datetime(answer.headers["Date"]).replace(tzinfo=UTC)
            # A proxy cache may have stored the answer this many seconds ago.
            return made + timedelta(seconds=int(answer.headers.get("Age", 0)))
        except httpx.HTTPError as error:
            raise IssuerAway(f"{issuer.url} does not answer: {_reason(error)}") from None
        except (KeyError, ValueError):
            raise IssuerAway(f"{issuer.url} does not send its time") from None


def endpoint(issuer: Issuer, endpoints: Mapping[str, str], name: str) -> str:
    """An endpoint from the issuer's metadata; `IssuerAway` if it is missing or not https."""
    url = endpoints.get(name)
    if url is None:
        raise IssuerAway(f"{issuer.url} does not state its {name}")
    if not is_safe(url, or_local=urlsplit(issuer.url).scheme != "https"):
        raise IssuerAway(f"{issuer.url} has {url!r:.200} as {name}, which is not https")
    return url


def is_safe(url: str, *, or_local: bool = True) -> bool:
    """Whether nobody on the network path can change the content: https or, with `or_local`, this machine.

    For endpoints that an issuer names, http suffices only if the issuer itself is local: otherwise it could
    direct us to any service that listens here.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parts.scheme == "https" or (or_local and parts.scheme == "http" and parts.host in _LOOPBACK)


def get(http: httpx.Client, issuer: Issuer, url: str, token: str | None = None) -> dict[str, object]:
    """Fetch a JSON object from the issuer; errors as for `read`."""
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    return read(http, issuer, http.build_request("GET", url, headers=headers))


def read(http: httpx.Client, issuer: Issuer, request: httpx.Request) -> dict[str, object]:
    """Send a request and parse the answer, a JSON object.

    `IssuerAway` without a valid answer; the message contains nothing of what was sent.
    """
    where = f"{issuer.url}: {urlsplit(str(request.url)).path}"
    try:
        answer = http.send(request)
    except httpx.HTTPError as error:
        raise IssuerAway(f"{where} does not answer: {_reason(error)}") from None
    if answer.status_code != httpx.codes.OK:
        raise IssuerAway(f"{where} answers {answer.status_code}")
    try:
        content = json.loads(answer.content)
    except (ValueError, RecursionError):  # brackets by the thousand
        content = None
    if not isinstance(content, dict):
        raise IssuerAway(f"{where} does not answer a JSON object")
    return content


def _reason(error: httpx.HTTPError) -> str:
    return f"{str(error) or type(error).__name__:.200}"


class IssuerKeys:
    """Cached keys of one issuer; kept while the issuer is unavailable."""

    def __init__(self, fetch: Callable[[], Published]) -> None:
        self._fetch = fetch
        self._published: Published | None = None
        self._keys: Sequence[tuple[Mapping[str, object], Any]] = ()  #: JWKs with the keys for PyJWT
        self._tried_at: float | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        """Number of usable keys."""
        return len(self._keys)

    @property
    def endpoints(self) -> Mapping[str, str]:
        """The issuer's endpoints; empty before the first fetch."""
        return self._published.endpoints if self._published else {}

    def find(self, *, key_id: str | None, algorithm: str) -> Sequence[Any]:
        """The keys that may have signed a token, for PyJWT; several if they have no ids."""
        fitting = [
            (jwk.get("kid"), key)
            for jwk, key in self._keys
            if jwk["kty"] == KEY_TYPES.get(algorithm) and jwk.get("alg") in (None, algorithm)
        ]
        named = [key for own_id, key in fitting if key_id in (None, own_id)]
        return named or [key for own_id, key in fitting if own_id is None]

    def refresh(self, *, now: float) -> bool:
        """Fetch the keys unless just done; return whether they changed. `now` is monotonic, in seconds."""
        with self._lock:
            if self._tried_at is not None and now - self._tried_at < PATIENCE:
                return False
            self._tried_at = now
            try:
                published = self._fetch()
            except IssuerAway as error:
                _log.warning("the keys of an issuer are unchanged: %s", error)
                return False
            before, self._published = self._published, published
            if before is not None and before.keys == published.keys:
                return False
            self._keys = [(jwk, key) for jwk in published.keys if (key := _read_key(jwk)) is not None]
            return True


def _read_key(jwk: Mapping[str, object]) -> Any | None:
    """The key for PyJWT if it can verify signatures."""
    is_of_others = jwk.get("use") not in (None, "sig") or jwk.get("alg") not in (None, *KEY_TYPES)
    if is_of_others or jwk.get("kty") not in KEY_TYPES.values():
        return None
    public = {name: value for name, value in jwk.items() if name != "d"}
    try:
        return jwt.PyJWK(public).key
    except jwt.PyJWTError as error:
        _log.warning("a key of an issuer is not used: %s", error)
        return None
