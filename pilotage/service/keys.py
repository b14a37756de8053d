"""The installation's own keys: one signs its tokens, those before it verify for a while."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import sha256

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from jwt.algorithms import ECAlgorithm

#: How tokens are signed: ECDSA over P-256 with SHA-256 (RFC 7518), which every library verifies.
ALGORITHM = "ES256"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyingKey:
    """A public key and the name that tokens give to it."""

    public: EllipticCurvePublicKey
    until: datetime | None = None  #: when it is retired; None: it is the one that signs

    @property
    def key_id(self) -> str:
        """Its name: of the public part, so that it says nothing about the private one."""
        der = self.public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return sha256(der).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A private key and the name that tokens give to it."""

    private: EllipticCurvePrivateKey
    key_id: str

    @property
    def public(self) -> EllipticCurvePublicKey:
        """The part that verifies."""
        return self.private.public_key()


@dataclass(frozen=True, kw_only=True)
class KeyRing:
    """All keys that are good now."""

    signing: SigningKey
    retiring: tuple[VerifyingKey, ...] = ()  #: those that signed before, the last one first

    @cached_property
    def verifying(self) -> Mapping[str, VerifyingKey]:
        """Every key that verifies, by its name."""
        own = VerifyingKey(public=self.signing.public)
        return {key.key_id: key for key in (*self.retiring, own)}

    def published(self, *, now: datetime) -> dict[str, list[dict[str, object]]]:
        """The public parts as a JWK set (RFC 7517), for others who verify our tokens."""
        good = [key for key in self.verifying.values() if key.until is None or key.until > now]
        about = {"use": "sig", "alg": ALGORITHM}
        return {
            "keys": [
                {**ECAlgorithm.to_jwk(key.public, as_dict=True), **about, "kid": key.key_id} for key in good
            ]
        }


def generate() -> SigningKey:
    """A new key."""
    return named(generate_private_key(SECP256R1()))


def named(private: EllipticCurvePrivateKey) -> SigningKey:
    """The key with its name."""
    return SigningKey(private=private, key_id=VerifyingKey(public=private.public_key()).key_id)
