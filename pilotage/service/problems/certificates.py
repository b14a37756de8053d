"""When certificates of servers expire."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from pilotage.service.problems.finding import Finding, Health
from requirements.errors import format_count

_SUBJECT: Final = "certificate"
#: A certificate that expires this soon should have been renewed.
_SOON: Final = timedelta(days=14)
_RENEW: Final = "renew it: its file is read again within seconds"


def check_file(path: Path, now: datetime) -> Finding:
    """Check that a chain (PEM) can be read, and that none of its certificates expires soon."""
    try:
        chain = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        return Finding(_SUBJECT, Health.BAD, f"{path} cannot be read: {error}", _RENEW)
    return _check_expiry(chain, now)


def _check_expiry(chain: list[x509.Certificate], now: datetime) -> Finding:
    """Check the first expiry in the chain: a client rejects the chain without any one of them."""
    since = max(each.not_valid_before_utc for each in chain)
    ends = min(chain, key=lambda each: each.not_valid_after_utc)
    until, name = ends.not_valid_after_utc, ends.subject.rfc4514_string()
    if now < since:
        message = f"is not good before {since.isoformat()}"
        return Finding(_SUBJECT, Health.BAD, message, "compare the clocks")
    if now >= until:
        message = f"{name} is over since {until.isoformat()}, nobody connects any more"
        return Finding(_SUBJECT, Health.BAD, message, _RENEW)
    if until - now < _SOON:
        left = format_count((until - now).days, "day")
        return Finding(_SUBJECT, Health.WARNING, f"{name} is over in {left}, {until.isoformat()}", _RENEW)
    return Finding(_SUBJECT, Health.GOOD, f"good until {until.isoformat()}")
