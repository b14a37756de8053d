"""One look of a director at its sites: follow the pilots that are there, decide, send new ones.

Everything that it needs to know stands at the service, in the batch systems and in the stamps: a director
keeps nothing of its own, and one that was killed is started again as if nothing had been.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.client import Client
from pilotage.fabric.director import counting, demand, experience
from pilotage.fabric.director.asking import Asking, Wanted
from pilotage.fabric.director.demand import Limits, Place, Room, Situation
from pilotage.fabric.director.following import Following
from pilotage.fabric.director.orphans import Orphans
from pilotage.fabric.director.outlets import Sites
from pilotage.fabric.director.pilots import Pilot, Pilots
from pilotage.fabric.director.posts import Post, sent_as
from pilotage.fabric.director.sending import Sending
from pilotage.fabric.director.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """What a cycle sends, and for what."""

    new: Mapping[Post, int]
    pools: Mapping[Post, tuple[str, ...]]


def _widest(wanted: Iterable[Wanted]) -> Mapping[str, Limits]:
    """The limits of each queue for the VO that may have most pilots there."""
    found: dict[str, Limits] = {}
    for each in wanted:
        for queue, limits in each.limits.items():
            known = found.get(queue, limits)
            found[queue] = Limits(
                total=max(known.total, limits.total), waiting=max(known.waiting, limits.waiting)
            )
    return found


@dataclass(slots=True, kw_only=True)
class Director:
    """Sends pilots to the queues of its sites, straight or through brokers that pick the queue.

    Source: DIRAC, SiteDirector and TaskQueueDirector; here they are one, since work counts once for both.
    """

    sites: Sites
    clients: Mapping[str, Client]  #: by VO, each with the VO's token
    chance: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = time.monotonic  #: seconds; one that is not set by anybody
    _pilots: Mapping[str, Pilots] = field(init=False)
    _following: Following = field(init=False)
    _orphans: Orphans = field(init=False)

    def __post_init__(self) -> None:
        self._pilots = {vo: Pilots(client, vo) for vo, client in self.clients.items()}
        self._following = Following(sites=self.sites, pilots=self._pilots)
        self._orphans = Orphans(sites=self.sites, client=next(iter(self.clients.values())), clock=self.clock)

    def cycle(self, now: datetime) -> Summary:
        """Do it once.

        A VO of which the service refuses something is left out from there on, as one whose token has expired.

        Raises:
            ServiceAway: The service does not answer; what was begun is found again.
            ApiError: It refuses something of every VO.
        """
        summary = Summary(at=now)
        self._following.follow(self._own(now, summary), now, summary)
        pilots = self._own(now, summary)
        self._end_orphans(pilots, summary)
        numbers = counting.waiting_and_running(pilots)
        summary.waiting, summary.running = numbers[False], numbers[True]
        decided = self._decide(pilots, now, summary)
        summary.wanted = sum(decided.new.values())
        sending = Sending(sites=self.sites, pilots=self._pilots)
        # Those that want certain nodes first: pilots that take any node would fill theirs.
        for post in sorted(decided.new, key=lambda post: not post.flags):
            if post.vo not in summary.refusals:
                with summary.noting_refusals(post.vo):
                    sending.send(post, decided.pools.get(post, ()), decided.new[post], summary)
        if summary.refusals.keys() == self.clients.keys():
            raise next(iter(summary.refusals.values()))
        return summary

    def _own(self, now: datetime, summary: Summary) -> list[Pilot]:
        """Our pilots: those that live, and those that ended not long ago."""
        habits = self.sites.habits
        found: dict[str, Pilot] = {}
        for vo, of_vo in self._pilots.items():
            if vo in summary.refusals:
                continue
            with summary.noting_refusals(vo):
                # Those that live first: who ends between the two questions is in both, not in neither.
                pilots = (*of_vo.active(), *of_vo.ended(now - habits.memory))
                found |= {pilot.stamp: pilot for pilot in pilots}
        return [pilot for pilot in found.values() if sent_as(pilot.stamp, habits.name) is not None]

    def _end_orphans(self, pilots: Iterable[Pilot], summary: Summary) -> None:
        """The service says of all stamps whether they are somebody's, to a VO that it refuses nothing."""
        for vo, client in self.clients.items():
            if vo not in summary.refusals:
                self._orphans.client = client
                with summary.noting_refusals(vo):
                    self._orphans.end({pilot.stamp for pilot in pilots}, summary)
                return

    def _ask(self, without: Collection[tuple[str, str, str]], summary: Summary) -> Sequence[Wanted]:
        """What waits, of the VOs that the service refuses nothing."""
        found = []
        for vo, client in self.clients.items():
            if vo not in summary.refusals:
                with summary.noting_refusals(vo):
                    found.append(Asking(client, vo).ask(self.sites, without=without))
        return found

    def _decide(self, pilots: Sequence[Pilot], now: datetime, summary: Summary) -> _Decided:
        habits = self.sites.habits
        bad = counting.bad_landings(pilots, habits.name, habits.pause, now)
        summary.paused += sorted({f"{queue} of {broker}" for _, broker, queue in bad})
        wanted = self._ask(bad, summary)
        work = [each for of_vo in wanted for each in of_vo.work]
        summary.jobs = sum(each.jobs for each in work)
        summary.problems += [
            f"{queue}: no such queue" for queue in sorted({name for each in wanted for name in each.unknown})
        ]
        pools = {post: names for each in wanted for post, names in each.pools.items()}
        by_post = counting.of_posts(pilots, pools, habits.name)
        situation = Situation(
            work=work,
            rooms=self._rooms(pilots, wanted, summary),
            there=self._there(by_post, wanted, now),
            most=self._most(by_post, now, summary),
        )
        new = demand.decide(situation, self.chance)
        return _Decided(
            new={
                self.sites.trial(post, self.chance) if post in situation.most else post: number
                for post, number in new.items()
            },
            pools=pools,
        )

    def _rooms(
        self, pilots: Iterable[Pilot], wanted: Sequence[Wanted], summary: Summary
    ) -> Mapping[Place, Room]:
        """What our queues take of the pilots of each VO, which may see other limits there."""
        of_queue = counting.of_queues(pilots, _widest(wanted))
        usable = self._usable(summary)
        rooms: dict[Place, Room] = {}
        for each in wanted:
            for queue, limits in each.limits.items():
                free = min(counting.room(of_queue.get(queue, ()), limits), self.sites.habits.at_once)
                rooms[each.vo, queue] = Room(pilots=free if queue in usable else 0, rank=each.ranks[queue])
        return rooms

    def _usable(self, summary: Summary) -> frozenset[str]:
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
        self, by_post: Mapping[Post, Iterable[Pilot]], wanted: Iterable[Wanted], now: datetime
    ) -> Mapping[Post, int]:
        lifetimes = {post: seconds for each in wanted for post, seconds in each.lifetimes.items()}
        soon = self.sites.habits.soon
        return {
            post: sum(
                counting.will_take_a_job(pilot, now, lifetime=lifetimes[post], soon=soon) for pilot in pilots
            )
            for post, pilots in by_post.items()
        }

    def _most(
        self, by_post: Mapping[Post, Iterable[Pilot]], now: datetime, summary: Summary
    ) -> Mapping[Post, int]:
        found = {
            post: experience.most_to_send(counting.trials(pilots), self.sites.habits.pause, now)
            for post, pilots in by_post.items()
        }
        summary.paused += sorted({post.where for post, most in found.items() if most == 0})
        return {post: most for post, most in found.items() if most is not None}
