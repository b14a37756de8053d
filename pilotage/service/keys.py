"""The installation's own key, which signs its tokens."""

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)

from cs_config.errors import ConfigError
from requirements.problem import Problem

#: How tokens are signed: ECDSA over P-256 with SHA-256 (RFC 7518), which every library verifies.
ALGORITHM = "ES256"


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A private key and the name that tokens give to it."""

    private: EllipticCurvePrivateKey
    key_id: str  #: of the public part, so that it says nothing about the private one

    @property
    def public(self) -> EllipticCurvePublicKey:
        """The part that verifies."""
        return self.private.public_key()


def generate() -> SigningKey:
    """A new key."""
    return _named(generate_private_key(SECP256R1()))


def load_or_create(path: Path) -> SigningKey:
    """The key in the file, made at the first use; of several processes that start at once one makes it.

    Raises:
        ConfigError: The file holds no P-256 key in PEM.
    """
    if not path.exists():
        _create(path)
    try:
        private = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise _wrong(path, f"is no private key in PEM: {error}") from None
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        raise _wrong(path, "is a private key of another kind, allowed is P-256")
    return _named(private)


def _create(path: Path) -> None:
    """Write a new key aside and link it to its name, which only the first one can do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pem = generate().private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(aside, path)
    except FileExistsError:
        pass
    finally:
        aside.unlink()


def _named(private: EllipticCurvePrivateKey) -> SigningKey:
    public = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return SigningKey(private=private, key_id=sha256(public).hexdigest()[:16])


def _wrong(path: Path, message: str) -> ConfigError:
    return ConfigError([Problem(path="signing key", message=message, file=str(path))])
