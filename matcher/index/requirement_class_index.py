"""Bitmap index over the requirement classes with waiting jobs: which of them may a resource run?

Gives the result of `rules.refusals` for all classes at once. A set of classes is an integer with one bit per
class. Results are cached by resource, since the pilots of one queue offer the same. A class without jobs
keeps its bit for a while, because jobs of it are likely to return; new classes are evaluated one by one into
cached results.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from cs_config.cache import evict
from matcher import rules
from requirements.bitset import list_positions
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource, Values
from requirements.values import fold


class NameBitmap:
    """The classes that name each value of one kind; a class without names may be unrestricted."""

    def __init__(self) -> None:
        self._naming: defaultdict[str, int] = defaultdict(int)
        self._free = 0  # classes without names

    def write(self, bit: int, names: Collection[str], *, add: bool) -> None:
        """Add or remove the class with this bit, which has these names."""
        self._free = self._free | bit if add and not names else self._free & ~bit
        for name in names:
            left = self._naming[name] | bit if add else self._naming[name] & ~bit
            if left:
                self._naming[name] = left
            else:
                del self._naming[name]

    def naming(self, names: Collection[str]) -> int:
        """The classes that name at least one of these."""
        mask = 0
        for name in names:
            mask |= self._naming.get(name, 0)
        return mask

    def naming_other_than(self, names: Collection[str]) -> int:
        """The classes that name any other value."""
        mask = 0
        for name, those in self._naming.items():
            if name not in names:
                mask |= those
        return mask

    def naming_of(self, names: frozenset[str]) -> int:
        """Like `naming`, iterating over the shorter of the two lists."""
        if len(names) <= len(self._naming):
            return self.naming(names)
        return self.naming([name for name in self._naming if name in names])

    def meeting(self, offered: Values, everything: int) -> int:
        """The classes that accept one of the offered values, as names are no condition if there are none."""
        return everything if offered is None else self._free | self.naming_of(offered)


class ThresholdBitmap:
    """Classes ordered by a minimum that they need."""

    def __init__(self) -> None:
        self._at: defaultdict[float, int] = defaultdict(int)
        self._values: list[float] = []
        self._below: list[int] | None = None  # [i]: bitmap of all that need values[i] or less; None: outdated

    def write(self, bit: int, value: float, *, add: bool) -> None:
        """Add or remove the class with this bit, which needs this minimum."""
        if add and value not in self._at:
            insort(self._values, value)
        self._at[value] = self._at[value] | bit if add else self._at[value] & ~bit
        if not self._at[value]:
            del self._at[value]
            del self._values[bisect_left(self._values, value)]
        self._below = None

    def up_to(self, capacity: float) -> int:
        """The classes that need no more than this."""
        if self._below is None:
            self._below = []
            mask = 0
            for value in self._values:
                mask |= self._at[value]
                self._below.append(mask)
        position = bisect_right(self._values, capacity)
        return self._below[position - 1] if position else 0


_Key = TypeVar("_Key", bound=Hashable)

#: New entries evaluated one by one; beyond this number the whole result is computed again.
_FEW = 32
#: New entries recorded; beyond this number the cache is cleared.
_RECORDED = 10_000


#: Fields of a class with names, one of which a resource must offer.
_RESTRICTED_BY = ("sites", "grid_ces", "platforms", "job_types")
#: Cached results by resource.
_CACHED = 10_000
#: Cached results by set of pools; most queues of a site share one set.
_CACHED_POOLS = 1_000
#: Classes without jobs that keep their bits, in addition to as many as there are classes with jobs.
_ABSENT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassEntry:
    """A class with its bit number and folded names."""

    slot: int
    asked: RequirementClass
    names: Mapping[str, frozenset[str]]
    banned_sites: frozenset[str]
    tags: frozenset[str]


class MaskCache(Generic[_Key]):
    """Cached bitmaps of classes, each with the number of new classes that it covers."""

    def __init__(self, most: int) -> None:
        self._most = most  # cached results
        self._new_entries: list[_ClassEntry] = []
        self._results: dict[_Key, tuple[int, int]] = {}

    def add_entry(self, entry: _ClassEntry) -> None:
        """Record a new class."""
        if len(self._new_entries) >= _RECORDED:
            self.clear()
        if self._results:
            self._new_entries.append(entry)

    def clear(self) -> None:
        """Forget all results, because bits of removed classes will be reused."""
        self._results.clear()
        self._new_entries.clear()

    def find(
        self, key: _Key, evaluate: Callable[[_Key], int], fits: Callable[[RequirementClass], bool]
    ) -> int:
        """The result for all classes: cached, extended by the new classes, or computed.

        `fits` must decide for one class as `evaluate` does for all.
        """
        mask, seen = self._results.get(key, (0, -1))
        if seen == len(self._new_entries):
            return mask
        if seen >= 0 and len(self._new_entries) - seen <= _FEW:
            for entry in self._new_entries[seen:]:
                mask |= fits(entry.asked) << entry.slot
        else:
            mask = evaluate(key)
        if key not in self._results and len(self._results) >= self._most:
            evict(self._results, self._most)
        self._results[key] = mask, len(self._new_entries)
        return mask


class ClassIndex:
    """Index over requirement classes."""

    def __init__(self, *, most_absent: int = _ABSENT) -> None:
        self._most_absent = most_absent
        self._entries: dict[int, _ClassEntry] = {}
        self._class_in: dict[int, int] = {}  # slot → class id
        self._free_slots: list[int] = []
        self._everything = 0
        self._present = 0  # classes with jobs
        self._restrictions = {name: NameBitmap() for name in ("vo", *_RESTRICTED_BY)}
        self._banned_sites = NameBitmap()
        self._tags = NameBitmap()
        self._replicas: defaultdict[frozenset[str], int] = defaultdict(int)  #: by the places of a file
        self._pools = NameBitmap()
        self._without_pool = 0
        self._whole_node = 0
        self._thresholds = {name: ThresholdBitmap() for name in rules.NEEDS}
        self._by_resource = MaskCache[Resource](_CACHED)
        self._by_pools = MaskCache[frozenset[str]](_CACHED_POOLS)

    def __len__(self) -> int:
        return self._present.bit_count()

    def __contains__(self, class_id: int) -> bool:
        entry = self._entries.get(class_id)  # read once: iterating readers hold no lock
        return entry is not None and bool(self._present >> entry.slot & 1)

    def add(self, class_id: int, asked: RequirementClass) -> None:
        """Index a class. Classes are immutable, so a known one only becomes present again."""
        if (known := self._entries.get(class_id)) is not None:
            self._present |= 1 << known.slot
            return
        slot = self._free_slots.pop() if self._free_slots else len(self._entries)
        entry = _ClassEntry(
            slot=slot,
            asked=asked,
            names={name: rules.fold_names(getattr(asked, name)) for name in _RESTRICTED_BY}
            | {"vo": frozenset({fold(asked.vo)})},
            banned_sites=rules.fold_names(asked.banned_sites),
            tags=rules.fold_names(asked.tags),
        )
        self._entries[class_id] = entry
        self._class_in[slot] = class_id
        self._write(entry, add=True)
        self._present |= 1 << slot
        self._by_resource.add_entry(entry)
        self._by_pools.add_entry(entry)

    def discard(self, class_id: int) -> None:
        """Mark a class as without jobs; unknown classes are ignored."""
        entry = self._entries.get(class_id)
        if entry is not None:
            self._present &= ~(1 << entry.slot)
            if len(self._entries) > 2 * len(self) + self._most_absent:
                self._forget_absent()

    def _forget_absent(self) -> None:
        for class_id in [each for each in self._entries if each not in self]:
            entry = self._entries.pop(class_id)
            self._write(entry, add=False)
            del self._class_in[entry.slot]
            self._free_slots.append(entry.slot)
        self._by_resource.clear()
        self._by_pools.clear()

    def classes(self, mask: int) -> Iterator[int]:
        """The ids of the classes in a bitmap, without those that were removed meanwhile."""
        found = (self._class_in.get(slot) for slot in list_positions(mask))
        return (class_id for class_id in found if class_id is not None and class_id in self)

    def mask(self, resource: Resource, pools: frozenset[str]) -> int:
        """Bitmap of the classes that the resource may run with these pools, until one is added or removed."""
        mask = self._by_resource.find(resource, self._evaluate, lambda asked: rules.fits(asked, resource))
        of_pools = 0
        if pools:
            of_pools = self._by_pools.find(
                pools, self._pools.naming_of, lambda asked: asked.submit_pool in pools
            )
        return mask & self._present & (self._without_pool | of_pools)

    def is_in(self, mask: int, class_id: int) -> bool:
        """Whether a class is in a bitmap from `mask`."""
        return bool(mask >> self._entries[class_id].slot & 1)

    def _evaluate(self, resource: Resource) -> int:
        mask = self._everything
        for name, capacity in rules.capacities(resource).items():
            if capacity is not None:
                mask &= self._thresholds[name].up_to(capacity)
        mask &= self._site_mask(resource) & ~self._away_from_data(resource)
        for name, offered in (
            ("vo", resource.vos),
            ("grid_ces", resource.grid_ces),
            ("platforms", resource.platforms),
            ("job_types", resource.job_types),
        ):
            mask &= self._restrictions[name].meeting(offered, self._everything)
        if not resource.offers_whole_node:
            mask &= ~self._whole_node
        mask &= ~self._managed(resource)
        return mask & self._tag_mask(resource) & ~self._banned(resource) & ~self._excluded(resource)

    def _site_mask(self, resource: Resource) -> int:
        if resource.sites is None:
            return self._everything
        mask = 0
        for site in resource.sites:
            here = self._restrictions["sites"].meeting(frozenset({site}), self._everything)
            mask |= here & ~self._banned_sites.naming((site,))
        return mask

    def _away_from_data(self, resource: Resource) -> int:
        """Classes with an input file that has no replica near the resource."""
        mask = 0
        for places, those in self._replicas.items() if resource.near is not None else ():
            if places.isdisjoint(resource.near or ()):
                mask |= those
        return mask

    def _tag_mask(self, resource: Resource) -> int:
        mask = self._everything
        if resource.tags is not None:
            mask &= ~self._tags.naming_other_than(resource.tags)
        for tag in resource.required_tags:
            mask &= self._tags.naming((tag,))
        return mask

    def _managed(self, resource: Resource) -> int:
        """Classes of job types that only job managers handle, where the resource names no type."""
        if resource.job_types is not None:
            return 0
        mask, seen = 0, 0
        for vo, types in sorted(resource.managed_types, reverse=True):  # "" (all other VOs) comes last
            of_vo = self._restrictions["vo"].naming((vo,)) if vo else self._everything & ~seen
            mask |= of_vo & self._restrictions["job_types"].naming(types)
            seen |= of_vo
        return mask

    def _banned(self, resource: Resource) -> int:
        mask = 0
        for name, banned in resource.banned.items():
            mask |= self._naming(name, banned)
        return mask

    def _excluded(self, resource: Resource) -> int:
        """Classes excluded by limits that read no owner; other limits are applied per task queue."""
        mask = 0
        for exclusion in resource.excluded:
            if not rules.concerns_owners(exclusion):
                hit = self._everything
                for name, values in exclusion:
                    hit &= self._naming(name, values)
                mask |= hit
        return mask

    def _naming(self, name: str, values: Collection[str]) -> int:
        return self._tags.naming(values) if name == "tags" else self._restrictions[name].naming(values)

    def _write(self, entry: _ClassEntry, *, add: bool) -> None:
        bit, pool = 1 << entry.slot, entry.asked.submit_pool
        for name, restriction in self._restrictions.items():
            restriction.write(bit, entry.names[name], add=add)
        for name, threshold in self._thresholds.items():
            threshold.write(bit, rules.NEEDS[name](entry.asked), add=add)
        self._banned_sites.write(bit, entry.banned_sites, add=add)
        self._tags.write(bit, entry.tags, add=add)
        for places in map(rules.fold_names, entry.asked.replicas):
            left = self._replicas[places] | bit if add else self._replicas[places] & ~bit
            if left:
                self._replicas[places] = left
            else:
                del self._replicas[places]
        self._pools.write(bit, () if pool is None else (pool,), add=add)
        here = bit if add else 0
        self._everything = self._everything & ~bit | here
        self._without_pool = self._without_pool & ~bit | (here if pool is None else 0)
        self._whole_node = self._whole_node & ~bit | (here if entry.asked.whole_node else 0)
