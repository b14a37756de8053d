"""What may be wrong with the issuers whose tokens are taken: people learn no more of it than a 401."""

from collections.abc import Callable, Iterator
from datetime import datetime

from pilotage.cli import issuers
from pilotage.cli.failures import one_line
from pilotage.cli.finding import Finding, Health
from pilotage.cli.settings import InvalidSettings, Settings
from pilotage.service.oidc import discovery
from pilotage.service.oidc.discovery import IssuerAway, Published
from pilotage.service.oidc.issuer import Issuer
from pilotage.service.oidc.issuer_keys import IssuerKeys
from pilotage.service.oidc.signed_claims import LEEWAY

#: Where people sign in.
_SIGN_IN = ("authorization_endpoint", "token_endpoint")


def all_of(settings: Settings, clock: Callable[[], datetime]) -> Iterator[Finding]:
    """Whether each answers, has keys that we can use, lets people sign in, and has our time."""
    try:
        trusted = [each.issuer for each in issuers.trusted(settings.issuers)]
    except InvalidSettings as error:
        yield Finding(subject="issuers", health=Health.BAD, message=one_line(str(error)))
        return
    for issuer in trusted:
        health, message = _looked_at(issuer, clock)
        yield Finding(subject=f"issuer {issuer.name}", health=health, message=message)


def _looked_at(issuer: Issuer, clock: Callable[[], datetime]) -> tuple[Health, str]:
    try:
        published = discovery.fetch(issuer)
        if issuer.sign_in is not None:
            for name in _SIGN_IN:
                discovery.endpoint(issuer, published.endpoints, name)
        ahead = discovery.clock(issuer) - clock()
    except IssuerAway as error:
        return Health.BAD, one_line(str(error))
    if not (keys := _good_keys(published)):
        return Health.BAD, "none of the keys that it publishes is one that tokens may be signed with"
    if abs(ahead) > LEEWAY:
        seconds = abs(ahead).total_seconds()
        which = "ahead of" if ahead > LEEWAY else "behind"
        most = LEEWAY.total_seconds()
        return (
            Health.BAD,
            f"its clock is {seconds:.0f} s {which} ours, {most:.0f} s are borne: set the clocks",
        )
    return Health.GOOD, f"{issuer.url} answers, keys: {keys}"


def _good_keys(published: Published) -> int:
    keys = IssuerKeys(lambda: published)
    keys.refresh(now=0)
    return len(keys)
