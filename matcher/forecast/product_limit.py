"""How long something takes, by what is over and by what still lasts: the product-limit estimate.

What still lasts counts as longer than its time so far. By what is over alone, all would seem to be short: the
long ones are over last.

Source: E. L. Kaplan and P. Meier, Nonparametric Estimation from Incomplete Observations, 1958.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, TypeAlias

#: A time, or any other measure, and whether that was all of it; if not, it is longer.
Observed: TypeAlias = tuple[float, bool]
#: By so much two shares differ that are the same but for rounding.
_SAME: Final = 1e-9


class ProductLimit:
    """The share of all that is over by a time."""

    def __init__(self, observed: Iterable[Observed]) -> None:
        ordered = sorted(observed, key=lambda each: (each[0], not each[1]))
        #: Times at which some were over, in order, each with the share that does not take longer.
        self.times: list[float] = []
        self.shares: list[float] = []
        left = 1.0
        for number, (time, is_over) in enumerate(ordered):
            if is_over:
                left *= 1 - 1 / (len(ordered) - number)
                self.times.append(time)
                self.shares.append(1 - left)
        #: All time for each that was over: the mean, were they over at the same rate at each time.
        self.mean = sum(time for time, _ in ordered) / len(self.times) if self.times else None

    def count_longer(self, time: float) -> int:
        """How many took longer than a time, and are over."""
        return len(self.times) - bisect_right(self.times, time)

    def find(self, share: float, *, longer_than: float = 0.0) -> float | None:
        """The time that a share does not exceed of those that take longer than another time.

        None: not known, since too many of them still last.
        """
        first = bisect_right(self.times, longer_than) if longer_than else 0
        before = self.shares[first - 1] if first else 0.0
        found = bisect_left(self.shares, before + share * (1 - before) - _SAME, lo=first)
        return self.times[found] if found < len(self.times) else None
