"""Which sites a caller may speak for, and which names of places there are."""

from typing import NoReturn

from cs_config.configuration import Configuration
from cs_config.errors import SiteNotFound
from pilotage.service.callers import Caller
from requirements.errors import NotAllowed
from requirements.suggestion import did_you_mean
from taskqueue import scopes


def require(caller: Caller, config: Configuration, site: str) -> None:
    """Refuse sites of others, then those that do not exist.

    Raises:
        NotAllowed, SiteNotFound: It is such a one.
    """
    if not caller.is_operator and site not in caller.sites:
        raise NotAllowed(f"the token is for {', '.join(sorted(caller.sites))}, not for {site}")
    require_known(config, site)


def require_known(config: Configuration, site: str) -> None:
    """Refuse sites that do not exist.

    Raises:
        SiteNotFound: With what was probably meant.
    """
    if site not in config.sites:
        unknown(config, site)


def unknown(config: Configuration, scope: str) -> NoReturn:
    """Say that there is no such site, CE or queue.

    Raises:
        SiteNotFound: With what was probably meant.
    """
    raise SiteNotFound(scope, did_you_mean(scope, places(config)))


def places(config: Configuration) -> frozenset[str]:
    """Every site, CE and queue: `Site`, `Site/CE`, `Site/CE/Queue`."""
    below = (scopes.line(str(address)) for address in config.addresses)
    return config.sites.union(config.throttles, *below)
