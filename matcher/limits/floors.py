"""Floors of a site: while a VO has less than its floor, its jobs come first.

A request that may serve it is offered them before all others. One that may not gets nothing while a waiting
job of the VO would fit its slot and a pilot of the VO waits for one in the batch systems of the site: its
slot becomes free then. All else is lent: others get it by their shares, and it comes back as their jobs end;
none is stopped. A VO that is below its own floor waits for no other.

The counters are those of running limits, which a claim has locked (`RunningLimit.floor`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from cs_config.cache import derived
from cs_config.options.place_limits import Floor, RunningLimit
from cs_config.tree.configuration import Configuration
from matcher.limits.running_limits import VO, PlaceCondition, PlaceRule, RunningLimitState
from requirements.values import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorStanding:
    """The floor of a VO at a site, and what its jobs have there now."""

    site: str
    vo: str  #: folded
    floor: Floor
    cores: int  #: of its jobs that pilots hold
    total: int  #: of those of all VOs that are counted

    @property
    def is_below(self) -> bool:
        """Whether its jobs come first."""
        return self.floor.is_below(self.cores, self.total)

    @property
    def part(self) -> float:
        """The part of its floor that it has."""
        due = self.floor.compute_due(self.total)
        return self.cores / due if due else inf

    @property
    def why(self) -> str:
        """What it has of its floor, as text for people."""
        total = "" if self.floor.percent is None else f" of {self.total}"
        floor = f"{self.floor}" if self.floor.percent is None else f"{self.floor} of them"
        return f"{self.cores}{total} cores at {self.site}, its floor is {floor}"


@derived
def list_floors(config: Configuration) -> Mapping[tuple[str, str], Floor]:
    """The floors by site and folded VO."""
    return {
        (each.scope, fold(each.value)): each.floor
        for each in config.limits
        if isinstance(each, RunningLimit) and each.floor is not None
    }


@derived
def _list_by_site(config: Configuration) -> Mapping[str, frozenset[str]]:
    """The folded VOs with a floor at each site, by its folded name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for site, vo in list_floors(config):
        found[fold(site)].add(vo)
    return {site: frozenset(vos) for site, vos in found.items()}


def list_vos(config: Configuration, site: str) -> frozenset[str]:
    """The folded VOs with a floor at a site."""
    return _list_by_site(config).get(fold(site), frozenset())


def is_about_floors(rule: PlaceRule) -> bool:
    """Whether a rule may count the jobs of a VO for the floors of a site."""
    limit = rule.limit
    is_of_vo = isinstance(limit, RunningLimit) and limit.attribute == VO
    return rule.is_of_site and is_of_vo and "/" not in limit.scope


def list_standings(conditions: Iterable[PlaceCondition]) -> Iterator[FloorStanding]:
    """The floors among the conditions of one site, all of them."""
    counted = [
        each for each in conditions if isinstance(each, RunningLimitState) and is_about_floors(each.rule)
    ]
    total = sum(each.cores for each in counted)
    for each in counted:
        if (floor := each.limit.floor) is not None:
            vo = fold(each.limit.value)
            yield FloorStanding(site=each.limit.scope, vo=vo, floor=floor, cores=each.cores, total=total)


def list_first(conditions: Iterable[PlaceCondition], vos: Collection[str]) -> list[str]:
    """Those of the VOs that are below their floors, the one with the least part of its floor first."""
    below = [each for each in list_standings(conditions) if each.is_below and each.vo in vos]
    return [each.vo for each in sorted(below, key=lambda each: (each.part, each.vo))]
