"""What may be wrong with the certificate of the service: nobody looks at it until it is over."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from cryptography import x509

from pilotage.cli import tls
from pilotage.cli.failures import one_line
from pilotage.cli.finding import Finding, Health
from pilotage.cli.settings import InvalidSettings, Settings

_SUBJECT = "certificate"
#: What is over so soon should have been renewed.
_SOON = timedelta(days=14)


def all_of(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Whether the certificate, where the service has one, fits its key and is good for a while."""
    if settings.tls_certificate is None:
        return
    try:
        tls.read(settings)
        chain = x509.load_pem_x509_certificates(settings.tls_certificate.read_bytes())
    except (InvalidSettings, ValueError) as error:
        yield Finding(subject=_SUBJECT, health=Health.BAD, message=one_line(str(error)))
        return
    health, message = _time_left(chain, now)
    yield Finding(subject=_SUBJECT, health=health, message=message)


def _time_left(chain: list[x509.Certificate], now: datetime) -> tuple[Health, str]:
    """As the first of them that ends: without those between it and the authority it convinces nobody."""
    since = max(each.not_valid_before_utc for each in chain)
    ends = min(chain, key=lambda each: each.not_valid_after_utc)
    until, name = ends.not_valid_after_utc, ends.subject.rfc4514_string()
    if now < since:
        return Health.BAD, f"is not good before {since.isoformat()}: compare the clocks"
    if now >= until:
        return Health.BAD, f"{name} is over since {until.isoformat()}: nobody connects any more; renew it"
    if until - now < _SOON:
        return Health.WARNING, f"{name} is over in {(until - now).days} days, {until.isoformat()}: renew it"
    return Health.GOOD, f"good until {until.isoformat()}"
