"""A certificate authority made anew each time, and the certificates and proxies that it signs."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = timedelta(days=1)
_USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Authority:
    """Its certificate lies in `directory`; `/DC=test` begins every name it signs."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        self._directory = directory
        self._name = _name(name)
        self._key = _key()
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = directory / "ca.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, days: int = 30) -> tuple[Path, Path]:
        """A certificate for a host of this machine or for a person, good for some days, and its key."""
        key = _key()
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        local = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
        )
        certificate = (
            _builder(_name(name), self._name, key, days=days)
            .add_extension(x509.ExtendedKeyUsage(_USAGES), critical=False)
            .add_extension(local, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem, secret = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        secret.touch(mode=0o600)
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pem, secret

    def revoke(self, *certificates: Path) -> None:
        """A list of these certificates, beside that of the authority; `link_by_hash` makes it known."""
        now = datetime.now(UTC)
        revoked = (
            x509.RevokedCertificateBuilder()
            .serial_number(x509.load_pem_x509_certificate(each.read_bytes()).serial_number)
            .revocation_date(now - _DAY)
            .build()
            for each in certificates
        )
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(now - _DAY).next_update(now + _DAY)
        for each in revoked:
            builder = builder.add_revoked_certificate(each)
        signed = builder.sign(self._key, hashes.SHA256())
        (self._directory / "crl.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def link_by_hash(self) -> Path:
        """A directory of the certificate, and of the list of revoked ones, as grids and OpenSSL have it."""
        directory = self._directory / "certificates"
        directory.mkdir(exist_ok=True)
        for name in ("ca.pem", "crl.pem"):
            if (file := self._directory / name).exists():
                shutil.copy(file, directory)
        subprocess.run(["openssl", "rehash", str(directory)], check=True, capture_output=True)
        return directory


def make_proxy(
    certificate: Path,
    secret: Path,
    file: Path,
    *,
    group: str | None = None,
    limited: bool = False,
    days: float = 1,
) -> Path:
    """A proxy (RFC 3820) of a certificate, or of a proxy, in one file with its key and its chain."""
    key = _key()
    signed, *chain = sign_proxy(
        certificate, secret, key.public_key(), group=group, limited=limited, days=days
    )
    file.touch(mode=0o600)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    file.write_bytes(b"".join((signed, private, *chain)))
    return file


def sign_proxy(
    certificate: Path,
    secret: Path,
    key: rsa.RSAPublicKey,
    *,
    group: str | None = None,
    limited: bool = False,
    policy: str | None = None,
    days: float = 1,
) -> list[bytes]:
    """The chain of a new proxy with this key, in PEM; `policy`: the language of another policy."""
    chain = x509.load_pem_x509_certificates(certificate.read_bytes())
    issuer = chain[0]
    signer = cast("rsa.RSAPrivateKey", serialization.load_pem_private_key(secret.read_bytes(), None))
    serial = x509.random_serial_number()
    name = x509.Name([*issuer.subject, x509.NameAttribute(NameOID.COMMON_NAME, str(serial))])
    policy = policy or ("1.3.6.1.4.1.3536.1.1.1.9" if limited else "1.3.6.1.5.5.7.21.1")
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(datetime.now(UTC) - 2 * _DAY)
        .not_valid_after(datetime.now(UTC) + days * _DAY)
        .add_extension(_unrecognized("1.3.6.1.5.5.7.1.14", _sequence(_sequence(_oid(policy)))), critical=True)
    )
    if group is not None:
        text = b"\x16" + bytes([len(group)]) + group.encode()
        builder = builder.add_extension(_unrecognized("1.2.42.42", text), critical=False)
    signed = builder.sign(signer, hashes.SHA256())
    return [each.public_bytes(serialization.Encoding.PEM) for each in (signed, *chain)]


def _unrecognized(identifier: str, content: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier(identifier), content)


def _sequence(content: bytes) -> bytes:
    return b"\x30" + bytes([len(content)]) + content


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    octets = [first * 40 + second]
    for number in rest:
        parts = [number & 127]
        while number := number >> 7:
            parts.insert(0, number & 127 | 128)
        octets += parts
    return b"\x06" + bytes([len(octets)]) + bytes(octets)


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65_537, key_size=2048)


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "test"),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, *, days: int = 30
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + days * _DAY)
    )
