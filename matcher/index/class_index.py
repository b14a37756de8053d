"""Sets of classes as plain integers, one bit a class: AND, OR and NOT of thousands at once.

Answers about classes as sets of bits, which outlive the coming of classes: new ones are asked about.

The classes that have waiting jobs, indexed: which of them may a resource run?

Answers what `rules.refusals` says, for all classes at once. Answers are remembered per resource, since the
pilots of one queue look alike: a class whose jobs are all taken keeps its place for when it has jobs again,
and of classes that are new to an answer each is looked at.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from matcher import rules
from matcher.request.resource import Resource, Values
from requirements.bitset import list_positions
from requirements.values import fold
from taskqueue.task_queues.requirement_class import RequirementClass


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


class RestrictionBitmap:
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


_Question = TypeVar("_Question", bound=Hashable)
_MaskEntry = TypeVar("_MaskEntry")

#: Newcomers that are asked about one by one; of more the question is asked anew.
_FEW = 32
#: Newcomers that are listed; after so many all questions are asked anew.
_LISTED = 10_000


class MaskCache(Generic[_Question, _MaskEntry]):
    """Of each question the answer, and how many had come when it was given."""

    def __init__(self, most: int) -> None:
        self._most = most  # beyond that we start anew
        self._arrived: list[_MaskEntry] = []
        self._answers: dict[_Question, tuple[int, int]] = {}

    def arrived(self, entry: _MaskEntry) -> None:
        """There is one more to be asked about."""
        if len(self._arrived) >= _LISTED:
            self.clear()
        if self._answers:
            self._arrived.append(entry)

    def clear(self) -> None:
        """Some are gone, and their bits will be given to others."""
        self._answers.clear()
        self._arrived.clear()

    def find(
        self,
        question: _Question,
        evaluate: Callable[[_Question], int],
        fits: Callable[[_MaskEntry], bool],
        *,
        slot: Callable[[_MaskEntry], int],
    ) -> int:
        """The answer for all that have come.

        Args:
            question: What is asked.
            evaluate: Answers for all at once.
            fits: Answers for one, in the same way.
            slot: The number of one's bit.
        """
        mask, seen = self._answers.get(question, (0, -1))
        if seen == len(self._arrived):
            return mask
        if seen >= 0 and len(self._arrived) - seen <= _FEW:
            for entry in self._arrived[seen:]:
                mask |= fits(entry) << slot(entry)
        else:
            mask = evaluate(question)
        if len(self._answers) >= self._most:
            self.clear()
        self._answers[question] = mask, len(self._arrived)
        return mask


#: Resources whose answers are remembered; beyond that we start anew.
_REMEMBERED = 10_000
#: Sets of pools whose classes are; the queues of a site mostly have one set each.
_REMEMBERED_POOLS = 1_000
#: So many classes without jobs keep their places, and as many more as there are with jobs.
_ABSENT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassEntry:
    """A class with its place in the bitmaps; its names folded once."""

    slot: int
    asked: RequirementClass
    names: Mapping[str, frozenset[str]]
    banned_sites: frozenset[str]
    tags: frozenset[str]


class ClassIndex:
    """A compact index over requirement classes."""

    def __init__(self, *, most_absent: int = _ABSENT) -> None:
        self._most_absent = most_absent
        self._entries: dict[int, _ClassEntry] = {}
        self._class_in: dict[int, int] = {}  # slot → class id
        self._free_slots: list[int] = []
        self._everything = 0
        self._present = 0  # those that have jobs
        self._restrictions = {name: RestrictionBitmap() for name in _RESTRICTIONS}
        self._banned_sites = NameBitmap()
        self._tags = NameBitmap()
        self._pools = NameBitmap()
        self._without_pool = 0
        self._whole_node = 0
        self._thresholds = {name: ThresholdBitmap() for name in rules.NEEDS}
        self._remembered = MaskCache[Resource, _ClassEntry](_REMEMBERED)
        self._remembered_pools = MaskCache[frozenset[str], _ClassEntry](_REMEMBERED_POOLS)

    def __len__(self) -> int:
        return self._present.bit_count()

    def __contains__(self, class_id: int) -> bool:
        entry = self._entries.get(class_id)  # once: who walks over classes holds no lock
        return entry is not None and bool(self._present >> entry.slot & 1)

    def add(self, class_id: int, asked: RequirementClass) -> None:
        """Index a class; one that is known stays as it is, since classes do not change."""
        if (known := self._entries.get(class_id)) is not None:
            self._present |= 1 << known.slot
            return
        slot = self._free_slots.pop() if self._free_slots else len(self._entries)
        entry = _ClassEntry(
            slot=slot,
            asked=asked,
            names={name: rules.fold_names(of(asked)) for name, of in _RESTRICTIONS.items()},
            banned_sites=rules.fold_names(asked.banned_sites),
            tags=rules.fold_names(asked.tags),
        )
        self._entries[class_id] = entry
        self._class_in[slot] = class_id
        self._write(entry, add=True)
        self._present |= 1 << slot
        self._remembered.arrived(entry)
        self._remembered_pools.arrived(entry)

    def discard(self, class_id: int) -> None:
        """A class has no jobs any more, if it is known."""
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
        self._remembered.clear()
        self._remembered_pools.clear()

    def matching(self, resource: Resource, pools: frozenset[str]) -> list[int]:
        """The ids of the classes that the resource may run, where these pools may run."""
        return list(self.classes(self.mask(resource, pools)))

    def classes(self, mask: int) -> Iterator[int]:
        """The ids of the classes of a mask; those that are gone meanwhile are left out."""
        found = (self._class_in.get(slot) for slot in list_positions(mask))
        return (class_id for class_id in found if class_id is not None and class_id in self)

    def mask(self, resource: Resource, pools: frozenset[str]) -> int:
        """The same as a set of bits, good until a class comes or goes."""
        mask = self._remembered.find(
            resource, self._evaluate, lambda entry: rules.fits(entry.asked, resource), slot=_slot
        )
        return mask & self._present & (self._without_pool | self._pool_mask(pools))

    def is_in(self, mask: int, class_id: int) -> bool:
        """Whether a class is in such a set."""
        return bool(mask >> self._entries[class_id].slot & 1)

    def _pool_mask(self, pools: frozenset[str]) -> int:
        if not pools:
            return 0
        return self._remembered_pools.find(
            pools, self._pools.naming_of, lambda entry: entry.asked.submit_pool in pools, slot=_slot
        )

    def _evaluate(self, resource: Resource) -> int:
        mask = self._everything
        for name, capacity in rules.capacities(resource).items():
            if capacity is not None:
                mask &= self._thresholds[name].up_to(capacity)
        mask &= self._site_mask(resource)
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

    def _tag_mask(self, resource: Resource) -> int:
        mask = self._everything
        if resource.tags is not None:
            mask &= ~self._tags.naming_other_than(resource.tags)
        for tag in resource.required_tags:
            mask &= self._tags.naming((tag,))
        return mask

    def _managed(self, resource: Resource) -> int:
        """Of a type that only job managers handle, where the resource names none."""
        if resource.job_types is not None:
            return 0
        mask, seen = 0, 0
        for vo, types in sorted(resource.managed_types, reverse=True):  # all others, called "", come last
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
        """Left out by limits that say nothing of owners; the others are seen to task queue by task queue."""
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
        """Set or clear the class's bit everywhere."""
        bit = 1 << entry.slot
        for name, restriction in self._restrictions.items():
            (restriction.add if add else restriction.discard)(bit, entry.names[name])
        for name, threshold in self._thresholds.items():
            (threshold.add if add else threshold.discard)(bit, rules.NEEDS[name](entry.asked))
        for bitmap, names in (
            (self._banned_sites, entry.banned_sites),
            (self._tags, entry.tags),
            (self._pools, _pool(entry.asked)),
        ):
            (bitmap.add if add else bitmap.discard)(bit, names)
        here = bit if add else 0
        self._everything = self._everything & ~bit | here
        self._without_pool = self._without_pool & ~bit | (here if entry.asked.submit_pool is None else 0)
        self._whole_node = self._whole_node & ~bit | (here if entry.asked.whole_node else 0)


def _slot(entry: _ClassEntry) -> int:
    return entry.slot


def _pool(asked: RequirementClass) -> Collection[str]:
    return () if asked.submit_pool is None else (asked.submit_pool,)


_RESTRICTIONS: Mapping[str, Callable[[RequirementClass], Collection[str]]] = {
    "vo": lambda asked: (fold(asked.vo),),
    "sites": lambda asked: asked.sites,
    "grid_ces": lambda asked: asked.grid_ces,
    "platforms": lambda asked: asked.platforms,
    "job_types": lambda asked: asked.job_types,
}
