"""In-memory copy of the waiting work: task queues that have jobs, and the index over their classes.

Loaded once, then kept up to date by the change feed. It may lag a little: then a claim finds nothing, or a
new job is found a moment later. Candidates are drawn lazily, since most requests need only the first.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from random import Random
from threading import Lock
from types import MappingProxyType
from typing import TypeVar, overload

from sqlalchemy import Connection

from cs_config.cache import Cache
from cs_config.options.job_tiers import JobTiers
from matcher import rules
from matcher.index import sampling, scarcity
from matcher.index.requirement_class_index import ClassIndex
from matcher.index.sampling import CumulativeWeights, Fits, TaskQueueSampler
from matcher.index.scarcity import ScarcityOrder
from matcher.index.type_order import TypeSelection, draw_selections
from requirements.resource import Resource
from taskqueue.db.sql import FIRST_BATCH
from taskqueue.task_queues import change_feed, priorities, task_queues
from taskqueue.task_queues.priorities import Weight
from taskqueue.task_queues.task_queues import TaskQueue

#: Task queues whose changes are applied while others wait.
_PART = 16
#: Cached resources.
_CACHED = 256
#: Up to this many matching classes are listed instead of sampled.
_FEW = 64
#: Up to this many waiting task queues a request in the event loop may list: about 2 ms.
LARGE = 2_000
#: In a large one it draws so many singly: a limit may have no room for what is drawn most often.
_DRAWN = 32


#: A resource, the pools that it may serve, and the only task queues that are wanted (None: all).
_Wanted = tuple[Resource, frozenset[str], TypeSelection | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexChanges:
    """Changes since the last read of the feed."""

    position: change_feed.FeedPosition | None  #: in the feed, after these changes; None: more are to come
    checked: frozenset[int] = frozenset()  #: task queues that were read again
    occupied: Sequence[TaskQueue] = ()  #: those of them that have jobs
    weights: Mapping[int, Weight] = field(default_factory=dict)  #: by task queue
    mapped_vos: frozenset[str] = frozenset()  #: VOs whose mapping changed

    def split(self) -> Iterator["IndexChanges"]:
        """The same in parts, of which each is applied within a millisecond or two."""
        occupied = {each.task_queue_id: each for each in self.occupied}
        for some in _split(sorted(self.checked.union(occupied))):
            there = [occupied[each] for each in some if each in occupied]
            yield IndexChanges(position=None, checked=self.checked.intersection(some), occupied=there)
        for known in _split(list(self.weights.items())):
            yield IndexChanges(position=None, weights=dict(known))
        yield IndexChanges(position=self.position)


_Each = TypeVar("_Each")


def _split(known: Sequence[_Each]) -> Iterator[Sequence[_Each]]:
    for start in range(0, len(known), _PART):
        yield known[start : start + _PART]


class WaitingIndex:
    """The task queues that have jobs."""

    def __init__(self) -> None:
        self._index = ClassIndex()
        self._sampler = TaskQueueSampler()
        self._scarcity = ScarcityOrder()
        self._by_id: dict[int, TaskQueue] = {}
        self._of_class: defaultdict[int, dict[int, TaskQueue]] = defaultdict(dict)
        self._weights: Cache[_Wanted, CumulativeWeights] = Cache(_CACHED)
        #: Task queues that are not tried until the next read of the feed, which checks them.
        self.excluded: frozenset[int] = frozenset()
        self._position: change_feed.FeedPosition | None = None  # in the feed; None: nothing is loaded
        self.changed = 0  #: number of additions and removals

    @property
    def is_loaded(self) -> bool:
        """Whether it was read at least once."""
        return self._position is not None

    def read(self, conn: Connection) -> IndexChanges | None:
        """Read the changes since the last ones that were applied, or everything; for one thread at a time.

        None: the changes are unknown, so this index and all other cached data of the database are void.
        """
        if self._position is None:
            position = change_feed.read_position(conn)
            return IndexChanges(position=position, occupied=tuple(task_queues.list_occupied(conn)))
        excluded = self.excluded
        read = change_feed.read_changes(conn, self._position)
        if read is None:
            return None
        found, position = read
        named = {change.key for change in found if change.kind == change_feed.TASK_QUEUE}
        ids = excluded.union(map(int, named))
        groups = {change.key for change in found if change.kind == change_feed.PRIORITY}
        return IndexChanges(
            position=position,
            checked=ids,
            occupied=tuple(task_queues.read_occupied(conn, ids)) if ids else (),
            weights=priorities.read_weights(conn, groups) if groups else {},
            mapped_vos=frozenset(change.key for change in found if change.kind == change_feed.MAPPING),
        )

    def apply(self, changes: IndexChanges) -> None:
        """Apply changes, without the database."""
        for gone in changes.checked.difference(each.task_queue_id for each in changes.occupied):
            self._discard(gone)
        for each in changes.occupied:
            self._add(each)
        self.excluded -= changes.checked
        for task_queue_id, weight in changes.weights.items():
            known = self._by_id.get(task_queue_id)
            if known is not None and Weight(known.priority, known.supply) != weight:
                self._take_out(known)
                self._put(replace(known, priority=weight.priority, supply=weight.supply))
        self._position = changes.position or self._position

    def exclude(self, task_queue_ids: Collection[int]) -> None:
        """Exclude task queues without a free job for now."""
        known = self._by_id.keys() & task_queue_ids
        self.excluded |= known
        for each in known:
            self._discard(each)

    def candidates(
        self, resource: Resource, pools: frozenset[str], selection: TypeSelection | None = None
    ) -> Sequence[TaskQueue]:
        """The task queues that the resource may serve with these pools; do not modify the list."""
        return self._find_weights(resource, pools, selection).task_queues

    def _find_weights(
        self, resource: Resource, pools: frozenset[str], selection: TypeSelection | None
    ) -> CumulativeWeights:
        return self._weights.get(
            (resource, pools, selection),
            lambda: CumulativeWeights(
                list(self.list_in_classes(self._index.mask(resource, pools, selection), resource))
            ),
        )

    @property
    def is_large(self) -> bool:
        """Whether the event loop must not list what matches."""
        return len(self._by_id) > LARGE

    def mask(self, resource: Resource, pools: frozenset[str], selection: TypeSelection | None = None) -> int:
        """Bitmap of the matching requirement classes, without a check of owners."""
        return self._index.mask(resource, pools, selection)

    def list_in_classes(self, mask: int, resource: Resource) -> Iterator[TaskQueue]:
        """The task queues of the classes in a bitmap whose owner the resource accepts."""
        is_open = rules.accepts_all_owners(resource)
        for class_id in self._index.classes(mask):
            for each in list(self._of_class[class_id].values()) if class_id in self._of_class else ():
                if is_open or _owner_fits(each, resource):
                    yield each

    def draw(
        self, resource: Resource, pools: frozenset[str], selection: TypeSelection | None, random: Random
    ) -> TaskQueue | None:
        """A random matching task queue by weight; None: there is none."""
        mask = self._index.mask(resource, pools, selection)
        if mask.bit_count() > _FEW:
            found = self._sampler.draw(random, self._fits(mask, resource))
            if found is not None:
                return found
        known = self._find_weights(resource, pools, selection)
        if not known.task_queues:
            return None
        return random.choices(known.task_queues, cum_weights=known.cumulative)[0]

    def list_scarcer(
        self,
        drawn: TaskQueue,
        resource: Resource,
        pools: frozenset[str],
        selection: TypeSelection | None = None,
    ) -> list[TaskQueue]:
        """The matching task queues of the same owner that go before one that was drawn."""
        fits = self._fits(self._index.mask(resource, pools, selection), resource)
        return self._scarcity.list_scarcer(drawn, fits)

    def _fits(self, mask: int, resource: Resource) -> Fits:
        is_in, is_open = self._index.is_in, rules.accepts_all_owners(resource)
        return lambda each: is_in(mask, each.class_id) and (is_open or _owner_fits(each, resource))

    def _add(self, each: TaskQueue) -> None:
        known = self._by_id.get(each.task_queue_id)
        if known == each:
            return
        if known is not None and known.class_id != each.class_id:  # derived again with other defaults
            self._discard(each.task_queue_id)
            known = None
        self.changed += 1
        if known is not None:
            self._take_out(known)
        self._put(each)
        self._index.add(each.class_id, each.requirement_class)

    def _put(self, each: TaskQueue) -> None:
        self._by_id[each.task_queue_id] = each
        self._of_class[each.class_id][each.task_queue_id] = each
        self._weights.clear()
        self._sampler.add(each)
        self._scarcity.add(each)

    def _take_out(self, known: TaskQueue) -> None:
        """Remove a task queue from the orders."""
        self._weights.clear()
        self._sampler.discard(known)
        self._scarcity.discard(known)

    def _discard(self, task_queue_id: int) -> None:
        known = self._by_id.pop(task_queue_id, None)
        if known is None:
            return
        self.changed += 1
        self._take_out(known)
        siblings = self._of_class[known.class_id]
        del siblings[task_queue_id]
        if not siblings:
            del self._of_class[known.class_id]
            self._index.discard(known.class_id)


def _owner_fits(each: TaskQueue, resource: Resource) -> bool:
    return rules.owner_fits(each.requirement_class, each.owner, each.owner_group, resource)


#: Seconds for which a read of the feed counts as fresh. A job must be offered within two seconds.
_FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FeedRead:
    """A started read of the feed."""

    at: float
    notifications: int


class FeedFreshness:
    """Freshness of the index: one second after each read of the feed, or until a notification of changes.

    A notification during a read may concern changes that the read missed, so that read does not count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._notifications = 0
        self._until = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the last read is recent and no notification came since."""
        return self._clock() < self._until

    def begin(self) -> FeedRead:
        """Begin a read; call it before the transaction reads anything."""
        return FeedRead(self._clock(), self._notifications)

    def end(self, read: FeedRead) -> None:
        """End a read whose result is applied."""
        with self._lock:
            if read.notifications == self._notifications:
                self._until = read.at + _FRESH_SECONDS

    def notify(self) -> None:
        """Register a notification of changes."""
        with self._lock:
            self._notifications += 1
            self._until = 0.0


class Candidates(Sequence[TaskQueue]):
    """The matching task queues, read lazily from the index.

    In the event loop (`in_loop`) a request tries only some of them where the index is large.
    """

    def __init__(
        self,
        waiting: WaitingIndex,
        resource: Resource,
        pools: frozenset[str],
        selection: TypeSelection | None = None,
        *,
        lock: Lock,
        random: Random,
        in_loop: bool = False,
    ) -> None:
        self._waiting = waiting
        self._in_loop = in_loop
        self._request: _Wanted = resource, pools, selection
        self._lock = lock
        self._random = random

    def __bool__(self) -> bool:
        return self._first is not None

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> TaskQueue: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TaskQueue]: ...

    def __getitem__(self, index: int | slice) -> TaskQueue | Sequence[TaskQueue]:
        return self._all[index]

    def __iter__(self) -> Iterator[TaskQueue]:
        return iter(self._all)

    def iterate_in_order(self) -> Iterator[TaskQueue]:
        """Iterate in the order in which one request tries them, drawn lazily."""
        drawn: dict[int, TaskQueue] = {}
        is_listed = not (self._in_loop and self._waiting.is_large)
        for number in range(FIRST_BATCH if is_listed else _DRAWN):
            each = self._draw() if number else self._first
            if each is not None and each.task_queue_id not in drawn:
                drawn[each.task_queue_id] = each
                yield each
        if is_listed:
            others = [each for each in self._all if each.task_queue_id not in drawn]
            yield from sampling.draw_order(others, self._random)

    def list_scarcer(self, drawn: TaskQueue) -> list[TaskQueue]:
        """Those of the same owner that go before one that was drawn."""
        with self._lock:
            return self._waiting.list_scarcer(drawn, *self._request)

    def select(self, selection: TypeSelection) -> "Candidates":
        """Those of one selection."""
        resource, pools, _ = self._request
        return Candidates(
            self._waiting,
            resource,
            pools,
            selection,
            lock=self._lock,
            random=self._random,
            in_loop=self._in_loop,
        )

    @property
    def has_whole_classes(self) -> bool:
        """Whether all task queues of a matching class match, whoever owns their jobs."""
        return rules.accepts_all_owners(self._request[0])

    def mask(self) -> int:
        """Bitmap of the matching classes; their bits may be those of others after minutes."""
        with self._lock:
            return self._waiting.mask(*self._request)

    def iterate_in(self, mask: int) -> Iterator[TaskQueue]:
        """Lazily iterate the matches in these classes; changes meanwhile may be missed."""
        return self._waiting.list_in_classes(mask, self._request[0])

    @cached_property
    def _first(self) -> TaskQueue | None:
        return self._draw()

    @cached_property
    def _all(self) -> Sequence[TaskQueue]:
        with self._lock:
            return self._waiting.candidates(*self._request)

    def _draw(self) -> TaskQueue | None:
        with self._lock:
            return self._waiting.draw(*self._request, self._random)


def draw_candidates(
    task_queues: Sequence[TaskQueue],
    random: Random,
    tiers: Mapping[str, JobTiers] = MappingProxyType({}),
    first: Sequence[str] = (),
) -> Iterator[TaskQueue]:
    """The order in which one request tries them.

    Args:
        task_queues: Those that fit.
        random: For the lottery.
        tiers: Of the VOs that order their job types.
        first: VOs whose jobs come before those of all others, in this order.
    """
    if first:
        of_vos = (_select(task_queues, TypeSelection(vo, frozenset(), is_inverted=True)) for vo in first)
        others = (each for each in draw_candidates(task_queues, random, tiers) if each.vo not in first)
        return chain(*(draw_candidates(each, random, tiers) for each in of_vos), others)
    if tiers:
        return _draw_by_types(task_queues, random, tiers)
    if isinstance(task_queues, Candidates):
        return scarcity.put_first(task_queues.iterate_in_order(), task_queues.list_scarcer)
    drawn = sampling.draw_order(task_queues, random)
    return scarcity.put_first(drawn, ScarcityOrder(task_queues).list_scarcer)


def _draw_by_types(
    task_queues: Sequence[TaskQueue], random: Random, tiers: Mapping[str, JobTiers]
) -> Iterator[TaskQueue]:
    """The lottery of all task queues decides which VO is next, the tiers of that VO which task queue."""
    ordered = {
        vo: chain.from_iterable(
            draw_candidates(_select(task_queues, each), random) for each in draw_selections(vo, of_vo, random)
        )
        for vo, of_vo in tiers.items()
    }
    for drawn in draw_candidates(task_queues, random):
        # None: the index has changed meanwhile.
        each = next(ordered[drawn.vo], None) if drawn.vo in ordered else drawn
        if each is not None:
            yield each


def _select(task_queues: Sequence[TaskQueue], selection: TypeSelection) -> Sequence[TaskQueue]:
    if isinstance(task_queues, Candidates):
        return task_queues.select(selection)
    return list(filter(selection.includes, task_queues))


def iterate_candidates(task_queues: Iterable[TaskQueue]) -> Iterator[TaskQueue]:
    """All candidate task queues, in no particular order; those of an index are found while you iterate."""
    if isinstance(task_queues, Candidates):
        return task_queues.iterate_in(task_queues.mask())
    return iter(task_queues)
