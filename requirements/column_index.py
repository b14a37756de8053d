"""Items by what rules read of them, so that a rule is written once, for one item and for thousands.

A rule combines sets of `Items` with `&` and `|`. A set is an integer with one bit per item (`bitset`); of a
`SingleItem` it is 1 or 0. A `ColumnIndex` has a column for each thing that is read, with the items that have
each value, so that a rule is evaluated for distinct values, not for items.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sized
from collections.abc import Set as AbstractSet
from typing import Any, Final, Generic, TypeVar, cast

from requirements.bitset import mask_from

Item = TypeVar("Item")
Result = TypeVar("Result")
#: The values of an item in a column: its names, or its one number.
Values = Callable[[Item], Collection[Any]]
#: Results kept by `Items.once`.
_KEPT: Final = 256
#: Sets of a column that are kept for comparisons: each takes a bit for every item.
_PREFIXES: Final = 1024


class Column(Generic[Item]):
    """The items that have each value; an item without values is free."""

    def __init__(self, values: Values[Item], items: Mapping[int, Item]) -> None:
        """Build the column of items by slot."""
        slots: defaultdict[Any, list[int]] = defaultdict(list)
        free: list[int] = []
        for slot, item in items.items():
            own = values(item)
            for value in own:
                slots[value].append(slot)
            if not own:
                free.append(slot)
        self._values = values
        self._ordered: tuple[list[float], list[int]] | None = None  # None: outdated
        self.masks: dict[Any, int] = {value: mask_from(having) for value, having in slots.items()}
        self.free = mask_from(free)

    def write(self, slot: int, item: Item, *, add: bool) -> None:
        """Add or remove an item."""
        bit, values, self._ordered = 1 << slot, self._values(item), None
        self.free = self.free | bit if add and not values else self.free & ~bit
        for value in values:
            having = self.masks.get(value, 0)
            self.masks[value] = having | bit if add else having & ~bit
            if not self.masks[value]:
                del self.masks[value]

    def having(self, values: Collection[Any]) -> int:
        """The items that have at least one of these values."""
        if isinstance(values, AbstractSet) and len(values) > len(self.masks):
            values = self.masks.keys() & values
        found = 0
        for value in values:
            found |= self.masks.get(value, 0)
        return found

    def up_to(self, number: float) -> int:
        """The items whose number is not larger."""
        return self._select_first(bisect_right(self._prefixes[0], number))

    def below(self, number: float) -> int:
        """The items whose number is smaller."""
        return self._select_first(bisect_left(self._prefixes[0], number))

    def list_ordered(self) -> list[int]:
        """The items of each number, the smallest number first."""
        return [self.masks[number] for number in self._prefixes[0]]

    def _select_first(self, few: int) -> int:
        """The items with one of the first so many numbers."""
        numbers, masks = self._prefixes
        step = _count_step(numbers)
        found = masks[few // step]
        for number in numbers[few - few % step : few]:
            found |= self.masks[number]
        return found

    @property
    def _prefixes(self) -> tuple[list[float], list[int]]:
        """The numbers, sorted, and the items with one of the first 0, 1, 2 … steps of them."""
        if self._ordered is None:
            numbers: list[float] = sorted(self.masks)
            step, found, masks = _count_step(numbers), 0, [0]
            for place, number in enumerate(numbers, start=1):
                found |= self.masks[number]
                if place % step == 0:
                    masks.append(found)
            self._ordered = numbers, masks
        return self._ordered


def _count_step(numbers: Sized) -> int:
    """Numbers from one kept set to the next: one, but for very many."""
    return 1 + len(numbers) // _PREFIXES


class Items(ABC):
    """Some items, one or many; names are compared as they are."""

    everything: int

    @abstractmethod
    def naming(self, column: str, names: Collection[Any]) -> int:
        """Those that name at least one of these."""

    @abstractmethod
    def free(self, column: str) -> int:
        """Those that name nothing."""

    @abstractmethod
    def names(self, column: str) -> AbstractSet[Any]:
        """All names that some of them have."""

    @abstractmethod
    def needing(self, column: str, capacity: float) -> int:
        """Those whose number is not larger."""

    @abstractmethod
    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """What is computed from the items alone, once while they stay."""

    def accepting(self, column: str, offered: Collection[Any] | None) -> int:
        """Those that name one of these, or nothing; all if anything is offered (None)."""
        return self.everything if offered is None else self.free(column) | self.naming(column, offered)

    def avoiding(self, column: str, names: Collection[Any]) -> int:
        """Those that name none of these."""
        return self.everything & ~self.naming(column, names) if names else self.everything

    def content_with(self, column: str, offered: AbstractSet[Any] | None) -> int:
        """Those that name nothing but these."""
        return self.everything if offered is None else self.avoiding(column, self.names(column) - offered)


class SingleItem(Items, Generic[Item]):
    """One item: each set is 1 or 0. An index of one would take twice as long to report on a queue."""

    def __init__(self, item: Item, columns: Mapping[str, Values[Item]]) -> None:
        self._item = item
        self._columns = columns
        self._known: dict[str, AbstractSet[Any]] = {}
        self.everything = 1

    def naming(self, column: str, names: Collection[Any]) -> int:
        """1 if it names at least one of these."""
        return int(any(name in names for name in self.names(column)))

    def free(self, column: str) -> int:
        """1 if it names nothing."""
        return int(not self.names(column))

    def names(self, column: str) -> AbstractSet[Any]:
        """Its names."""
        if column not in self._known:
            values = self._columns[column](self._item)
            self._known[column] = values if isinstance(values, AbstractSet) else frozenset(values)
        return self._known[column]

    def needing(self, column: str, capacity: float) -> int:
        """1 if its number is not larger."""
        [number] = self._columns[column](self._item)
        return int(number <= capacity)

    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:  # noqa: ARG002
        """The result, computed: the item is asked once."""
        return compute()


class ColumnIndex(Generic[Item]):
    """Items by slot. A column is built when it is first read, and follows all changes from then on."""

    def __init__(self, items: Mapping[int, Item] | None = None) -> None:
        """Index items by slot, the number of their bits."""
        self._columns: dict[Hashable, Column[Item]] = {}
        self._groups: dict[Hashable, list[tuple[Item, int]]] = {}
        self.items: dict[int, Item] = dict(items or {})
        self.everything = mask_from(self.items)

    def add(self, slot: int, item: Item) -> None:
        """Add an item."""
        self.items[slot] = item
        self._write(slot, item, add=True)

    def remove(self, slot: int) -> None:
        """Remove an item; its slot may be used again."""
        self._write(slot, self.items.pop(slot), add=False)

    def _write(self, slot: int, item: Item, *, add: bool) -> None:
        self.everything = self.everything & ~(1 << slot) | add << slot
        self._groups.clear()
        for column in self._columns.values():
            column.write(slot, item, add=add)

    def column(self, key: Hashable, values: Values[Item]) -> Column[Item]:
        """The column with this key; `values` is always the same for it."""
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = Column(values, self.items)
        return found

    def group(self, key: Hashable, value: Callable[[Item], Hashable]) -> list[tuple[Item, int]]:
        """The items in groups of equal value, each with its first item; do not modify the list."""
        found = self._groups.get(key)
        if found is None:
            masks = self.column(key, lambda item: (value(item),)).masks.values()
            found = self._groups[key] = [(self.first(mask), mask) for mask in masks]
        return found

    def first(self, items: int) -> Item:
        """The first item of a nonempty set."""
        return self.items[(items & -items).bit_length() - 1]


class IndexedItems(ColumnIndex[Item], Items):
    """Items that rules select by the values in named columns."""

    def __init__(self, columns: Mapping[str, Values[Item]], items: Mapping[int, Item] | None = None) -> None:
        """Index items by slot, with the columns that rules read."""
        super().__init__(items)
        self._named = columns
        self._results: dict[Hashable, object] = {}

    def naming(self, column: str, names: Collection[Any]) -> int:
        """The items that name at least one of these."""
        return self._find(column).having(names)

    def free(self, column: str) -> int:
        """The items that name nothing."""
        return self._find(column).free

    def names(self, column: str) -> AbstractSet[Any]:
        """All names that some items have."""
        return self._find(column).masks.keys()

    def content_with(self, column: str, offered: AbstractSet[Any] | None) -> int:
        """Those that name nothing but these, by all names of an item together: its tags may be many."""
        if offered is None:
            return self.everything
        values, found = self._named[column], 0
        together = self.column(("together", column), lambda item: (frozenset(values(item)),))
        for names, items in together.masks.items():
            if names <= offered:
                found |= items
        return found

    def needing(self, column: str, capacity: float) -> int:
        """The items whose number is not larger."""
        return self._find(column).up_to(capacity)

    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """The result, kept until an item is added or removed."""
        if key not in self._results:
            if len(self._results) >= _KEPT:
                self._results.clear()
            self._results[key] = compute()
        return cast(Result, self._results[key])

    def _write(self, slot: int, item: Item, *, add: bool) -> None:
        self._results.clear()
        super()._write(slot, item, add=add)

    def _find(self, name: str) -> Column[Item]:
        return self.column(name, self._named[name])
