"""One cycle of a director over its sites: track existing pilots, decide, submit new ones.

All state is at the service, in the batch systems and in the stamps: a director stores nothing itself, and one
that was killed can simply be restarted.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.client import Client
from pilotage.fabric.director import demand, targets
from pilotage.fabric.director import pilots as director_pilots
from pilotage.fabric.director.cycle_summary import DirectorSummary
from pilotage.fabric.director.demand import DemandSituation, Place, QueueLimits, QueueRoom
from pilotage.fabric.director.matcher_client import DemandClient, VoDemand
from pilotage.fabric.director.pilots import DirectorPilot, Pilots
from pilotage.fabric.director.submission import PilotSubmission
from pilotage.fabric.director.targets import DirectorTargets, TargetGroup, parse_stamp
from pilotage.fabric.director.tracking import OrphanTracking, PilotTracking


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """Pilots to send in a cycle, and the jobs that they are for."""

    new: Mapping[TargetGroup, int]
    pools: Mapping[TargetGroup, tuple[str, ...]]


def _widest(wanted: Iterable[VoDemand]) -> Mapping[str, QueueLimits]:
    """The limits of each queue for the VO that may have most pilots there."""
    found: dict[str, QueueLimits] = {}
    for each in wanted:
        for queue, limits in each.limits.items():
            known = found.get(queue, limits)
            found[queue] = QueueLimits(
                total=max(known.total, limits.total), waiting=max(known.waiting, limits.waiting)
            )
    return found


@dataclass(slots=True, kw_only=True)
class Director:
    """Sends pilots to the queues of its sites, straight or through brokers that pick the queue.

    Source: DIRAC, SiteDirector and TaskQueueDirector; here they are one, since work counts once for both.
    """

    sites: DirectorTargets
    clients: Mapping[str, Client]  #: by VO, each with the VO's token
    chance: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = time.monotonic  #: seconds; one that is not set by anybody
    _pilots: Mapping[str, Pilots] = field(init=False)
    _following: PilotTracking = field(init=False)
    _orphans: OrphanTracking = field(init=False)

    def __post_init__(self) -> None:
        self._pilots = {vo: Pilots(client, vo) for vo, client in self.clients.items()}
        self._following = PilotTracking(sites=self.sites, pilots=self._pilots)
        self._orphans = OrphanTracking(
            sites=self.sites, client=next(iter(self.clients.values())), clock=self.clock
        )

    def cycle(self, now: datetime) -> DirectorSummary:
        """Do it once.

        A VO of which the service refuses something is left out from there on, as one whose token has expired.

        Raises:
            ServiceAway: The service does not answer; what was begun is found again.
            ApiError: It refuses something of every VO.
        """
        summary = DirectorSummary(at=now)
        self._following.follow(self._own(now, summary), now, summary)
        pilots = self._own(now, summary)
        self._end_orphans(pilots, summary)
        numbers = director_pilots.waiting_and_running(pilots)
        summary.waiting, summary.running = numbers[False], numbers[True]
        decided = self._decide(pilots, now, summary)
        summary.wanted = sum(decided.new.values())
        sending = PilotSubmission(sites=self.sites, pilots=self._pilots)
        # Those that want certain nodes first: pilots that take any node would fill theirs.
        for post in sorted(decided.new, key=lambda post: not post.flags):
            if post.vo not in summary.refusals:
                with summary.noting_refusals(post.vo):
                    sending.send(post, decided.pools.get(post, ()), decided.new[post], summary)
        if summary.refusals.keys() == self.clients.keys():
            raise next(iter(summary.refusals.values()))
        return summary

    def _own(self, now: datetime, summary: DirectorSummary) -> list[DirectorPilot]:
        """Our pilots: those that live, and those that ended not long ago."""
        habits = self.sites.habits
        found: dict[str, DirectorPilot] = {}
        for vo, of_vo in self._pilots.items():
            if vo in summary.refusals:
                continue
            with summary.noting_refusals(vo):
                # Those that live first: who ends between the two questions is in both, not in neither.
                pilots = (*of_vo.active(), *of_vo.ended(now - habits.memory))
                found |= {pilot.stamp: pilot for pilot in pilots}
        return [pilot for pilot in found.values() if parse_stamp(pilot.stamp, habits.name) is not None]

    def _end_orphans(self, pilots: Iterable[DirectorPilot], summary: DirectorSummary) -> None:
        """The service says of all stamps whether they are somebody's, to a VO that it refuses nothing."""
        for vo, client in self.clients.items():
            if vo not in summary.refusals:
                self._orphans.client = client
                with summary.noting_refusals(vo):
                    self._orphans.end({pilot.stamp for pilot in pilots}, summary)
                return

    def _ask(self, without: Collection[tuple[str, str, str]], summary: DirectorSummary) -> Sequence[VoDemand]:
        """What waits, of the VOs that the service refuses nothing."""
        found = []
        for vo, client in self.clients.items():
            if vo not in summary.refusals:
                with summary.noting_refusals(vo):
                    found.append(DemandClient(client, vo).ask(self.sites, without=without))
        return found

    def _decide(self, pilots: Sequence[DirectorPilot], now: datetime, summary: DirectorSummary) -> _Decided:
        habits = self.sites.habits
        bad = director_pilots.bad_landings(pilots, habits.name, habits.pause, now)
        summary.paused += sorted({f"{queue} of {broker}" for _, broker, queue in bad})
        wanted = self._ask(bad, summary)
        work = [each for of_vo in wanted for each in of_vo.work]
        summary.jobs = sum(each.jobs for each in work)
        summary.problems += [
            f"{queue}: no such queue" for queue in sorted({name for each in wanted for name in each.unknown})
        ]
        pools = {post: names for each in wanted for post, names in each.pools.items()}
        by_post = director_pilots.pilots_by_group(pilots, pools, habits.name)
        situation = DemandSituation(
            work=work,
            rooms=self._rooms(pilots, wanted, summary),
            there=self._there(by_post, wanted, now),
            most=self._most(by_post, now, summary),
        )
        new = demand.decide_pilots(situation, self.chance)
        return _Decided(
            new={
                self.sites.trial(post, self.chance) if post in situation.most else post: number
                for post, number in new.items()
            },
            pools=pools,
        )

    def _rooms(
        self, pilots: Iterable[DirectorPilot], wanted: Sequence[VoDemand], summary: DirectorSummary
    ) -> Mapping[Place, QueueRoom]:
        """What our queues take of the pilots of each VO, which may see other limits there."""
        of_queue = director_pilots.pilots_by_queue(pilots, _widest(wanted))
        usable = self._usable(summary)
        rooms: dict[Place, QueueRoom] = {}
        for each in wanted:
            for queue, limits in each.limits.items():
                free = min(
                    director_pilots.free_room(of_queue.get(queue, ()), limits), self.sites.habits.at_once
                )
                rooms[each.vo, queue] = QueueRoom(
                    pilots=free if queue in usable else 0, rank=each.ranks[queue]
                )
        return rooms

    def _usable(self, summary: DirectorSummary) -> frozenset[str]:
        """The queues whose batch queue is up, at a batch system that answers."""
        found: set[str] = set()
        for name, system in self.sites.systems.items():
            try:
                capacity = system.capacity()
            except BatchSystemAway as error:
                summary.away.append(str(error))
                continue
            of_system = (each for each in self.sites.all_outlets() if each.system == name)
            for outlet in of_system:
                here = capacity.get(outlet.batch_queue)
                if here is None or here.cores > 0:  # one that is not told of may take pilots all the same
                    found.add(outlet.queue)
        return frozenset(found)

    def _there(
        self,
        by_post: Mapping[TargetGroup, Iterable[DirectorPilot]],
        wanted: Iterable[VoDemand],
        now: datetime,
    ) -> Mapping[TargetGroup, int]:
        lifetimes = {post: seconds for each in wanted for post, seconds in each.lifetimes.items()}
        soon = self.sites.habits.soon
        return {
            post: sum(
                director_pilots.will_take_a_job(pilot, now, lifetime=lifetimes[post], soon=soon)
                for pilot in pilots
            )
            for post, pilots in by_post.items()
        }

    def _most(
        self, by_post: Mapping[TargetGroup, Iterable[DirectorPilot]], now: datetime, summary: DirectorSummary
    ) -> Mapping[TargetGroup, int]:
        found = {
            post: targets.most_to_send(director_pilots.list_trials(pilots), self.sites.habits.pause, now)
            for post, pilots in by_post.items()
        }
        summary.paused += sorted({post.where for post, most in found.items() if most == 0})
        return {post: most for post, most in found.items() if most is not None}
