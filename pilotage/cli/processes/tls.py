"""TLS of the service itself: its certificate, which is read anew when it was renewed."""

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pilotage.cli import wiring
from pilotage.cli.settings import InvalidSettings, Settings
from requirements.errors import Problem

_log = logging.getLogger(__name__)

#: Seconds until a renewed certificate is shown to who connects.
_LOOKED_AT_EVERY = 10.0
#: What the server speaks above TLS.
_PROTOCOLS = ["http/1.1"]


class Certificate:
    """A certificate with its key, in files that somebody renews."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Read it.

        Args:
            certificate: PEM, the server's own first, then those between it and the authority.
            key: PEM; None: it is in the same file.

        Raises:
            InvalidSettings: The files cannot be read, or do not belong together.
        """
        self._files = (certificate, key or certificate)
        self._seen = self._look()
        try:
            self._current = self._read()
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings([Problem(path="tls_certificate", message=self._told(error))]) from None
        self.context = _context()
        # Asked at each handshake: so a connection that begins has the whole old or the whole new one.
        self.context.sni_callback = self._answer
        self.context.load_cert_chain(*self._files)

    def renew(self, _now: datetime) -> None:
        """Read the files again if they are others; what does not fit together changes nothing."""
        look = self._look()
        if look == self._seen:
            return
        try:
            self._current = self._read()
        except (OSError, ssl.SSLError) as error:
            _log.error("the certificate stays as it was: %s", self._told(error))
        else:
            _log.info("the certificate was renewed: %s", self._files[0])
        self._seen = look

    def _answer(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = _context()
        context.load_cert_chain(*self._files)
        return context

    def _look(self) -> list[tuple[int, int]]:
        return [(facts.st_ino, facts.st_mtime_ns) for file in self._files if (facts := _stat(file))]

    def _told(self, error: OSError) -> str:
        certificate, key = self._files
        return f"{certificate} with {key}: {getattr(error, 'reason', None) or error.strerror or error}"


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    return context


def read_certificate(settings: Settings) -> Certificate | None:
    """The certificate that the settings name, if they do.

    Raises:
        InvalidSettings: It is no good.
    """
    if settings.tls_certificate is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)


@contextmanager
def watch_certificate(certificate: Certificate | None) -> Iterator[ssl.SSLContext | None]:
    """What a server speaks TLS with; renewed certificates are shown within seconds."""
    if certificate is None:
        yield None
        return
    with wiring.repeat_in_thread(certificate.renew, name="certificate", every=_LOOKED_AT_EVERY):
        yield certificate.context
