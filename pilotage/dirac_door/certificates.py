"""Identity in a chain of certificates: a person, a host, or a proxy of one.

OpenSSL has verified the chain with its proxies (RFC 3820) before. The group of a proxy is an extension that
its owner wrote: `peers` checks it.

Source: DIRAC 9.1, `Core/Security/m2crypto`; RFC 3820.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier

_PROXY: Final = ObjectIdentifier("1.3.6.1.5.5.7.1.14")
_GROUP: Final = ObjectIdentifier("1.2.42.42")
#: Policy of a limited proxy, 1.3.6.1.4.1.3536.1.1.1.9, in DER.
_LIMITED: Final = bytes.fromhex("2b060104019b5001010109")
_IA5_STRING: Final = 0x16
#: Names of attributes as OpenSSL prints them.
_ATTRIBUTES: Final = {
    NameOID.COMMON_NAME: "CN",
    NameOID.COUNTRY_NAME: "C",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.EMAIL_ADDRESS: "emailAddress",
    NameOID.GIVEN_NAME: "GN",
    NameOID.LOCALITY_NAME: "L",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.SERIAL_NUMBER: "serialNumber",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.SURNAME: "SN",
    NameOID.USER_ID: "UID",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a verified chain proves, and the group that its owner wrote into it."""

    dn: str  #: of the certificate that is no proxy, such as `/C=ch/O=cern/CN=ada`
    group: str | None  #: None: no proxy names one
    is_limited: bool
    fingerprint: str  #: of the key of the first certificate, in hexadecimal


def identify(chain: Sequence[bytes]) -> Identity | None:
    """The identity of a verified chain in DER, the peer's own certificate first; None: unreadable."""
    try:
        certificates = [x509.load_der_x509_certificate(each) for each in chain]
        proxies: list[x509.Certificate] = []
        for each in certificates:
            if _extension(each, _PROXY) is None:
                break
            proxies.append(each)
        else:
            return None
        groups = [found for proxy in reversed(proxies) if (found := _extension(proxy, _GROUP)) is not None]
        return Identity(
            dn=format_name(each.subject),
            group=_read_text(groups[0]) if groups else None,
            is_limited=any(_LIMITED in (_extension(proxy, _PROXY) or b"") for proxy in proxies),
            fingerprint=_hash_key(certificates[0]),
        )
    except ValueError:  # also of extensions that cannot be parsed
        return None


def format_name(name: x509.Name) -> str:
    """A name as OpenSSL prints it on one line, and as it stands in DIRAC's registry."""
    return "".join(
        f"/{_ATTRIBUTES.get(each.oid, each.oid.dotted_string)}={_escape(each.value)}" for each in name
    )


def _escape(value: str | bytes) -> str:
    octets = value.encode() if isinstance(value, str) else value
    return "".join(chr(each) if 0x20 <= each <= 0x7E else f"\\x{each:02X}" for each in octets)


def _extension(certificate: x509.Certificate, wanted: ObjectIdentifier) -> bytes | None:
    for each in certificate.extensions:
        if each.oid == wanted and isinstance(each.value, x509.UnrecognizedExtension):
            return each.value.value
    return None


def _read_text(octets: bytes) -> str:
    """The text of a short IA5String in DER."""
    if len(octets) < 3 or octets[0] != _IA5_STRING or octets[1] != len(octets) - 2:
        raise ValueError("the group of the proxy is no IA5String")
    return octets[2:].decode("ascii")


def _hash_key(certificate: x509.Certificate) -> str:
    octets = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(octets).hexdigest()
