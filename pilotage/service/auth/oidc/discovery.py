"""What an issuer publishes of itself: its endpoints and its keys, fetched over HTTP.

How tokens of other issuers may be signed: by keys that have a public part, with nothing that is broken.

The keys that an issuer publishes, as this process knows them.
"""

import json
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from pilotage.service.auth.oidc.issuer import Issuer
from requirements.errors import PilotageError

#: Seconds for one request; a person or a program waits.
TIMEOUT = 5.0
#: Bytes of a document.
_LONGEST = 1 << 20
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WELL_KNOWN = "/.well-known/openid-configuration"


class IssuerAway(PilotageError):
    """An issuer does not answer, or not what it should."""

    code = "issuer_away"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What an issuer says of itself."""

    keys: tuple[Mapping[str, object], ...]  #: JWKs, as they came
    endpoints: Mapping[str, str]  #: addresses by their name in the metadata (`token_endpoint` …)


def client(issuer: Issuer) -> httpx.Client:
    """What speaks with the issuer; it follows no redirection, and tells nobody else what it sends.

    Raises:
        IssuerAway: The authorities that it is believed by cannot be read.
    """
    if issuer.authorities is None:
        return httpx.Client(timeout=TIMEOUT)
    try:
        context = ssl.create_default_context(cafile=str(issuer.authorities))
    except OSError as error:
        raise IssuerAway(f"{issuer.url}: {issuer.authorities} cannot be read: {error.strerror}") from None
    return httpx.Client(timeout=TIMEOUT, verify=context)


def fetch(issuer: Issuer) -> Published:
    """Ask the issuer for its endpoints and keys.

    Source: OpenID Connect Discovery 1.0.

    Raises:
        IssuerAway: It does not answer, or what it says does not fit.
    """
    with client(issuer) as http:
        metadata = get(http, issuer, issuer.url.rstrip("/") + _WELL_KNOWN)
        if not issuer.is_named(metadata.get("issuer")):
            raise IssuerAway(
                f"{issuer.url} calls itself {metadata.get('issuer')!r:.200}: say so in the settings"
            )
        endpoints = {name: value for name, value in metadata.items() if isinstance(value, str)}
        keys = get(http, issuer, endpoint(issuer, endpoints, "jwks_uri")).get("keys")
    if not isinstance(keys, list) or not keys:
        raise IssuerAway(f"{issuer.url} publishes no keys")
    return Published(keys=tuple(key for key in keys if isinstance(key, dict)), endpoints=endpoints)


def clock(issuer: Issuer) -> datetime:
    """What time it is by the issuer's clock, to the second.

    Raises:
        IssuerAway: It does not say.
    """
    with client(issuer) as http:
        try:
            answer = http.head(issuer.url.rstrip("/") + _WELL_KNOWN)
            made = parsedate_to_datetime(answer.headers["Date"]).replace(tzinfo=UTC)
            # A cache on the way gives on what it was told so many seconds ago.
            return made + timedelta(seconds=int(answer.headers.get("Age", 0)))
        except httpx.HTTPError as error:
            raise IssuerAway(f"{issuer.url} does not answer: {_reason(error)}") from None
        except (KeyError, ValueError):
            raise IssuerAway(f"{issuer.url} does not say what time it is") from None


def endpoint(issuer: Issuer, endpoints: Mapping[str, str], name: str) -> str:
    """An address that the issuer gave.

    Raises:
        IssuerAway: It gave none, or one that everybody on the way can read or change.
    """
    url = endpoints.get(name)
    if url is None:
        raise IssuerAway(f"{issuer.url} does not say its {name}")
    if not is_safe(url, or_local=not _is_https(issuer.url)):
        raise IssuerAway(f"{issuer.url} has {url!r:.200} as {name}, which is not https")
    return url


def is_safe(url: str, *, or_local: bool = True) -> bool:
    """Whether nobody on the way can change what is said there.

    Args:
        url: The address.
        or_local: Whether http on this machine will do. For what an issuer says it does only if the issuer is
            here too: else it would send us to whatever listens here.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parts.scheme == "https" or (or_local and parts.scheme == "http" and parts.host in _LOOPBACK)


def _is_https(url: str) -> bool:
    return urlsplit(url).scheme == "https"


def get(http: httpx.Client, issuer: Issuer, url: str, token: str | None = None) -> dict[str, object]:
    """A JSON document of the issuer.

    Raises:
        IssuerAway: There is none.
    """
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    return read(http, issuer, http.build_request("GET", url, headers=headers))


