"""A column index finds the items that match one by one."""

from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from requirements.bitset import list_positions
from requirements.column_index import IndexedItems, Items, SingleItem

Item = tuple[frozenset[str], int]

_NAMES = st.frozensets(st.sampled_from("abcd"), max_size=3)
_ITEMS = st.tuples(_NAMES, st.integers(0, 3))
_COLUMNS = {"names": lambda item: item[0], "size": lambda item: (item[1],)}


@st.composite
def _indexes(draw: st.DrawFn) -> IndexedItems[Item]:
    """Items that came and went while columns were read, or before."""
    index = IndexedItems[Item](_COLUMNS, dict(enumerate(draw(st.lists(_ITEMS, max_size=5)))))
    for slot, item in draw(st.lists(st.tuples(st.integers(0, 70), st.none() | _ITEMS), max_size=12)):
        if slot in index.items:
            index.remove(slot)
        if item is not None:
            index.add(slot, item)
        if draw(st.booleans()):
            _read_all(index)
    return index


def _read_all(index: IndexedItems[Item]) -> None:
    index.accepting("names", {"a"})
    index.needing("size", 1)
    index.group("both", lambda item: item)


def _find_one_by_one(index: IndexedItems[Item], holds: Callable[[Item], object]) -> set[int]:
    return {slot for slot, item in index.items.items() if holds(item)}


@given(_indexes(), _NAMES, st.integers(-1, 4))
def test_a_rule_selects_of_many_items_those_that_it_selects_one_by_one(
    index: IndexedItems[Item], names: frozenset[str], number: int
) -> None:
    def select(items: Items) -> Iterator[int]:
        yield items.naming("names", names)
        yield items.free("names")
        yield items.accepting("names", names)
        yield items.accepting("names", None)
        yield items.avoiding("names", names)
        yield items.content_with("names", names)
        yield items.content_with("names", names)
        yield items.content_with("names", None)
        yield items.needing("size", number)

    single = {slot: tuple(select(SingleItem(item, _COLUMNS))) for slot, item in index.items.items()}
    for position, selected in enumerate(select(index)):
        assert set(list_positions(selected)) == {slot for slot, found in single.items() if found[position]}


@given(_indexes(), _NAMES, st.integers(-1, 4))
def test_names_and_numbers_mean_what_they_say(
    index: IndexedItems[Item], names: frozenset[str], number: int
) -> None:
    for selected, holds in (
        (index.accepting("names", names), lambda item: not item[0] or item[0] & names),
        (index.avoiding("names", names), lambda item: not item[0] & names),
        (index.content_with("names", names), lambda item: item[0] <= names),
        (index.content_with("names", names), lambda item: item[0] <= names),
        (index.needing("size", number), lambda item: item[1] <= number),
        (index.column("size", _COLUMNS["size"]).below(number), lambda item: item[1] < number),
    ):
        assert set(list_positions(selected)) == _find_one_by_one(index, holds)
    assert index.names("names") == {name for item in index.items.values() for name in item[0]}


@given(_indexes())
def test_groups_hold_every_item_once_beside_its_equals(index: IndexedItems[Item]) -> None:
    groups = index.group("both", lambda item: item)
    for first, mask in groups:
        assert set(list_positions(mask)) == _find_one_by_one(index, lambda item, first=first: item == first)
    assert sum(mask.bit_count() for _, mask in groups) == len(index.items)


def test_of_very_many_numbers_few_sets_are_kept_and_the_same_items_found() -> None:
    sizes = [(7919 * number) % 5003 for number in range(5003)]
    index = IndexedItems[Item](_COLUMNS, {slot: (frozenset(), size) for slot, size in enumerate(sizes)})
    column = index.column("size", lambda item: (item[1],))
    for number in (-1, 0, 1, 4, 5, 2500, 5001, 5002, 9000):
        found = set(list_positions(index.needing("size", number)))
        assert found == {slot for slot, size in enumerate(sizes) if size <= number}
        smaller = set(list_positions(column.below(number)))
        assert smaller == {slot for slot, size in enumerate(sizes) if size < number}
    assert column.list_ordered() == [1 << sizes.index(size) for size in sorted(sizes)]
