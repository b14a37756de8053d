"""Bitmap index over the requirement classes with waiting jobs: which of them may a resource run?

Evaluates the rows of `matcher.conditions` for all classes at once. Selections are cached by what the pilots
of one queue have in common; what changes from request to request (time, memory, cores left) is compared with
sorted columns. A class without jobs keeps its bit for a while, because jobs of it are likely to return; new
classes are evaluated one by one into cached selections.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Generic, TypeVar

from cs_config.cache import evict
from matcher import conditions
from matcher.index.type_order import TypeSelection
from requirements.bitset import list_positions
from requirements.column_index import IndexedItems, Items, SingleItem
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource

_Key = TypeVar("_Key", bound=Hashable)

#: New classes evaluated one by one; beyond this number the whole selection is computed again.
_FEW = 32
#: New classes recorded; beyond this number the cache is cleared.
_RECORDED = 10_000
#: Cached selections by resource.
_CACHED = 10_000
#: Cached selections by set of pools; most queues of a site share one set.
_CACHED_POOLS = 1_000
#: Classes without jobs that keep their bits, in addition to as many as there are classes with jobs.
_ABSENT = 1_000

_LASTING = tuple(each for each in conditions.CONDITIONS if each.holds is not None and not each.varies)
_VARYING = tuple(each.holds for each in conditions.CONDITIONS if each.holds is not None and each.varies)
_NEEDS = tuple(each for each in conditions.CONDITIONS if each.need is not None)
_read_lasting: Callable[[Resource], Hashable] = attrgetter(
    *sorted({name for each in _LASTING for name in each.reads})
)


class MaskCache(Generic[_Key]):
    """Cached bitmaps of classes, each with the number of new classes that it covers."""

    def __init__(self, most: int) -> None:
        self._most = most  # cached results
        self._new: list[tuple[int, RequirementClass]] = []  # with their slots
        self._results: dict[_Key, tuple[int, int]] = {}

    def add(self, slot: int, asked: RequirementClass) -> None:
        """Record a new class."""
        if len(self._new) >= _RECORDED:
            self.clear()
        if self._results:
            self._new.append((slot, asked))

    def clear(self) -> None:
        """Forget all results, because bits of removed classes will be reused."""
        self._results.clear()
        self._new.clear()

    def find(self, key: _Key, classes: Items, select: Callable[[Items], int]) -> int:
        """The selection among all classes: cached, extended by the new classes, or computed."""
        mask, seen = self._results.get(key, (0, -1))
        if seen == len(self._new):
            return mask
        if seen >= 0 and len(self._new) - seen <= _FEW:
            for slot, asked in self._new[seen:]:
                mask |= select(SingleItem(asked, conditions.COLUMNS)) << slot
        else:
            mask = select(classes)
        if key not in self._results and len(self._results) >= self._most:
            evict(self._results, self._most)
        self._results[key] = mask, len(self._new)
        return mask


class _ClassesOfVO:
    """The classes of one VO, by their slots."""

    def __init__(self) -> None:
        self.classes = IndexedItems[RequirementClass](conditions.COLUMNS)
        self._lasting = MaskCache[Hashable](_CACHED)
        self._by_pools = MaskCache[frozenset[str]](_CACHED_POOLS)

    def add(self, slot: int, asked: RequirementClass) -> None:
        """Index a class."""
        self.classes.add(slot, asked)
        self._lasting.add(slot, asked)
        self._by_pools.add(slot, asked)

    def remove(self, slots: Iterable[int]) -> None:
        """Forget classes, whose slots will be those of others."""
        for slot in slots:
            self.classes.remove(slot)
        self._lasting.clear()
        self._by_pools.clear()

    def mask(self, resource: Resource, pools: frozenset[str]) -> int:
        """Bitmap of the classes that the resource may run with these pools."""
        mask = self._lasting.find(
            _read_lasting(resource), self.classes, lambda classes: _select_lasting(classes, resource)
        )
        for condition in _NEEDS:
            mask &= condition.select_by_need(self.classes, resource)
        for select in _VARYING:
            mask &= select(self.classes, resource)
        return mask & self._by_pools.find(
            pools, self.classes, lambda classes: classes.accepting("submit_pool", pools)
        )

    def select_types(self, selection: TypeSelection) -> int:
        """Those with these types, or with others."""
        named = self.classes.naming("job_types", selection.types)
        return self.classes.everything & ~named if selection.is_inverted else named


class ClassIndex:
    """Index over requirement classes."""

    def __init__(self, *, most_absent: int = _ABSENT) -> None:
        self._most_absent = most_absent
        self._by_vo: defaultdict[str, _ClassesOfVO] = defaultdict(_ClassesOfVO)
        self._slots: dict[int, int] = {}  # by class id
        self._class_in: dict[int, int] = {}  # class id by slot
        self._free_slots: list[int] = []
        self._present = 0  # classes with jobs

    def __len__(self) -> int:
        return self._present.bit_count()

    def __contains__(self, class_id: int) -> bool:
        slot = self._slots.get(class_id)  # read once: iterating readers hold no lock
        return slot is not None and bool(self._present >> slot & 1)

    def add(self, class_id: int, asked: RequirementClass) -> None:
        """Index a class. Classes are immutable, so a known one only becomes present again."""
        slot = self._slots.get(class_id)
        if slot is None:
            slot = self._free_slots.pop() if self._free_slots else len(self._slots)
            self._slots[class_id] = slot
            self._class_in[slot] = class_id
            self._by_vo[asked.vo].add(slot, asked)
        self._present |= 1 << slot

    def discard(self, class_id: int) -> None:
        """Mark a class as without jobs; unknown classes are ignored."""
        if class_id in self._slots:
            self._present &= ~(1 << self._slots[class_id])
            if len(self._slots) > 2 * len(self) + self._most_absent:
                self._forget_absent()

    def _forget_absent(self) -> None:
        absent = self._class_in.keys() - set(list_positions(self._present))
        for vo, of_vo in list(self._by_vo.items()):
            of_vo.remove(absent.intersection(of_vo.classes.items))
            if not of_vo.classes.items:
                del self._by_vo[vo]
        for slot in absent:
            del self._slots[self._class_in.pop(slot)]
            self._free_slots.append(slot)

    def classes(self, mask: int) -> Iterator[int]:
        """The ids of the classes in a bitmap, without those that were removed meanwhile."""
        found = (self._class_in.get(slot) for slot in list_positions(mask))
        return (class_id for class_id in found if class_id is not None and class_id in self)

    def mask(self, resource: Resource, pools: frozenset[str], selection: TypeSelection | None = None) -> int:
        """Bitmap of the classes that the resource may run with these pools, until one is added or removed."""
        found = 0
        for vo in self._by_vo if resource.vos is None else resource.vos:
            of_vo = self._by_vo.get(vo)
            if of_vo is None or not of_vo.classes.everything & self._present:
                continue
            if selection is None:
                found |= of_vo.mask(resource, pools)
            elif selection.vo == vo:
                found |= of_vo.mask(resource, pools) & of_vo.select_types(selection)
        return found & self._present

    def is_in(self, mask: int, class_id: int) -> bool:
        """Whether a class is in a bitmap from `mask`."""
        return bool(mask >> self._slots[class_id] & 1)


def _select_lasting(classes: Items, resource: Resource) -> int:
    """The classes that fulfil what does not change from request to request."""
    found = classes.everything
    for condition in _LASTING:
        if condition.holds is not None:
            found &= condition.holds(classes, resource)
    return found
