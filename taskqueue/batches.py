"""Values for statements that name them one by one: no statement takes any number of them."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

#: Values in one statement; SQLite takes no more than 32,766.
MOST: Final = 1000


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


_T = TypeVar("_T", bound=_Ordered)


def of(values: Collection[_T]) -> Iterator[Sequence[_T]]:
    """Each value once, sorted, so that whoever locks what they name does it in the order of all others."""
    ordered = sorted(set(values))
    for start in range(0, len(ordered), MOST):
        yield ordered[start : start + MOST]
