"""Spelling of sites, CEs and queues in the configuration."""

from collections.abc import Mapping
from typing import cast

from cs_config.tree.configuration import Configuration
from requirements.values import fold
from taskqueue.sites import scopes

#: Folded parts of a name, the site first.
FoldedAddress = tuple[str, ...]


def fold_address(name: str) -> FoldedAddress:
    """A key that is equal for every spelling of a `Site`, `Site/CE` or `Site/CE/Queue`."""
    return tuple(map(fold, name.split("/")))


def tree_spellings(config: Configuration) -> Mapping[FoldedAddress, str]:
    """Every site, CE and queue of the tree, as spelled there."""
    known = (__name__, "")
    if known not in config.derived:
        names = {name for each in config.addresses for name in scopes.list_enclosing(str(each))}
        config.derived[known] = {fold_address(name): name for name in names | config.sites}
    return cast(Mapping[FoldedAddress, str], config.derived[known])
