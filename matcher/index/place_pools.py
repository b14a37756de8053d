"""The place of a pilot and the pools that may run there, at its node, by the current mapping.

The mapping decides, not the list of pools that the pilot was given, so no stale, guessed or invented list
gets a job that the place is not eligible for.
"""

import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import Final, TypeAlias

from sqlalchemy import Connection

from cs_config.cache import evict
from cs_config.errors import QueueNotFound
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.limits import running_limits, throttle_standings
from matcher.pilot_groups import Flags, PilotGroups
from matcher.request.node_checks import NodeChecks, NodeStanding
from requirements.errors import MOST_HINTS, InvalidRequest, InvalidResource, Problem
from requirements.nodes import node_facts
from requirements.nodes.node_attributes import Option
from requirements.nodes.node_facts import Facts
from requirements.resource import Location, StatedResource
from requirements.values import fold
from taskqueue.db.database import LazyTransaction
from taskqueue.pools import mapping, queue_class_store
from taskqueue.sites import scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacePools:
    """A place, with the pools that may run there now."""

    place: Location
    pools: frozenset[str]
    kept_back: frozenset[str] = frozenset()  #: pools of the place that this node does not fulfil
    lasting: bool = True  #: whether it is valid until the mapping changes
    #: Whether all pools were checked; the others are kept back until the VO has time for them.
    is_complete: bool = True
    #: By queue and VO: advertised values (None: not advertised) that it depends on; valid while they stay.
    advertised: Mapping[tuple[QueueAddress, str], Facts] = field(default_factory=dict)
    #: Of pools that depend on the node and are served because their jobs are submitted with these flags.
    flags: Mapping[str, Flags] = field(default_factory=dict)


#: Configuration version of the mapping of each VO, as read in one transaction; None: there is no mapping.
MappingVersions: TypeAlias = dict[str, int | None]
#: Cached places, and the ids in all their different sets of pools: of each, 64 bytes.
_CACHED = 10_000
MOST_IDS: Final = 2_000_000


