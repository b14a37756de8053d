"""Results of pure functions of texts that others choose: kept up to a number of bytes.

`functools.lru_cache` counts results. Of expressions of 20,000 characters a thousand are a gigabyte.
"""

from collections.abc import Callable
from functools import update_wrapper
from threading import Lock
from typing import Final, Generic, ParamSpec, TypeVar

#: Bytes of an entry besides what is measured.
_ENTRY: Final = 500

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Kept(Generic[Arguments, Result]):
    """A function whose results are kept. Any thread may call it; errors are not kept."""

    def __init__(self, function: Callable[Arguments, Result], measure: Callable[..., int], most: int) -> None:
        """Keep results of at most so many bytes; `measure` gets the result and the arguments."""
        self._function, self._measure, self.most = function, measure, most
        self.bytes = 0  #: of all that is kept
        self._known: dict[tuple[object, ...], tuple[Result, int]] = {}
        self._lock = Lock()
        update_wrapper(self, function)

    def __call__(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        """Return the result, kept or computed."""
        key = (*arguments, *named.items())
        found = self._known.get(key)
        if found is not None:
            return found[0]
        result = self._function(*arguments, **named)
        taken = self._measure(result, *arguments) + _ENTRY
        if taken <= self.most // 8:
            with self._lock:
                self._store(key, result, taken)
        return result

    def _store(self, key: tuple[object, ...], result: Result, taken: int) -> None:
        """What was stored first goes, an eighth of it, since listing it costs."""
        if key in self._known:
            return  # by another thread
        if self.bytes + taken > self.most:
            for each in list(self._known)[: max(1, len(self._known) // 8)]:
                self.bytes -= self._known.pop(each)[1]
            self._store(key, result, taken)
            return
        self._known[key] = result, taken
        self.bytes += taken

    def cache_clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._known.clear()
            self.bytes = 0


def keep(
    megabytes: int, measure: Callable[..., int]
) -> Callable[[Callable[Arguments, Result]], Kept[Arguments, Result]]:
    """Decorate a function: `measure` returns the bytes of a result, after which the arguments stand."""

    def decorate(function: Callable[Arguments, Result]) -> Kept[Arguments, Result]:
        return Kept(function, measure, megabytes << 20)

    return decorate
