"""What sites advertise, beside what reads it: throttles, and Requirements and Rank where it is declared."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from cs_config.cache import derived
from cs_config.tree import glue
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.limits import throttle_standings
from matcher.limits.throttles import ThrottleState
from requirements.values import Value, fold
from taskqueue.sites import scopes
from taskqueue.sites.scopes import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedValue:
    """One name of an advertisement."""

    scope: str  #: spelled as in the configuration
    name: str
    value: Value
    advertised_at: datetime
    is_stale: bool
    is_declared: bool  #: for Requirements and Rank of jobs, at a queue there
    readers: tuple[str, ...]  #: empty: nothing reads it


def list_values(conn: Connection, config: Configuration, site: str, now: datetime) -> list[AdvertisedValue]:
    """The values that a site, its CEs and queues advertise, by scope and name; old ones are stale.

    Without the job types of gateways: `throttle_standings.list_handled_types` has them.
    """
    places = (str(address) for address in config.queues_at(site))
    spelled = {fold(name): name for place in places for name in scopes.list_enclosing(place)}
    return [
        each
        for scope in scopes.read_advertised(conn, [site])
        if scope.scope in spelled and scope.advertised_at is not None
        for each in _read_scope(config, scope, spelled[scope.scope], scope.advertised_at, now)
    ]


def _read_scope(
    config: Configuration, scope: Scope, name: str, at: datetime, now: datetime
) -> list[AdvertisedValue]:
    is_stale = not throttle_standings.is_fresh(config, scope, name, now)
    advertised = scope.advertised or {}
    readers = find_readers(config, name, advertised)
    return [
        AdvertisedValue(
            scope=name,
            name=each,
            value=value,
            advertised_at=at,
            is_stale=is_stale,
            is_declared=_JOBS in readers[each],
            readers=readers[each],
        )
        for each, value in sorted(advertised.items())
        if each != throttle_standings.JOB_TYPES
    ]


_JOBS = "Requirements and Rank of jobs"


def find_readers(
    config: Configuration, scope: str, advertised: Mapping[str, Value]
) -> Mapping[str, tuple[str, ...]]:
    """What reads each name of an advertisement of a site, CE or queue."""
    throttle = config.throttles.get(scope)
    limiting = (
        frozenset[str]()
        if throttle is None
        else ThrottleState(throttle=throttle, advertised=advertised).reads
    )
    declared = frozenset[str]().union(
        *(_list_declared(config).get(each, ()) for each in config.queues_at(*scope.split("/")))
    )
    by_reader = {
        f"throttle of {scope}": limiting,
        _JOBS: declared,
        "page of the site": frozenset({fold(throttle_standings.JOB_TYPES)}),
    }
    return {
        name: tuple(reader for reader, names in by_reader.items() if fold(name) in names)
        for name in advertised
    }


@derived
def _list_declared(config: Configuration) -> Mapping[QueueAddress, frozenset[str]]:
    """The folded names that queues declare as advertised, for any VO."""
    found = defaultdict[QueueAddress, frozenset[str]](frozenset)
    for address, levels in config.levels.items():
        settings = [each for level in levels for each in (level.plain, *level.by_vo.values())]
        if not any(
            parameter and parameter.node_attribute for each in settings for parameter in each.values()
        ):
            continue
        for vo in ("", *config.vos):
            found[address] |= config.node_attributes(address, vo).advertised
    return dict(found)


def read_ads(
    conn: Connection, config: Configuration, addresses: Collection[QueueAddress], vo: str, now: datetime
) -> Mapping[QueueAddress, Mapping[str, Value]]:
    """The ads of queues for Rank: parameters, GLUE names, and valid advertised values that are declared."""
    declared = {each: names for each in addresses if (names := config.node_attributes(each, vo).advertised)}
    sites = {each.site for each in declared}
    advertised = {each.scope: each for each in scopes.read_advertised(conn, sites)} if sites else {}
    found: dict[QueueAddress, Mapping[str, Value]] = {}
    for each in addresses:
        values = config.values(each, vo)
        if each in declared:
            names = declared[each]
            stated = throttle_standings.select_attributes(config, advertised, each, names, now)
            values = {name: value for name, value in values.items() if fold(name) not in names}
            values |= {name: attribute.value for name, attribute in stated.items()}
        found[each] = glue.build_ad(values, each)
    return found
