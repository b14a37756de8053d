"""The certificate authorities that a service, or a CE, is believed by."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

#: Names of certificates in a directory that nobody has indexed (`openssl rehash`).
_PATTERNS = ("*.pem", "*.crt")


def context(authorities: Path | None) -> ssl.SSLContext:
    """What TLS is spoken with.

    Args:
        authorities: File of CA certificates, or directory of them as sites of the grid have it; None: the
            system's.

    Raises:
        ValueError: There are none.
    """
    if authorities is None:
        return ssl.create_default_context()
    try:
        if not authorities.is_dir():
            return ssl.create_default_context(cafile=str(authorities))
        return _of_directory(authorities)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"authorities {authorities}: {error}") from None


def _of_directory(directory: Path) -> ssl.SSLContext:
    made = ssl.create_default_context(capath=str(directory))
    indexed = any(directory.glob("*.0"))
    for file in sorted(file for pattern in _PATTERNS for file in directory.glob(pattern)):
        with contextlib.suppress(OSError, ssl.SSLError):  # one bad file of a hundred must not matter
            made.load_verify_locations(cafile=str(file))
    if not indexed and not made.cert_store_stats()["x509_ca"]:
        raise ValueError(f"authorities {directory}: holds no CA certificate")
    return made
