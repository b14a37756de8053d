"""Which sites a caller may speak for, and which names of places there are."""

from typing import NoReturn

from cs_config.configuration import Configuration
from cs_config.errors import SiteNotFound
from matcher import survey
from pilotage.service import told
from pilotage.service.callers import Caller
from requirements.errors import NotAllowed
from requirements.suggestion import did_you_mean
from taskqueue import scopes


def require(caller: Caller, config: Configuration, site: str) -> None:
    """Refuse sites of others, then those that do not exist.

    Raises:
        NotAllowed, SiteNotFound: It is such a one.
    """
    if not caller.is_operator and site not in caller.every_site:
        raise NotAllowed(f"the token is for {', '.join(sorted(caller.every_site))}, not for {site}")
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


def vos(caller: Caller, config: Configuration, site: str) -> list[str]:
    """The VOs as which the caller may look at a site: his own, and all of them at a site of his."""
    own = told.vos_at(caller, site)
    return sorted(config.vos if own is None else config.vos & own)


def of_concern(caller: Caller, config: Configuration) -> frozenset[str]:
    """The sites that the caller has to do with: his own, and where his VOs may run."""
    if caller.is_operator:
        return config.sites
    found = set(caller.every_site & config.sites)
    for vo in caller.visible_vos or ():
        whole = survey.of_vo(config, vo)
        found.update(site for site, queues in whole.sites.items() if queues & whole.admitted)
    return frozenset(found)
