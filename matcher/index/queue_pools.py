"""Pools by queue, for directors that submit pilots."""

import sys
from collections.abc import Collection, Mapping, Sequence
from threading import Lock

from sqlalchemy import Connection

from cs_config.cache import evict
from cs_config.tree.address import QueueAddress
from taskqueue.pools import mapping
from taskqueue.task_queues import change_feed

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
            found = mapping.list_pool_ids(conn, vos, missing)
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
