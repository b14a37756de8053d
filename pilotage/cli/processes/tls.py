"""TLS of the service: its certificate, reloaded when the files change."""

import logging
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path

from pilotage.cli import wiring
from pilotage.cli.settings import InvalidSettings, Settings
from requirements.errors import Problem

_log = logging.getLogger(__name__)

#: Seconds between two checks for a renewed certificate.
_CHECK_EVERY = 10.0
#: Application protocols (ALPN).
_PROTOCOLS = ["http/1.1"]
#: Names of revocation lists by hash.
_REVOCATIONS = re.compile(r"[0-9a-f]{8}\.r[0-9]+")


#: Gets the error of the handshake that a task waits for.
refusals: ContextVar[list[ssl.SSLError]] = ContextVar("refusals")


class AlertingConnection(ssl.SSLObject):
    """A connection that tells its client by TLS's alert why its handshake failed.

    asyncio sends what TLS has written only while TLS waits for more: after a failure it closes, and an alert
    such as `certificate expired` would be lost. So a failed handshake waits for the client, which closes the
    connection when it reads the alert, and the error is in `refusals`.
    """

    _failed: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        if self._failed is not None:
            raise self._failed
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._failed = error
            refusals.get([]).append(error)
            raise ssl.SSLWantReadError from None


class Certificate:
    """A certificate with its key, in files that change when it is renewed."""

    def __init__(
        self,
        certificate: Path,
        key: Path | None,
        authorities: Path | None = None,
        *,
        with_tokens: bool = False,
    ) -> None:
        """Read the files.

        Args:
            certificate: PEM, the server's own first, then the intermediate ones.
            key: PEM; None: in the same file.
            authorities: Directory of CA certificates and revocation lists by hash, of clients that must show
                a certificate or a proxy; None: clients show none.
            with_tokens: Accept clients without a certificate, too: they have tokens.
        """
        self._with_tokens = with_tokens
        self._files = (certificate, key or certificate)
        self._authorities = authorities
        self._seen = self._stamps()
        try:
            self._current = self._read()
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings([Problem(path="tls_certificate", message=self._describe(error))]) from None
        self.context = self._make_context()
        # Called at each handshake: a connection has either the old or the new certificate with its key.
        self.context.sni_callback = self._select
        self.context.load_cert_chain(*self._files)

    def renew(self, _now: datetime) -> None:
        """Reload the files if they changed; files that do not match are ignored."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        try:
            self._current = self._read()
        except (OSError, ssl.SSLError) as error:
            _log.error("the certificate was not reloaded: %s", self._describe(error))
        else:
            # A connection takes these from the context that it began with, all else from the current one.
            self.context.verify_flags = self._current.verify_flags
            _log.info("the certificate was renewed: %s", self._files[0])
        self._seen = stamps

    def _select(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = self._make_context()
        context.load_cert_chain(*self._files)
        return context

    def _make_context(self) -> ssl.SSLContext:
        context = _context()
        if self._authorities is not None:
            _require_clients(context, self._authorities)
            if self._with_tokens:
                context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _stamps(self) -> list[tuple[int, int]]:
        # A context reads each revocation list once: it is made again when one of them has changed.
        files = [*self._files, *(sorted(self._authorities.iterdir()) if self._authorities else ())]
        return [(facts.st_ino, facts.st_mtime_ns) for file in files if (facts := _stat(file))]

    def _describe(self, error: OSError) -> str:
        certificate, key = self._files
        return f"{certificate} with {key}: {getattr(error, 'reason', None) or error.strerror or error}"


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = AlertingConnection
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    return context


def _require_clients(context: ssl.SSLContext, authorities: Path) -> None:
    """Verify clients, also those with proxies (RFC 3820); revocation lists, if there are any, of every CA.

    A proxy is not in a list of its CA, so the lists are needed for the chain, not for its first certificate.
    Sessions are not resumed: a revoked certificate would go on.
    """
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VerifyFlags.VERIFY_ALLOW_PROXY_CERTS
    if any(_REVOCATIONS.fullmatch(each.name) for each in authorities.iterdir()):
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
    context.load_verify_locations(capath=str(authorities))
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def read_certificate(settings: Settings) -> Certificate | None:
    """The certificate in the settings, if there is one."""
    if settings.tls_certificate is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)


@contextmanager
def watch_certificate(certificate: Certificate | None) -> Iterator[ssl.SSLContext | None]:
    """The TLS context of a server; renewed certificates are used within seconds."""
    if certificate is None:
        yield None
        return
    with wiring.repeat_in_thread(certificate.renew, name="certificate", every=_CHECK_EVERY):
        yield certificate.context
