"""The optimizers of this installation, found by entry point `pilotage.optimizers`."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType

from optimizers.chain import Step


@cache
def installed() -> Mapping[str, Step]:
    """Every installed step by its name; ours are entry points like any other."""
    return MappingProxyType({point.name: point.load() for point in entry_points(group="pilotage.optimizers")})
