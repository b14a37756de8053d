"""Owner groups and VOs of the registry."""

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_SHARE = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An owner group. Source: DIRAC's `Registry/Groups/<group>`."""

    name: str
    vo: str | None  #: lower case; None: the VO of the token
    users: frozenset[str] = frozenset()
    job_share: float = DEFAULT_SHARE
    properties: frozenset[str] = frozenset()
    allow_background_tqs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """VOs and owner groups, as configured."""

    vos: frozenset[str] = frozenset()  #: lower case
    groups: Mapping[str, Group]

    def all_vos(self) -> frozenset[str]:
        """Every VO of the registry, lower case."""
        return self.vos | {group.vo for group in self.groups.values() if group.vo is not None}
