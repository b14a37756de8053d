"""Caches of the matcher: requests without a match, open places, pools of queues."""

import sys
import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from sqlalchemy import Connection

from cs_config.cache import Cache, evict
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.index.place_pools import PlacePools
from matcher.index.waiting import WaitingIndex
from matcher.limits.place_policy import PlainLimits
from requirements.resource import Location, Resource
from taskqueue.pools import listing
from taskqueue.task_queues import change_feed

#: Cached requests, and cached places.
_CACHED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMatch:
    """A request that had no match, with everything that this depends on."""

    resource: Resource
    served: PlacePools  #: its place, and the pools that may run there
    warnings: tuple[str, ...]
    config: Configuration
    age: int  #: of the mapping
    changed: int  #: of the waiting index, see `WaitingIndex.changed`


class NoMatchCache:
    """Cache of requests without a match, the most frequent result.

    Such a result depends only on the waiting classes, the mapping and the configuration: bans, limits and
    throttles are evaluated only for matching task queues. It is valid while these three are unchanged. At
    worst a job of the last second is missed, whose notification was lost; the pilot asks again in twenty
    seconds, and no job is handed out from this cache. Written by the claim thread, read by any.
    """

    def __init__(self) -> None:
        self._results: Cache[Hashable, NoMatch] = Cache(_CACHED)

    def store(self, key: Hashable, no_match: NoMatch) -> None:
        """Store a result."""
        self._results.store(key, no_match, no_match.config)

    def find(
        self, key: Hashable, config: Configuration, *, age: int, waiting: WaitingIndex, lock: Lock
    ) -> NoMatch | None:
        """The cached result if it still holds; None: unknown, or it must be computed again."""
        no_match = self._results.find(key, config)
        if no_match is None or no_match.age != age:
            return None
        if no_match.changed == waiting.changed:
            return no_match
        # Match the classes again. If another thread is changing them, waiting is not worth it.
        if not lock.acquire(blocking=False):
            return None
        try:
            changed, found = waiting.changed, waiting.candidates(no_match.resource, no_match.served.pools)
        finally:
            lock.release()
        if found:
            return None
        no_match = replace(no_match, changed=changed)
        self.store(key, no_match)
        return no_match


#: Seconds for which a place counts as open; a claim that finds it closed ends that.
_OPEN_SECONDS = 10.0


class OpenPlaceCache:
    """Places with limits that gave a job a moment ago: claimed from without an advisory check."""

    def __init__(self) -> None:
        self._until: Cache[Location, float] = Cache(_CACHED)
        #: As last read, by configuration; None: a statement cannot apply them by itself.
        self.limits: Cache[Location, PlainLimits | None] = Cache(_CACHED)

    def __contains__(self, place: Location) -> bool:
        return time.monotonic() < (self._until.find(place) or 0.0)

    def record(self, place: Location, *, gave: bool) -> None:
        """Record whether a claim at the place succeeded."""
        self._until.store(place, time.monotonic() + _OPEN_SECONDS if gave else 0.0)


#: Cached queues.
_QUEUES = 10_000


class QueuePoolCache:
    """Pools by queue, thread-safe: the mapping is read once per queue and kept until it changes.

    The change feed is read each time in one small statement, so results are as current as the mapping
    itself, which has a row for each pool of the VO.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[frozenset[str], QueueAddress], tuple[str, ...]] = {}
        # one object for all queues that serve the same
        self._lists: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._position: change_feed.FeedPosition | None = None  # in the feed
        self._age = 0  # number of invalidations
        self._lock = Lock()

    def read_pools(
        self, conn: Connection, vos: frozenset[str], addresses: Collection[QueueAddress]
    ) -> Mapping[QueueAddress, Sequence[str]]:
        """For each queue the sorted ids of the pools of these VOs (lower case) that it is eligible for.

        `conn` must be in a transaction that has read nothing yet.
        """
        with self._lock:
            self._follow(conn)
            age = self._age
            known: dict[QueueAddress, Sequence[str]] = {
                each: self._known[vos, each] for each in addresses if (vos, each) in self._known
            }
        if missing := [each for each in addresses if each not in known]:
            found = listing.list_pool_ids(conn, vos, missing)
            self._store(vos, found, age)
            known |= found
        return known

    def _follow(self, conn: Connection) -> None:
        """Drop what has changed, or everything if the changes are unknown."""
        read = None if self._position is None else change_feed.read_changes(conn, self._position)
        if read is None:
            self._position = change_feed.read_position(conn)
            self._known = {}
        else:
            found, self._position = read
            vos = {each.key for each in found if each.kind == change_feed.MAPPING}
            if not vos:
                return
            self._known = {key: ids for key, ids in self._known.items() if key[0].isdisjoint(vos)}
        self._age += 1
        self._lists = {ids: ids for ids in self._known.values()}

    def _store(self, vos: frozenset[str], found: Mapping[QueueAddress, Sequence[str]], age: int) -> None:
        """Store results, unless there was an invalidation since they were read."""
        # Queues of one class share one list, which may be long.
        interned = {id(ids): tuple(map(sys.intern, ids)) for ids in found.values()}
        with self._lock:
            if age != self._age or len(found) > _QUEUES:
                return
            if (excess := len(self._known) + len(found) - _QUEUES) > 0:
                evict(self._known, _QUEUES, room=excess)
                self._lists = {ids: ids for ids in self._known.values()}
            shared = {key: self._lists.setdefault(ids, ids) for key, ids in interned.items()}
            self._known |= {(vos, address): shared[id(ids)] for address, ids in found.items()}