class PlaceCache:
    """Pools by place, cached until the mapping changes.

    A result that was read while another thread registered a change may be older than that change. It is
    used, because it was correct when its reader began, but not cached.
    """

    def __init__(self) -> None:
        self._cached: dict[tuple[frozenset[str], Hashable], PlacePools] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}  # one object for all places with the same pools
        self._checks = NodeChecks()
        self.groups = PilotGroups()
        self._lock = Lock()  # held while the cache changes
        self._reading = Lock()  # held by the one thread that reads a place
        self.age = 0  #: number of changes so far; note it before reading

    def forget(self, vos: frozenset[str]) -> None:
        """Drop the cached places of VOs whose mapping changed."""
        if not vos:
            return
        with self._lock:
            self.age += 1
            self._cached = {key: served for key, served in self._cached.items() if key[0].isdisjoint(vos)}
            self._forget_sets()

    def _forget_sets(self) -> None:
        """Drop the sets of pools that no cached place has any more."""
        still = (each for served in self._cached.values() for each in (served.pools, served.kept_back))
        self._sets = {each: each for each in still}

    def served(
        self,
        reading: LazyTransaction,
        config: Configuration,
        address: QueueAddress,
        vos: frozenset[str],
        facts: Facts,
        *,
        submits: bool,
        versions: MappingVersions,
        age: int,
        now: datetime,
    ) -> PlacePools:
        """The pools that a queue, and this node of it, is eligible for now.

        `submits`: the jobs are submitted to the batch system, which finds nodes for the flags of their pools.
        """
        declared = [nodes for vo in sorted(vos) if (nodes := config.node_attributes(address, vo))]
        counting = {name: fact for name, fact in facts.items() if any(name in nodes for nodes in declared)}
        version = config.version if declared else None
        key = (vos, (address, submits, node_facts.cache_key(counting), version))
        if (known := self._find(key, reading, config, now)) is not None:
            return known
        conn = reading.conn
        with self._reading:
            checked = _read_checked(conn, config, vos, versions)
            of_queue = mapping.list_mapped_pools(conn, sorted(vos), [address])[address]
            mapped = ((each.pool_id, each.vo, address, each.undecided) for each in of_queue)
            place = Location(site=address.site, ce=address.ce, queue=address.queue, checked=checked)
            found = self._check_nodes(conn, config, place, mapped, counting, now, submits=submits)
            return self._store(key, found, age)

    def served_without_queue(
        self,
        reading: LazyTransaction,
        config: Configuration,
        presented: StatedResource,
        vos: frozenset[str],
        *,
        versions: MappingVersions,
        age: int,
        now: datetime,
    ) -> PlacePools:
        """The given pools with an eligible queue at the pilot's site, for a pilot without a queue.

        At queues where the node decides, this node must fulfil the requirements, since it may belong to
        them.
        """
        place = Location(site=presented.site, ce=presented.ce)
        if not presented.pools or not place.site:
            return PlacePools(place=place, pools=frozenset())
        facts = node_facts.cache_key(presented.node_facts)
        key = (vos, (presented.pools, place, facts, config.version))
        if (known := self._find(key, reading, config, now)) is not None:
            return known
        conn = reading.conn
        with self._reading:
            place = replace(place, checked=_read_checked(conn, config, vos, versions))
            mapped = mapping.list_pools_at(conn, place, presented.pools, vos)
            found = self._check_nodes(conn, config, place, mapped, presented.node_facts, now)
            return self._store(key, found, age)

    def _find(
        self,
        key: tuple[frozenset[str], Hashable],
        reading: LazyTransaction,
        config: Configuration,
        now: datetime,
    ) -> PlacePools | None:
        """The cached place, unless an advertised value that it depends on changed or expired."""
        known = self._cached.get(key)
        if known is None or not known.advertised:
            return known
        for (address, _), values in known.advertised.items():
            current = _read_advertised(reading.conn, config, address, values, now)
            if node_facts.cache_key(current) != node_facts.cache_key(values):
                return None
        return known

    def _check_nodes(
        self,
        conn: Connection,
        config: Configuration,
        place: Location,
        mapped: Iterable[tuple[str, str, QueueAddress, bool]],
        facts: Facts,
        now: datetime,
        *,
        submits: bool = False,
    ) -> PlacePools:
        """Keep back the pools that depend on the node and whose requirements it does not fulfil for certain.

        `mapped` lists pools with VO, queue, and whether the node decides. Pools that the advertised values
        exclude at all nodes are left out.
        """
        pools: set[str] = set()
        undecided: defaultdict[QueueAddress, defaultdict[str, set[str]]]
        undecided = defaultdict(lambda: defaultdict(set))
        for pool_id, vo, address, depends_on_node in mapped:
            pools.add(pool_id)
            if depends_on_node:
                undecided[address][vo].add(pool_id)
        if not undecided:
            return PlacePools(place=replace(place, checked=None), pools=frozenset(pools))
        kept_back: set[str] = set()
        advertised: dict[tuple[QueueAddress, str], Facts] = {}
        flags: dict[str, Flags] = {}
        excluded: set[str] = set()
        unchecked: set[str] = set()
        for address, by_vo in undecided.items():
            checkable = place.checked is not None
            if checkable and submits:
                flags |= self.groups.find_sufficient(conn, config, address, by_vo)
            for vo, ids in by_vo.items():
                of_vo, here = {vo: ids}, facts
                if checkable and (asked := self._checks.list_advertised(conn, config, address, of_vo)):
                    valid = advertised[address, vo] = _read_advertised(conn, config, address, asked, now)
                    here = {name: fact for name, fact in facts.items() if fold(name) not in asked} | valid
                    standings = self._checks.find(conn, config, address, of_vo, valid)
                    excluded |= {each for each, it in standings.items() if it is NodeStanding.REFUSED}
                    unchecked |= ids - standings.keys()
                standings = self._checks.find(conn, config, address, of_vo, here) if checkable else {}
                fulfilled = (each for each, it in standings.items() if it is NodeStanding.FULFILLED)
                kept_back |= ids.difference(fulfilled, flags)
                unchecked |= (ids - standings.keys()).difference(flags) if checkable else set()
        pools -= excluded
        return PlacePools(
            place=place,
            pools=frozenset(pools - kept_back),
            kept_back=frozenset(kept_back & pools),
            lasting=place.checked is not None and not advertised and not unchecked,
            is_complete=not unchecked,
            advertised=advertised,
            flags=flags,
        )

    def _store(self, key: tuple[frozenset[str], object], served: PlacePools, age: int) -> PlacePools:
        with self._lock:
            if age == self.age and served.is_complete and (served.lasting or served.advertised):
                while len(self._cached) >= _CACHED or sum(map(len, self._sets)) > MOST_IDS:
                    evict(self._cached, len(self._cached))
                    self._forget_sets()
                # One instance of a set and of its ids, to save memory: a queue may serve a thousand pools.
                pools, kept_back = (
                    self._sets.get(ids) or self._sets.setdefault(ids, frozenset(map(sys.intern, ids)))
                    for ids in (served.pools, served.kept_back)
                )
                served = self._cached[key] = replace(served, pools=pools, kept_back=kept_back)
            return served


