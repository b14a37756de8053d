"""Pilots that found nothing to do: what they say, so that they can be told so again from memory.

"Nothing for you" is the commonest answer. It rests on the classes that wait, the mapping and the
configuration, and on nothing else: what would hold a pilot back, bans, limits, throttles, is not even asked
where no task queue has a job that fits, and who is no hindrance is noted for nobody. So where the same is
said of the same place again, it is enough to see that these three are what they were.

What can be stale is a job that came within the last second, by a process whose ring got lost. That pilot asks
again in twenty seconds, and another one gets the job: nothing is ever handed out by this.

Where pilots stand: the queue they are in, and what they may offer there.

It follows from what they say, their rights and the configuration, so it is found out once for all that say
the same.

Places that count and gave jobs a moment ago: there a claim is tried at once, without a look first.

The pools that queues serve: the mapping is read once for each queue, and told again until it changes.

Whether it has changed is asked of the feed each time, in one small statement. So what is told is what holds
at that moment, as if the mapping had been read, which is a row for each pool of the VO.
"""

import sys
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from sqlalchemy import Connection

from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.index.place_pools import PlacePools
from matcher.index.waiting import WaitingIndex
from matcher.request.node_facts import Facts
from matcher.request.resource import Resource
from taskqueue.leases.assignment import Location
from taskqueue.pools import by_queue
from taskqueue.task_queues import change_feed

#: What pilots say that is remembered; beyond that we start anew.
_NO_MATCHES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMatch:
    """A question to which the answer was nothing, with all that the answer rests on."""

    resource: Resource
    served: PlacePools  #: where it is, and which pools may run there
    warnings: tuple[str, ...]
    config: Configuration
    age: int  #: of the mapping
    changed: int  #: how often the classes had


class NoMatchCache:
    """What is remembered of them; written by the thread that serves requests, read by any."""

    def __init__(self) -> None:
        self._config: Configuration | None = None  # of all of them: no older one is held on to
        self._known: dict[Hashable, NoMatch] = {}

    def note(self, likeness: Hashable, vain: NoMatch) -> None:
        """Nothing was found for who says this."""
        if vain.config is not self._config or len(self._known) >= _NO_MATCHES:
            self._config, self._known = vain.config, {}
        self._known[likeness] = vain

    def find(
        self, likeness: Hashable, config: Configuration, *, age: int, waiting: WaitingIndex, lock: Lock
    ) -> NoMatch | None:
        """What there is still nothing for; None: it is not known, or it has to be looked at again."""
        vain = self._known.get(likeness)
        if vain is None or vain.config is not config or vain.age != age:
            return None
        if vain.changed == waiting.changed:
            return vain
        return self._is_current(likeness, vain, waiting, lock)

    def _is_current(
        self, likeness: Hashable, vain: NoMatch, waiting: WaitingIndex, lock: Lock
    ) -> NoMatch | None:
        """Look at the classes again, unless somebody is changing them: then that is not worth the wait."""
        if not lock.acquire(blocking=False):
            return None
        try:
            changed, found = waiting.changed, waiting.candidates(vain.resource, vain.served.pools)
        finally:
            lock.release()
        if found:
            return None
        vain = replace(vain, changed=changed)
        self.note(likeness, vain)
        return vain


#: What pilots say that is remembered; beyond that we start anew.
_LOCATIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotLocation:
    """A pilot in a queue."""

    address: QueueAddress
    resource: Resource  #: for the VOs that may use the queue now; there may be none
    facts: Facts  #: of its node


class LocationCache:
    """What is remembered of them, for one configuration; by the thread that claims.

    Other threads say nothing that is remembered: theirs may be another configuration.
    """

    def __init__(self) -> None:
        self._config: Configuration | None = None
        self._known: dict[Hashable, PilotLocation] = {}

    def find(self, likeness: Hashable | None, config: Configuration) -> PilotLocation | None:
        """Where one stands who says this; None: that has to be found out."""
        return self._known.get(likeness) if self._config is config and likeness is not None else None

    def note(self, likeness: Hashable | None, stand: PilotLocation, config: Configuration) -> None:
        """It was found out."""
        if likeness is None:
            return
        if self._config is not config or len(self._known) >= _LOCATIONS:
            self._config, self._known = config, {}
        self._known[likeness] = stand


#: Seconds for which a place is taken for open; a claim that finds it closed says so.
_OPEN_SECONDS = 1.0
#: Places that are remembered; beyond that we start anew.
_OPEN_PLACES = 10_000


class OpenPlaceCache:
    """What is remembered of them; by the thread that claims."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[Location, float] = {}

    def __contains__(self, place: Location) -> bool:
        return self._clock() < self._until.get(place, 0.0)

    def note(self, place: Location, *, gave: bool) -> None:
        """It gave a job, or none."""
        if not gave:
            self._until.pop(place, None)
            return
        if len(self._until) >= _OPEN_PLACES:
            self._until.clear()
        self._until[place] = self._clock() + _OPEN_SECONDS


#: Queues that are remembered; beyond that we start anew.
_QUEUES = 10_000


class QueuePoolCache:
    """Answers from memory, for any thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[frozenset[str], QueueAddress], tuple[str, ...]] = {}
        self._lists: dict[tuple[str, ...], tuple[str, ...]] = {}  # one for all queues that serve the same
        self._position: change_feed.FeedPosition | None = None  # in the feed
        self._age = 0  # how often something was forgotten
        self._lock = Lock()

    def read_pools(
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
            found = by_queue.list_pool_ids(conn, vos, missing)
            self._remember(vos, found, age)
            known |= found
        return known

    def _follow(self, conn: Connection) -> None:
        """Forget what has changed; everything, if nobody can say what has."""
        read = None if self._position is None else change_feed.read_changes(conn, self._position)
        if read is None:
            self._position = change_feed.read_position(conn)
            self._forget(None)
            return
        found, self._position = read
        if vos := {each.key for each in found if each.kind == change_feed.MAPPING}:
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
            if age != self._age or len(found) > _QUEUES:
                return
            if len(self._known) + len(found) > _QUEUES:
                self._known.clear()
                self._lists.clear()
            kept = {key: self._lists.setdefault(ids, ids) for key, ids in named.items()}
            for address, ids in found.items():
                self._known[vos, address] = kept[id(ids)]
