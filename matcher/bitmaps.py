"""Sets of classes as plain integers, one bit a class: AND, OR and NOT of thousands at once."""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection

from matcher.resource import Values


class NameBitmap:
    """Which classes name which values of one kind."""

    def __init__(self) -> None:
        self._naming: defaultdict[str, int] = defaultdict(int)

    def add(self, bit: int, names: Collection[str]) -> None:
        """The class with this bit names these."""
        for name in names:
            self._naming[name] |= bit

    def discard(self, bit: int, names: Collection[str]) -> None:
        """The class with this bit is gone."""
        for name in names:
            left = self._naming[name] & ~bit
            if left:
                self._naming[name] = left
            else:
                del self._naming[name]

    def naming(self, names: Collection[str]) -> int:
        """Those that name at least one of these."""
        mask = 0
        for name in names:
            mask |= self._naming.get(name, 0)
        return mask

    def naming_other_than(self, names: Collection[str]) -> int:
        """Those that name anything that is not among these."""
        mask = 0
        for name, those in self._naming.items():
            if name not in names:
                mask |= those
        return mask

    def naming_of(self, names: frozenset[str]) -> int:
        """As `naming`, walking the shorter of the two lists."""
        if len(names) <= len(self._naming):
            return self.naming(names)
        return self.naming([name for name in self._naming if name in names])


class Restriction:
    """Classes that may restrict themselves to some values; who names none fits all."""

    def __init__(self) -> None:
        self._names = NameBitmap()
        self._free = 0

    def add(self, bit: int, names: Collection[str]) -> None:
        """The class with this bit restricts itself to these, if any."""
        self._names.add(bit, names)
        self._free |= 0 if names else bit

    def discard(self, bit: int, names: Collection[str]) -> None:
        """The class with this bit is gone."""
        self._names.discard(bit, names)
        self._free &= ~bit

    def meeting(self, offered: Values, everything: int) -> int:
        """Those that fit one of the offered values; None offers any."""
        return everything if offered is None else self._free | self._names.naming_of(offered)

    def naming(self, names: Collection[str]) -> int:
        """Those that name one of these."""
        return self._names.naming(names)


class ThresholdBitmap:
    """Classes by a number that they need at least."""

    def __init__(self) -> None:
        self._at: defaultdict[float, int] = defaultdict(int)
        self._values: list[float] = []
        self._below: list[int] | None = None  # [i]: all that need values[i] or less; None: to be made

    def add(self, bit: int, value: float) -> None:
        """The class with this bit needs this much."""
        if value not in self._at:
            insort(self._values, value)
        self._at[value] |= bit
        self._below = None

    def discard(self, bit: int, value: float) -> None:
        """The class with this bit is gone."""
        self._at[value] &= ~bit
        if not self._at[value]:
            del self._at[value]
            del self._values[bisect_left(self._values, value)]
        self._below = None

    def up_to(self, capacity: float) -> int:
        """Those that need no more than this."""
        if self._below is None:
            self._below = []
            mask = 0
            for value in self._values:
                mask |= self._at[value]
                self._below.append(mask)
        position = bisect_right(self._values, capacity)
        return self._below[position - 1] if position else 0
