"""Results of pure functions of texts that others choose: kept up to a number of bytes, counted for each VO.

`functools.lru_cache` counts results. Of expressions of 20,000 characters a thousand are a gigabyte.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import update_wrapper
from threading import Lock
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

#: Bytes of an entry besides what is measured.
_ENTRY: Final = 500
_MISSING: Final = object()
#: The VO, or site, for which is counted what is stored now; "": nobody's.
_tenant: ContextVar[str] = ContextVar("tenant", default="")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@contextmanager
def count_for(tenant: str) -> Iterator[None]:
    """Count what is stored inside for a VO, or a site; also in threads that are started with this context."""
    before = _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.reset(before)


@dataclass(slots=True)
class _Share:
    """What is stored for one tenant: bytes by key, in the order in which it came."""

    taken: dict[Hashable, int] = field(default_factory=dict)
    bytes: int = 0


class Kept(Generic[Arguments, Result]):
    """A function whose results are kept. Any thread may call it; errors are not kept.

    Where there is no room, results of the tenant that has most go: one that stores without end removes its
    own, and of others only what they have above an equal part.
    """

    def __init__(
        self,
        function: Callable[Arguments, Result],
        measure: Callable[..., int],
        most: int,
        find_tenant: Callable[[Result], str] | None = None,
    ) -> None:
        """Keep results of at most so many bytes; `measure` gets the result and the arguments.

        `find_tenant`: for whom a result counts, by default who is stated by `count_for`.
        """
        self._function, self._measure, self.most = function, measure, most
        self._find_tenant = find_tenant
        self.bytes = 0  #: of all that is kept
        self._known: dict[Hashable, Result] = {}
        self._shares: dict[str, _Share] = {}
        self._lock = Lock()
        update_wrapper(self, function)

    def __call__(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        """Return the result, kept or computed."""
        key = (*arguments, *named.items()) if named else arguments
        found = self._known.get(key, _MISSING)
        if found is not _MISSING:
            return cast(Result, found)
        result = self._function(*arguments, **named)
        taken = self._measure(result, *arguments) + _ENTRY
        if taken <= self.most // 8:
            with self._lock:
                self._store(key, result, taken)
        return result

    def _store(self, key: Hashable, result: Result, taken: int) -> None:
        if key in self._known:
            return  # by another thread
        while self.bytes + taken > self.most:
            self._make_room()
        tenant = _tenant.get() if self._find_tenant is None else self._find_tenant(result)
        share = self._shares.setdefault(tenant, _Share())
        share.taken[key] = taken
        share.bytes += taken
        self.bytes += taken
        self._known[key] = result

    def _make_room(self) -> None:
        """Remove an eighth of the largest share, what was stored first, since listing it costs."""
        tenant, share = max(self._shares.items(), key=lambda each: each[1].bytes)
        for key in list(share.taken)[: max(1, len(share.taken) // 8)]:
            taken = share.taken.pop(key)
            share.bytes -= taken
            self.bytes -= taken
            del self._known[key]
        if not share.taken:
            del self._shares[tenant]

    def cache_clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._known.clear()
            self._shares.clear()
            self.bytes = 0


def keep(
    megabytes: int, measure: Callable[..., int], *, find_tenant: Callable[[Any], str] | None = None
) -> Callable[[Callable[Arguments, Result]], Kept[Arguments, Result]]:
    """Decorate a function: `measure` returns the bytes of a result, after which the arguments stand.

    `find_tenant` returns for whom a result counts.
    """

    def decorate(function: Callable[Arguments, Result]) -> Kept[Arguments, Result]:
        return Kept(function, measure, megabytes << 20, find_tenant)

    return decorate