def read(http: httpx.Client, issuer: Issuer, request: httpx.Request) -> dict[str, object]:
    """The answer of the issuer, a JSON object.

    Raises:
        IssuerAway: There is none; the message says nothing of what was sent.
    """
    where = f"{issuer.url}: {urlsplit(str(request.url)).path}"
    try:
        answer = http.send(request, stream=True)
        try:
            body = _body(answer)
        finally:
            answer.close()
    except httpx.HTTPError as error:
        raise IssuerAway(f"{where} does not answer: {_reason(error)}") from None
    if answer.status_code != httpx.codes.OK:
        raise IssuerAway(f"{where} answers {answer.status_code}")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):  # brackets by the thousand
        content = None
    if not isinstance(content, dict):
        raise IssuerAway(f"{where} answers something that is no JSON object")
    return content


def _reason(error: httpx.HTTPError) -> str:
    """What the network or TLS has to say."""
    return f"{str(error) or type(error).__name__:.200}"


def _body(answer: httpx.Response) -> bytes:
    body = b""
    for piece in answer.iter_bytes():
        body += piece
        if len(body) > _LONGEST:
            raise httpx.DecodingError("too long")
    return body


#: The kind of key (JWK `kty`) by each algorithm (RFC 7518, RFC 8037). Neither `none` nor a shared secret
#: is among them: whoever knows a public key must not be able to sign with it.
KEY_TYPES: Mapping[str, str] = {
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "ES256": "EC",
    "ES384": "EC",
    "ES512": "EC",
    "EdDSA": "OKP",
}

_log = logging.getLogger(__name__)

#: Seconds between two questions: whoever invents names of keys does not make us ask more often.
PATIENCE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """One key of the set."""

    key: Any  #: as the library for signatures takes it
    key_type: str
    key_id: str | None
    algorithm: str | None  #: None: any that fits the type

    def verifies(self, algorithm: str) -> bool:
        """Whether it is for tokens that are signed so."""
        return self.key_type == KEY_TYPES.get(algorithm) and self.algorithm in (None, algorithm)


class IssuerKeys:
    """Keeps the keys of one issuer; while the issuer is away, those it had."""

    def __init__(self, fetch: Callable[[], Published]) -> None:
        self._fetch = fetch
        self._published: Published | None = None
        self._keys: tuple[PublicKey, ...] = ()
        self._tried_at: float | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        """How many keys are known that may verify a token."""
        return len(self._keys)

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where the issuer says that it is; empty before it was reached."""
        return self._published.endpoints if self._published else {}

    def find(self, *, key_id: str | None, algorithm: str) -> tuple[PublicKey, ...]:
        """The keys that may have signed a token; several where they have no names."""
        fitting = tuple(key for key in self._keys if key.verifies(algorithm))
        if key_id is None:
            return fitting
        named = tuple(key for key in fitting if key.key_id == key_id)
        return named or tuple(key for key in fitting if key.key_id is None)

    def refresh(self, *, now: float) -> bool:
        """Ask the issuer, unless that was just done; whether it has other keys than before.

        Args:
            now: Seconds of a clock that never goes back.
        """
        with self._lock:
            if self._tried_at is not None and now - self._tried_at < PATIENCE:
                return False
            self._tried_at = now
            try:
                published = self._fetch()
            except IssuerAway as error:
                _log.warning("the keys of an issuer stay as they were: %s", error)
                return False
            before, self._published = self._published, published
            if before is not None and before.keys == published.keys:
                return False
            self._keys = tuple(key for each in published.keys if (key := _key(each)) is not None)
            return True


def _key(jwk: Mapping[str, object]) -> PublicKey | None:
    """The key, if it is one to verify with."""
    key_type, use, key_id, algorithm = (jwk.get(name) for name in ("kty", "use", "kid", "alg"))
    if key_type not in KEY_TYPES.values() or use not in (None, "sig"):
        return None
    public = {name: value for name, value in jwk.items() if name != "d"}
    try:
        key = jwt.PyJWK(public).key
    except jwt.PyJWTError as error:
        _log.warning("a key of an issuer is not used: %s", error)
        return None
    return PublicKey(
        key=key,
        key_type=str(key_type),
        key_id=key_id if isinstance(key_id, str) else None,
        algorithm=algorithm if isinstance(algorithm, str) else None,
    )
