"""Number of pilots to send to each target: waiting jobs are spread over slots, those with least choice first.

Work is counted in parts of slots, since a slot of several cores runs several jobs. First it is given to the
pilots that will start or be free soon, then to new pilots where cores are free, then to pilots that wait in
full queues, and only the rest to new pilots in full queues. Pure.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from pilotage.fabric.director.targets import TargetGroup

#: A VO at a queue, which may have limits and a rank of its own there.
Place = tuple[str, str]

#: Parts of slots are floating-point numbers.
_TINY = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandedWork:
    """Waiting jobs with the targets whose pilots could run them; each job is counted once."""

    jobs: int
    groups: Mapping[TargetGroup, float]  #: with the part of a slot that one job takes
    ranks: Mapping[str, float] = field(default_factory=dict)  #: by queue; the highest first, others last


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Limits for our pilots at a queue.

    Source: DIRAC, MaxTotalJobs and MaxWaitingJobs of a queue.
    """

    total: int = 10  #: waiting and running
    waiting: int = 10

    def room(self, *, waiting: int, running: int) -> int:
        """Pilots that may be added."""
        return max(0, min(self.total - waiting - running, self.waiting - waiting))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRoom:
    """Room of a queue for pilots of a VO in this cycle."""

    pilots: int
    free: int | None = None  #: pilots that would start at once; None: unknown
    batch_queue: str = ""  #: with its system; queues that share one share its free cores


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSituation:
    """All input of the decision."""

    work: Sequence[DemandedWork]
    #: A missing one takes none; all VOs together get no more of a queue than the one with most room.
    rooms: Mapping[Place, QueueRoom]
    there: Mapping[TargetGroup, float] = field(default_factory=dict)  #: slots that take jobs soon
    late: Mapping[TargetGroup, float] = field(default_factory=dict)  #: slots of pilots in full queues
    most: Mapping[TargetGroup, int] = field(default_factory=dict)  #: new pilots after bad experience


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotDecision:
    """New pilots, and what is left for more."""

    new: Mapping[TargetGroup, int]
    #: Groups whose pilots could run jobs that neither a pilot which takes jobs soon gets, nor a new one that
    #: starts at once.
    unserved: frozenset[TargetGroup] = frozenset()


def decide_pilots(situation: DemandSituation, chance: random.Random) -> PilotDecision:
    """New pilots by group, for work that no existing pilot takes, within the limits.

    Each work prefers its queues of a better rank; queues of one rank get equal parts, in an order of chance.
    """
    plan = _Plan(situation, chance)
    plan.use_slots(situation.there)
    plan.send_pilots(only_free=True)
    unserved = plan.list_unserved()
    plan.use_slots(situation.late)
    plan.send_pilots(only_free=False)
    return PilotDecision(new=plan.list_new(), unserved=unserved)


def share_places(
    new: Mapping[TargetGroup, int], existing: Mapping[TargetGroup, int], places: int
) -> Mapping[TargetGroup, int]:
    """Of the new pilots as many as there are free places for; groups with fewest `existing` come first."""
    found = Counter[TargetGroup]()
    for _ in range(places):
        left = [group for group in new if found[group] < new[group]]
        if not left:
            break
        found[min(left, key=lambda each: (existing.get(each, 0) + found[each], each))] += 1
    return found


def count_slots_for(jobs: int, part: float) -> int:
    """Slots that equal jobs fill if each takes a part of one."""
    return math.ceil(jobs / _fitting(1, part))


@dataclass(slots=True)
class _WorkLeft:
    """Equal work that is still to be given to pilots; groups are numbered."""

    jobs: int
    parts: Mapping[int, float]  #: by group, the part of a slot that one job takes
    levels: Sequence[Sequence[int]]  #: groups with room, the best first; those of a level are equally good


