"""Waiting pilots to withdraw: those that serve no job, and those in whose place others would run.

The latter are of groups that leave other groups no place, or all avoid a node that may be tried again.

One that serves no job leaves at once only where others wait for its place. Elsewhere it stays for a while:
a ban, limit or throttle may hide its jobs for some minutes, and a new pilot begins at the end of the queue.

A group is judged by all waiting jobs that its pilots could run, not by the part that the plan gives to them:
a pilot is withdrawn only when not even all of these jobs together would need it. What the plan sends is never
more than that, so no pilot is withdrawn in one cycle and sent again in the next. Pure, but for the memory of
how long a pilot has been one too many.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pilotage.fabric.batch.batch_system import Agreement, Evidence
from pilotage.fabric.director import demand, recorded_pilots
from pilotage.fabric.director.demand import DemandedWork, Place
from pilotage.fabric.director.recorded_pilots import START, DirectorPilot
from pilotage.fabric.director.targets import TargetGroup
from requirements.errors import format_count

#: What a pilot does, and what several do.
_SERVES_NOTHING = ("serves no job", "serve no job")
_MAKES_ROOM = ("makes room for jobs of others", "make room for jobs of others")
_AVOIDS = ("avoids a node that may be tried again", "avoid nodes that may be tried again")


@dataclass(frozen=True, slots=True, kw_only=True)
class SurplusPilot:
    """A waiting pilot that is one too many."""

    pilot: DirectorPilot
    where: str  #: its queues, with the flags of its group
    why: tuple[str, str]  #: what it does, in words, and what several do
    blocks: bool = True  #: jobs of others wait for its place

    @property
    def reason(self) -> str:
        """Why it is withdrawn."""
        return f"withdrawn: a waiting pilot of {self.where} that {self.why[0]}"


def count_wanted(work: Iterable[DemandedWork]) -> Mapping[TargetGroup, int]:
    """Pilots of each group, if it alone ran all waiting jobs that it can run."""
    wanted: dict[TargetGroup, int] = defaultdict(int)
    for each in work:
        for group, part in each.groups.items():
            wanted[group] += demand.count_slots_for(each.jobs, part)
    return wanted


def list_unneeded(
    waiting: Sequence[DirectorPilot], wanted: int, soon: timedelta, now: datetime
) -> list[DirectorPilot]:
    """Of the waiting pilots of one group those beyond the number that is wanted, the youngest ones.

    Those of each period `soon` count apart: where pilots have waited for longer, others are sent beside them.
    """
    found: list[DirectorPilot] = []
    counted: Counter[int] = Counter()
    for pilot in sorted(waiting, key=_by_age):
        period = math.ceil((now - pilot.created_at) / soon)
        if counted[period] >= wanted:
            found.append(pilot)
        counted[period] += 1
    return found


def choose_for_room(
    waiting: Mapping[TargetGroup, Sequence[DirectorPilot]], now: datetime
) -> tuple[TargetGroup, DirectorPilot] | None:
    """The pilot of a full queue to withdraw so that another group gets a place.

    The youngest one of the group with most, once a start would have been over. The only one of its group
    stays: groups that took turns would all lose the time that they have waited.
    """
    for group in sorted(waiting, key=lambda each: (-len(waiting[each]), each)):
        own = sorted(waiting[group], key=_by_age)
        if len(own) > 1 and now - own[0].created_at > START:
            return group, own[-1]
    return None


def describe(found: Collection[SurplusPilot]) -> list[str]:
    """A line for the pilots of each group: `4 waiting pilots of A/b/c (--constraint=el9) serve no job`."""
    counted: dict[tuple[str, tuple[str, str]], int] = defaultdict(int)
    for each in found:
        counted[each.where, each.why] += 1
    return [
        f"{format_count(number, 'waiting pilot')} of {where} {why[number > 1]}"
        for (where, why), number in sorted(counted.items())
    ]


@dataclass(slots=True, kw_only=True)
class SurplusMemory:
    """How long pilots have been too many; in memory only: after a restart they stay a little longer."""

    evidence: Evidence  #: where others wait for the place
    patience: float = 900.0  #: seconds elsewhere
    clock: Callable[[], float] = time.monotonic  #: seconds
    _agreement: Agreement = field(default_factory=Agreement)

    def list_proven(self, found: Sequence[SurplusPilot]) -> list[SurplusPilot]:
        """Those that were too many in enough cycles, one after the other."""
        now = self.clock()
        looks = {each.pilot.stamp: self._agreement.once_more(each.pilot.stamp, now) for each in found}
        self._agreement.keep_only(frozenset(looks))
        elsewhere = replace(self.evidence, seconds=max(self.patience, self.evidence.seconds))
        return [
            each
            for each in found
            if looks[each.pilot.stamp].convince(self.evidence if each.blocks else elsewhere)
        ]


def list_surplus(
    by_group: Mapping[TargetGroup, Sequence[DirectorPilot]],
    others: Iterable[DirectorPilot],
    work: Sequence[DemandedWork],
    full: Collection[str],
    soon: timedelta,
    now: datetime,
) -> list[SurplusPilot]:
    """Waiting pilots that serve no job; `others` are those of no group that could get pilots now.

    `full`: queues in which a group with waiting jobs has no place.
    """
    wanted = count_wanted(work)
    found = [
        SurplusPilot(pilot=pilot, where=_name(group), why=_SERVES_NOTHING)
        for group, pilots in by_group.items()
        for pilot in list_unneeded(_list_waiting(pilots), wanted.get(group, 0), soon, now)
    ]
    found += [
        SurplusPilot(pilot=pilot, where=", ".join(pilot.queues), why=_SERVES_NOTHING)
        for pilot in _list_waiting(others)
    ]
    return [replace(each, blocks=any(queue in full for queue in each.pilot.queues)) for each in found]


def list_for_room(
    full: Mapping[str, Collection[TargetGroup]],
    by_group: Mapping[TargetGroup, Sequence[DirectorPilot]],
    surplus: Sequence[SurplusPilot],
    now: datetime,
) -> list[SurplusPilot]:
    """A waiting pilot for each group without a place (`full`, by queue) where pilots of others fill all.

    None in a queue whose `surplus` pilots leave a place anyway.
    """
    leaving = {queue for each in surplus for queue in each.pilot.queues}
    waiting = {group: _list_waiting(pilots) for group, pilots in by_group.items()}
    found: dict[str, SurplusPilot] = {}
    for queue, without in sorted(full.items()):
        for _ in without if queue not in leaving else ():
            there = {
                group: own
                for group, pilots in waiting.items()
                if queue in group.queues and (own := [each for each in pilots if each.stamp not in found])
            }
            chosen = choose_for_room(there, now)
            if chosen is not None:
                group, pilot = chosen
                found[pilot.stamp] = SurplusPilot(pilot=pilot, where=_name(group), why=_MAKES_ROOM)
    return list(found.values())


def list_for_nodes(
    waiting: Mapping[Place, Sequence[DirectorPilot]],
    avoided: Mapping[str, Collection[str]],
    kept_from: Mapping[Place, Collection[str]],
) -> list[SurplusPilot]:
    """The youngest of the waiting pilots that fill a queue, where all avoid a node that a new one may take.

    So a node that was repaired is not idle until the others have begun. While the new pilot waits no further
    one leaves.

    Args:
        waiting: The waiting pilots of full queues, by VO and queue.
        avoided: Nodes that each of them avoids, by stamp.
        kept_from: Nodes that all new pilots avoid, by VO and queue.
    """
    found = []
    for place, pilots in sorted(waiting.items()):
        by_all = frozenset[str].intersection(*(frozenset(avoided.get(each.stamp, ())) for each in pilots))
        if by_all.difference(kept_from.get(place, ())):
            youngest = max(pilots, key=_by_age)
            found.append(SurplusPilot(pilot=youngest, where=", ".join(youngest.queues), why=_AVOIDS))
    return found


def limit_by_places(
    without: Collection[TargetGroup],
    by_group: Mapping[TargetGroup, Sequence[DirectorPilot]],
    room_of: Callable[[TargetGroup], int],
) -> Mapping[TargetGroup, int]:
    """New pilots at most of groups that have places in queues where others have none: these come first."""
    found = {}
    for group, pilots in by_group.items():
        kept = sum(not set(each.queues).isdisjoint(group.queues) for each in without if each != group)
        if kept and _list_waiting(pilots):
            found[group] = max(0, room_of(group) - kept)
    return found


def has_place(group: TargetGroup, by_group: Mapping[TargetGroup, Sequence[DirectorPilot]]) -> bool:
    """Whether a pilot of a group waits."""
    return bool(_list_waiting(by_group.get(group, ())))


def _list_waiting(pilots: Iterable[DirectorPilot]) -> list[DirectorPilot]:
    return [each for each in pilots if recorded_pilots.is_waiting(each)]


def _by_age(pilot: DirectorPilot) -> tuple[datetime, str]:
    return pilot.created_at, pilot.stamp


def _name(group: TargetGroup) -> str:
    return f"{group.where} ({' '.join(group.flags)})" if group.flags else group.where
