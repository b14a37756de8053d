"""How the configuration spells the sites, CEs and queues that others name."""

from collections.abc import Mapping
from typing import cast

from cs_config.configuration import Configuration
from requirements.values import fold
from taskqueue import scopes

#: Folded parts of a name, the site first.
Key = tuple[str, ...]


def key(name: str) -> Key:
    """What is the same for every spelling of a `Site`, `Site/CE` or `Site/CE/Queue`."""
    return tuple(map(fold, name.split("/")))


def of_tree(config: Configuration) -> Mapping[Key, str]:
    """Every site, CE and queue of the tree, as it is spelled there."""
    known = (__name__, "")
    if known not in config.derived:
        names = {name for each in config.addresses for name in scopes.line(str(each))}
        config.derived[known] = {key(name): name for name in names | config.sites}
    return cast(Mapping[Key, str], config.derived[known])
