"""Caches: values derived once from a version of the configuration, and bounded results of any generation."""

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, cast

from requirements.values import fold

_MISSING: Final = object()


Config = TypeVar("Config")
Arguments = TypeVarTuple("Arguments")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def derived(compute: Callable[[Config, *Arguments], Value]) -> Callable[[Config, *Arguments], Value]:
    """Decorate a function of a configuration: each result is computed once and kept with the configuration.

    Arguments are hashable; texts are names of VOs and the like, which are compared without case. If threads
    compute the same result at once, all get the one that was stored first. A result must not refer to the
    configuration: the two would outlive its use until the garbage collector finds them.
    """

    @wraps(compute)
    def find(config: Config, *arguments: *Arguments) -> Value:
        key = (compute, *(fold(each) if isinstance(each, str) else each for each in arguments))
        known: dict[tuple[Hashable, ...], object] = cast(Any, config).derived
        found = known.get(key, _MISSING)
        if found is _MISSING:
            found = known.setdefault(key, compute(config, *arguments))
        return cast(Value, found)

    return find


class Cache(Generic[Key, Value]):
    """Bounded cache of results that hold for one generation of what they were computed from.

    A generation is any value that can be compared, such as a configuration, or a configuration with the age
    of a mapping. The eighth that was stored first is removed when the cache is full, and all when a result of
    another generation is stored, so that it keeps no old configuration alive. Thread-safe without a lock:
    generation and results are replaced together, and a result that another thread stores meanwhile is at
    worst computed again.
    """

    def __init__(
        self, size: int, *, measure: Callable[[Key, Value], int] | None = None, most: float = math.inf
    ) -> None:
        """Bound the number of results, and where callers decide how long they are, their bytes.

        Args:
            size: Results, at most.
            measure: Bytes that a result takes, with its key.
            most: Bytes of all results; one that takes more than an eighth of it is not kept.
        """
        self._size = size
        self._measure, self._most = measure, most
        self._bytes = 0  #: of all results; threads may count some twice until they are counted again
        self._content: tuple[object, dict[Key, Value]] = None, {}

    def find(self, key: Key, generation: object = None) -> Value | None:
        """The cached result of this generation, if any."""
        current, known = self._content
        return known.get(key) if current == generation else None

    def store(self, key: Key, value: Value, generation: object = None) -> Value:
        """Keep a result, and return it."""
        taken = 0 if self._measure is None else self._measure(key, value)
        if taken > self._most / 8:
            return value
        current, known = self._content
        if current != generation:
            known = {}
            self._content = generation, known
            self._bytes = 0
        if key not in known:
            while len(known) >= self._size or (known and self._bytes + taken > self._most):
                evict(known, len(known))
                self._bytes = self._count_bytes(known)
            self._bytes += taken
        known[key] = value
        return value

    def _count_bytes(self, known: dict[Key, Value]) -> int:
        if self._measure is None:
            return 0
        return sum(self._measure(key, value) for key, value in list(known.items()))

    def get(self, key: Key, compute: Callable[[], Value], generation: object = None) -> Value:
        """The cached result, which may be None; computed and kept if there is none."""
        current, known = self._content
        if current == generation and key in known:
            return known[key]
        return self.store(key, compute(), generation)

    def remove(self, key: Key) -> None:
        """Forget one result, if it is there."""
        self._content[1].pop(key, None)

    def items(self) -> list[tuple[Key, Value]]:
        """All results; a copy, so that other threads may go on."""
        return list(self._content[1].items())

    def clear(self) -> None:
        """Forget all results."""
        self._content = None, {}
        self._bytes = 0


class CountCache(Generic[Value]):
    """The last results that were counted from many rows; others are computed each time."""

    #: Fewest rows of a result that is cached.
    WORTH: Final = 100_000
    #: A result lives one second per this many rows, but no longer than `LONGEST`.
    ROWS_A_SECOND: Final = 50_000
    LONGEST: Final = timedelta(minutes=1)
    #: Cached results.
    MOST: Final = 100

    @classmethod
    def find_life(cls, rows: int) -> timedelta:
        """How long a result lives that was counted from so many rows; 0: it is not cached."""
        return (
            min(timedelta(seconds=rows / cls.ROWS_A_SECOND), cls.LONGEST)
            if rows >= cls.WORTH
            else timedelta()
        )

    def __init__(self, rows: Callable[[Value], int]) -> None:
        self._rows = rows  #: number of rows that a result was counted from
        self._entries: dict[Hashable, tuple[Value, datetime, datetime]] = {}  #: valid from, and until

    def get(self, key: Hashable, compute: Callable[[], Value], *, now: datetime) -> Value:
        """Return the cached result, at most a minute old (less for fewer rows), or compute it."""
        known, since, until = self._entries.get(key, (None, now, now))
        if known is not None and since <= now < until:
            return known
        result = compute()
        if life := self.find_life(self._rows(result)):
            alive = [(each, kept) for each, kept in list(self._entries.items()) if now < kept[2]]
            self._entries = {**dict(alive[1 - self.MOST :]), key: (result, now, now + life)}
        return result


class RowCounts:
    """Numbers of rows by key: those that took long to count are not counted again for a while."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, datetime, datetime]] = {}  #: valid from, and until

    def get(
        self, keys: Collection[int], count: Callable[[Collection[int]], Mapping[int, int]], *, now: datetime
    ) -> Mapping[int, int]:
        """Numbers for these keys; those that are not known `count` counts together."""
        entries = self._entries
        known = {key: entries[key][0] for key in keys if key in entries and _is_valid(entries[key], now)}
        missing = [key for key in keys if key not in known]
        counted = count(missing) if missing else {}
        if life := CountCache.find_life(sum(counted.values())):
            alive = {key: each for key, each in list(entries.items()) if _is_valid(each, now)}
            self._entries = alive | {key: (rows, now, now + life) for key, rows in counted.items()}
        return {**known, **counted}


def _is_valid(entry: tuple[object, datetime, datetime], now: datetime) -> bool:
    _, since, until = entry
    return since <= now < until


def evict(results: dict[Any, Any], size: int, *, room: int = 1) -> None:
    """Make room in a full cache of this size: an eighth of it, those stored first, as listing them costs."""
    for key in list(results)[: max(room, size // 8)]:
        results.pop(key, None)