def _read_advertised(
    conn: Connection, config: Configuration, address: QueueAddress, names: Collection[str], now: datetime
) -> dict[str, Option]:
    """The value of each of these attributes (folded names) that is advertised now; None: none is valid."""
    stated = throttle_standings.read_attributes(conn, config, address, names, now)
    return {name: stated[name].value if name in stated else None for name in names}


def _read_checked(
    conn: Connection, config: Configuration, vos: Collection[str], versions: MappingVersions
) -> int | None:
    """The common version of the configuration and of the mapping of all the VOs; None: they differ.

    To be read before the mapping, once in a transaction: while the version stays, so does what was computed
    from it. The claim checks the version again.
    """
    for vo in vos:
        if vo not in versions:
            versions[vo] = queue_class_store.read_version(conn, vo)
    stored = {version for vo in vos if (version := versions[vo]) is not None}
    return config.version if stored == {config.version} else None


def find_stated_queue(presented: StatedResource, config: Configuration) -> QueueAddress | None:
    """The queue that a request states, with the configuration's spelling; it must exist."""
    if not presented.queue:
        return None
    missing = [name for name, value in (("Site", presented.site), ("GridCE", presented.ce)) if not value]
    if missing:
        message = f"{presented.queue} is stated without {' and '.join(missing)}; a queue is Site/CE/Queue"
        raise InvalidResource([Problem(path="Queue", message=message)])
    return config.require(QueueAddress(site=presented.site, ce=presented.ce, queue=presented.queue))


def respell_place(presented: StatedResource, config: Configuration) -> StatedResource:
    """Replace the stated place by the configuration's spelling, by which bans and limits are looked up."""
    tree = running_limits.tree_spellings(config)
    names = [presented.site, presented.ce, presented.queue]
    folded = tuple(map(fold, names))
    for last in range(len(names)):
        key = folded[: last + 1]
        if known := tree.get(key) or running_limits.scopes_with_rules(config).get(key):
            names[last] = known.rpartition("/")[2]
    return replace(presented, site=names[0], ce=names[1], queue=names[2])


def usable_vos(vos: frozenset[str], presented: StatedResource, config: Configuration) -> frozenset[str]:
    """The VOs that may use a queue at the pilot's place; all of them where the tree has no queues."""
    there = config.queues_at(presented.site)
    if not there:
        return vos
    stated = [each for each in there if presented.ce in ("", each.ce)]
    return frozenset(vo for vo in vos if any(config.usable(queue, vo) for queue in stated))


def require_one_place(
    presented: StatedResource, config: Configuration, vos: Collection[str], closed: Collection[str]
) -> None:
    """Refuse a request with several places, by which the limits of one could be evaded.

    Sites that are unknown to the configuration, without limits and closures, may be listed together, as in
    DIRAC, while no site at all has limits or closures.
    """
    named = presented.resource.sites or frozenset()
    restricted = map(scopes.parse_site, (*running_limits.scopes_counting(config, vos), *closed))
    if named and named.isdisjoint(map(fold, (*config.sites, *restricted))):
        return
    message = "has several values, a pilot that requests jobs is at one"
    raise InvalidResource([Problem(path=name, message=message) for name in presented.several])


def inexact_place_error(place: Location, scope: str) -> InvalidResource:
    """Error for a place too imprecise to decide whether it is in a scope that counts jobs, or is closed."""
    line = [("Site", place.site), ("GridCE", place.ce), ("Queue", place.queue)]
    missing = [name for name, stated in line[: scope.count("/") + 1] if not stated]
    message = f"is not stated; {scope} counts its jobs or is closed, so state {' and '.join(missing)}"
    return InvalidResource([Problem(path=missing[0], message=message)])


def kept_site_error(place: Location) -> InvalidResource:
    """Error for a site without its queue where a VO that the request does not serve has a floor."""
    missing = ["Queue"] if place.ce else ["GridCE", "Queue"]
    message = f"is not stated; {place.site} has floors of other VOs, so state {' and '.join(missing)}"
    return InvalidResource([Problem(path=missing[0], message=message)])


def find_queues(
    queues: Sequence[str], config: Configuration
) -> tuple[dict[str, QueueAddress], list[QueueNotFound]]:
    """The queues that exist, by their spelling in the request, and errors for the others."""
    known: dict[str, QueueAddress] = {}
    unknown: list[QueueNotFound] = []
    for text in dict.fromkeys(queues):
        with suppress(InvalidRequest):
            address = QueueAddress.parse(text)
            if config.knows(address):
                known[text] = address
                continue
        # A suggestion takes a search over all queues, and a request may hold thousands of names.
        meant = config.suggest(text) if len(unknown) < MOST_HINTS else None
        unknown.append(QueueNotFound(text, meant))
    if unknown and not known:
        raise unknown[0]
    return known, unknown
