"""The keys that an issuer publishes, as this process knows them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jwt

from pilotage.service.oidc.algorithms import KEY_TYPES
from pilotage.service.oidc.discovery import IssuerAway, Published

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