class _Plan:
    """Jobs and room that are left while pilots are planned."""

    def __init__(self, situation: DemandSituation, chance: random.Random) -> None:
        self._groups = sorted({group for each in situation.work for group in each.groups})
        self._numbers = {group: number for number, group in enumerate(self._groups)}
        self._new = [0] * len(self._groups)
        self._spare: dict[int, float] = {}  #: of new pilots, parts of slots; groups with none are left out
        self._places = [[(group.vo, queue) for queue in group.queues] for group in self._groups]
        self._most = {
            self._numbers[group]: most for group, most in situation.most.items() if group in self._numbers
        }
        self._chance = chance
        self._rooms = {place: room.pilots for place, room in situation.rooms.items()}
        self._queues: Counter[str] = Counter()
        self._free: Counter[str] = Counter()  #: pilots by batch queue, where it is known
        self._gates: dict[str, str] = {}  #: batch queues by queue, where that is known
        for (_, queue), room in situation.rooms.items():
            self._queues[queue] = max(self._queues[queue], room.pilots)
            if room.free is not None:
                self._gates[queue] = room.batch_queue or queue
                self._free[self._gates[queue]] = max(self._free[self._gates[queue]], room.free)
        self._work = self._merge(situation)
        self._vos_at = Counter(queue for _, queue in {place for places in self._places for place in places})
        self._contention: Counter[int] = Counter()
        for work in self._work:
            self._contention.update(dict.fromkeys(work.parts, work.jobs))

    def _merge(self, situation: DemandSituation) -> list[_WorkLeft]:
        """Equal work together, that with least choice first, in an order of chance."""
        jobs: Counter[tuple[tuple[int, float, float], ...]] = Counter()
        for each in situation.work:
            parts = sorted(
                (self._numbers[group], part, _rank(group, each.ranks, situation.rooms))
                for group, part in each.groups.items()
            )
            jobs[tuple(parts)] += each.jobs
        has_room = [
            any((room := situation.rooms.get(place)) and room.pilots > 0 for place in places)
            for places in self._places
        ]
        found = []
        for choice, number in sorted(jobs.items()):
            levels: dict[tuple[float, int], list[int]] = defaultdict(list)
            for group, _, rank in choice:
                if has_room[group]:
                    levels[rank, len(self._groups[group].queues)].append(group)
            ordered = [levels[level] for level in sorted(levels, reverse=True)]
            parts_of = {group: part for group, part, _ in choice}
            found.append(_WorkLeft(jobs=number, parts=parts_of, levels=ordered))
        self._chance.shuffle(found)
        return sorted(found, key=lambda each: len(each.parts))

    def list_new(self) -> Mapping[TargetGroup, int]:
        """The new pilots by group."""
        return {group: number for group, number in zip(self._groups, self._new, strict=True) if number}

    def list_unserved(self) -> frozenset[TargetGroup]:
        """The groups that could run jobs which are left."""
        return frozenset(self._groups[group] for work in self._work if work.jobs for group in work.parts)

    def use_slots(self, slots: Mapping[TargetGroup, float]) -> None:
        """Give work to existing slots."""
        left = {self._numbers[group]: number for group, number in slots.items() if group in self._numbers}
        for work in self._work:
            self._use(work, left)

    def _use(self, work: _WorkLeft, slots: MutableMapping[int, float]) -> None:
        """Give work to slots, at first to those that fewest other jobs could use."""
        usable = [
            group for group in slots.keys() & work.parts.keys() if slots[group] + _TINY >= work.parts[group]
        ]
        for group in sorted(usable, key=lambda each: (self._contention[each], each)):
            taken = min(work.jobs, _fitting(slots[group], work.parts[group]))
            slots[group] -= taken * work.parts[group]
            work.jobs -= taken

    def send_pilots(self, *, only_free: bool) -> None:
        """Send pilots for the work that is left: each VO its part of every queue first, then what is left."""
        for in_parts in (True, False):
            shares: Counter[Place] = Counter()
            for (vo, queue), room in self._rooms.items():
                total = min(room, self._queues[queue])
                shares[vo, queue] = math.ceil(total / max(1, self._vos_at[queue])) if in_parts else total
            for work in self._work:
                for groups in work.levels:
                    self._spread(work, groups, shares, only_free=only_free)

    def _spread(
        self, work: _WorkLeft, groups: Iterable[int], shares: Counter[Place], *, only_free: bool
    ) -> None:
        """Give equal parts of the work to equally good groups, until they are full.

        Only full slots, of the largest groups first, so that what is left over takes part of a small one.
        """
        left = list(groups) if work.jobs else []
        self._chance.shuffle(left)
        left.sort(key=lambda group: work.parts[group])
        while work.jobs and left:
            self._use(work, self._spare)
            slots_of = {group: _fitting(1, work.parts[group]) for group in left}
            portion = math.ceil(work.jobs / len(left))
            open_groups = []
            for group, in_slot in slots_of.items():
                jobs = math.ceil(portion / in_slot) * in_slot
                if group != left[-1]:
                    jobs = min(jobs, work.jobs // in_slot * in_slot)
                jobs = min(jobs, work.jobs)
                if not jobs or self._send(work, group, jobs, shares, only_free=only_free):
                    open_groups.append(group)
            left = open_groups

    def _send(
        self, work: _WorkLeft, group: int, jobs: int, shares: Counter[Place], *, only_free: bool
    ) -> bool:
        """Send pilots to a group for so many jobs; whether it took all of them."""
        in_slot = _fitting(1, work.parts[group])
        rooms = {place: self._room(place, shares, only_free=only_free) for place in self._places[group]}
        wanted = math.ceil(jobs / in_slot)
        pilots = min(wanted, sum(rooms.values()), self._most.get(group, wanted))
        self._take(rooms, pilots, shares)
        served = min(jobs, pilots * in_slot)
        self._new[group] += pilots
        if group in self._most:
            self._most[group] -= pilots
        if (spare := pilots - served * work.parts[group]) > _TINY:
            self._spare[group] = self._spare.get(group, 0.0) + spare
        work.jobs -= served
        return served == jobs

    def _room(self, place: Place, shares: Counter[Place], *, only_free: bool) -> int:
        queue = place[1]
        room = min(self._rooms.get(place, 0), self._queues[queue], shares[place])
        if only_free and queue in self._gates:
            room = min(room, self._free[self._gates[queue]])
        return max(0, room)

    def _take(self, rooms: Mapping[Place, int], pilots: int, shares: Counter[Place]) -> None:
        """Count new pilots where most room is; a broker picks the queue later."""
        for place in sorted(rooms, key=lambda each: (-rooms[each], each)):
            taken = min(rooms[place], pilots)
            pilots -= taken
            shares[place] -= taken
            self._queues[place[1]] -= taken
            if place in self._rooms:
                self._rooms[place] -= taken
            self._free[self._gates.get(place[1], "")] -= taken


def _rank(group: TargetGroup, ranks: Mapping[str, float], rooms: Mapping[Place, QueueRoom]) -> float:
    """The best rank of the queues of a group that have room; a broker picks one of several."""
    return max(
        (
            ranks[queue]
            for queue in group.queues
            if queue in ranks and (room := rooms.get((group.vo, queue))) and room.pilots > 0
        ),
        default=-math.inf,
    )


def _fitting(slots: float, part: float) -> int:
    """Jobs that fit into some slots if each takes a part of one."""
    return int(slots / part + _TINY)
