"""The pools that queues serve: the mapping is read once for each queue, and told again until it changes.

Whether it has changed is asked of the feed each time, in one small statement. So what is told is what holds
at that moment, as if the mapping had been read, which is a row for each pool of the VO.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from threading import Lock

from sqlalchemy import Connection

from cs_config.address import QueueAddress
from taskqueue import changes, served_pools

#: Queues that are remembered; beyond that we start anew.
_REMEMBERED = 10_000


class PoolsOfQueues:
    """Answers from memory, for any thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[frozenset[str], QueueAddress], tuple[str, ...]] = {}
        self._lists: dict[tuple[str, ...], tuple[str, ...]] = {}  # one for all queues that serve the same
        self._position: changes.Position | None = None  # in the feed
        self._age = 0  # how often something was forgotten
        self._lock = Lock()

    def of(
        self, conn: Connection, vos: frozenset[str], addresses: Collection[QueueAddress]
    ) -> Mapping[QueueAddress, Sequence[str]]:
        """For each queue the ids of the pools of these VOs that it is eligible for, sorted; maybe none.

        Args:
            conn: In a transaction that has read nothing yet.
            vos: In lower case.
            addresses: The queues.
        """
        with self._lock:
            self._follow(conn)
            age = self._age
            known: dict[QueueAddress, Sequence[str]] = {
                each: self._known[vos, each] for each in addresses if (vos, each) in self._known
            }
        if missing := [each for each in addresses if each not in known]:
            found = served_pools.ids_for_queues(conn, vos, missing)
            self._remember(vos, found, age)
            known |= found
        return known

    def _follow(self, conn: Connection) -> None:
        """Forget what has changed; everything, if nobody can say what has."""
        read = None if self._position is None else changes.read(conn, self._position)
        if read is None:
            self._position = changes.position(conn)
            self._forget(None)
            return
        found, self._position = read
        if vos := {each.key for each in found if each.kind == changes.MAPPING}:
            self._forget(vos)

    def _forget(self, vos: Collection[str] | None) -> None:
        self._age += 1
        if vos is None:
            self._known = {}
        else:
            self._known = {key: ids for key, ids in self._known.items() if key[0].isdisjoint(vos)}
        self._lists = {ids: ids for ids in self._known.values()}

    def _remember(self, vos: frozenset[str], found: Mapping[QueueAddress, Sequence[str]], age: int) -> None:
        """Unless something was forgotten since: then it may have been read before that."""
        # Queues of one class have the very same list, which may be long.
        named = {id(ids): tuple(map(sys.intern, ids)) for ids in found.values()}
        with self._lock:
            if age != self._age or len(found) > _REMEMBERED:
                return
            if len(self._known) + len(found) > _REMEMBERED:
                self._known.clear()
                self._lists.clear()
            kept = {key: self._lists.setdefault(ids, ids) for key, ids in named.items()}
            for address, ids in found.items():
                self._known[vos, address] = kept[id(ids)]
