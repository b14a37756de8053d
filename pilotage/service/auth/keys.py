"""The installation's key file: the private key that signs tokens, and retiring public keys that still verify.

The file is replaced as a whole, so that no process reads half of a rotation, and an operator copies one file
from host to host. It is PEM, which allows lines of text before a key: they hold the time of its retirement.
"""

import fcntl
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm

from cs_config.errors import ConfigError
from requirements.errors import Problem

#: Signature algorithm: ECDSA over P-256 with SHA-256 (RFC 7518), supported by every library.
ALGORITHM = "ES256"

_RETIRED = "# verifies until "
_PUBLIC = re.compile(
    rf"^{_RETIRED}(\S+)\n(-----BEGIN PUBLIC KEY-----\n.*?-----END PUBLIC KEY-----\n)",
    re.DOTALL | re.MULTILINE,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class VerifyingKey:
    """A public key and its key id."""

    public: EllipticCurvePublicKey
    until: datetime | None = None  #: time of retirement; None: the signing key

    @cached_property
    def key_id(self) -> str:
        """Digest of the public key, so that it reveals nothing about the private one."""
        der = self.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return sha256(der).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class SigningKey:
    """A private key and its key id."""

    private: EllipticCurvePrivateKey

    @property
    def public(self) -> EllipticCurvePublicKey:
        """The public key that verifies its signatures."""
        return self.private.public_key()

    @cached_property
    def key_id(self) -> str:
        """The id of the public key."""
        return VerifyingKey(public=self.public).key_id


@dataclass(frozen=True, kw_only=True)
class KeyRing:
    """All valid keys."""

    signing: SigningKey
    retiring: tuple[VerifyingKey, ...] = ()  #: former signing keys, the latest first

    @cached_property
    def verifying(self) -> Mapping[str, VerifyingKey]:
        """All keys that verify, by key id."""
        own = VerifyingKey(public=self.signing.public)
        return {key.key_id: key for key in (*self.retiring, own)}

    def published(self, *, now: datetime) -> dict[str, list[dict[str, object]]]:
        """The public keys as a JWK set (RFC 7517), for others who verify our tokens."""
        about = {"use": "sig", "alg": ALGORITHM}
        jwks = [
            {**ECAlgorithm.to_jwk(key.public, as_dict=True), **about, "kid": key.key_id}
            for key in self.verifying.values()
            if key.until is None or key.until > now
        ]
        return {"keys": jwks}


def generate() -> SigningKey:
    """Generate a new key."""
    return SigningKey(private=generate_private_key(SECP256R1()))


def load_or_create(path: Path) -> KeyRing:
    """Load the key file; create it at first use (of several starting processes one creates it).

    `ConfigError` if the file holds no P-256 key in PEM or cannot be read.
    """
    if not path.exists():
        _create(path)
    return load(path)


def load(path: Path) -> KeyRing:
    """Load the key file; errors as for `load_or_create`."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}") from None
    try:
        private = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise _wrong(path, f"is no private key in PEM: {error}") from None
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        raise _wrong(path, "is a private key of another kind, allowed is P-256")
    return KeyRing(signing=SigningKey(private=private), retiring=tuple(_retiring(path, text)))


def rotate(path: Path, *, keep: timedelta, now: datetime) -> KeyRing:
    """Sign with a new key from now on; errors as for `load_or_create`.

    The previous key goes on to verify for `keep`; tokens that it signed end then.
    """
    with _locked(path):
        ring = load(path)
        last = VerifyingKey(public=ring.signing.public, until=now.replace(microsecond=0) + keep)
        return _replace(path, generate(), (last, *ring.retiring), now)


def retire(path: Path, key_id: str, *, now: datetime) -> KeyRing | None:
    """Stop verifying with a former key; None: there is no such key except the signing one."""
    with _locked(path):
        ring = load(path)
        left = tuple(key for key in ring.retiring if key.key_id != key_id)
        if len(left) == len(ring.retiring):
            return None
        return _replace(path, ring.signing, left, now)


class KeyFile:
    """Detect changes of the key file made by other processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _fingerprint(path)

    def changed(self) -> KeyRing | None:
        """Return the keys if the file has changed since the last call; an unreadable file changes nothing."""
        current = _fingerprint(self._path)
        if current == self._seen:
            return None
        self._seen = current
        try:
            return load(self._path)
        except ConfigError as error:
            _log.error("the keys are unchanged: %s", error)
            return None


def _fingerprint(path: Path) -> tuple[int, int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _retiring(path: Path, text: bytes) -> Iterator[VerifyingKey]:
    for until, pem in _PUBLIC.findall(text.decode("utf-8", "replace")):
        try:
            public = serialization.load_pem_public_key(pem.encode())
            when = datetime.fromisoformat(until)
        except ValueError as error:
            raise _wrong(path, f"has an earlier key that cannot be read: {error}") from None
        if not isinstance(public, EllipticCurvePublicKey) or when.tzinfo is None:
            raise _wrong(path, "has an earlier key of another kind, or without the time when it is retired")
        yield VerifyingKey(public=public, until=when)


def _create(path: Path) -> None:
    """Write a temporary file and link it to the final name, which succeeds for one process only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    _write(temporary, KeyRing(signing=generate()))
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _replace(path: Path, signing: SigningKey, former: Iterable[VerifyingKey], now: datetime) -> KeyRing:
    """Write the keys, without those that have retired; in a new file, which then takes the name."""
    retiring = tuple(key for key in former if key.until is not None and key.until > now)
    ring = KeyRing(signing=signing, retiring=retiring)
    temporary = _temporary_path(path)
    try:
        owner = path.stat()
        _write(temporary, ring)
        if (os.geteuid(), os.getegid()) != (owner.st_uid, owner.st_gid):
            # Root rotates, the service must still be able to read.
            os.chown(temporary, owner.st_uid, owner.st_gid)
        temporary.chmod(owner.st_mode & 0o777)
        temporary.replace(path)
    except OSError as error:
        raise _wrong(path, f"cannot be replaced: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return ring


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _write(path: Path, ring: KeyRing) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        private = ring.signing.private.private_bytes(
            Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write(private.decode())
        for key in ring.retiring:
            if key.until:
                public = key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                file.write(f"{_RETIRED}{key.until.isoformat()}\n{public.decode()}")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Serialise changes; the lock ends with the process."""
    try:
        directory = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise _wrong(path, f"cannot be changed: {error.strerror}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
        os.fsync(directory)
    finally:
        os.close(directory)


def _wrong(path: Path, message: str) -> ConfigError:
    return ConfigError([Problem(path="signing key", message=message, file=str(path))])
