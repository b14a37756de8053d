"""How tokens of other issuers may be signed: by keys that have a public part, with nothing that is broken."""

from collections.abc import Mapping

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
