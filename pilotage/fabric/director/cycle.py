"""One look of a director at its sites: follow the pilots that are there, decide, send new ones.

Everything that it needs to know stands at the service, in the batch systems and in the stamps: a director
keeps nothing of its own, and one that was killed is started again as if nothing had been.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.client import Client
from pilotage.fabric.director import counting, demand, experience
from pilotage.fabric.director.asking import Asking, Wanted
from pilotage.fabric.director.demand import Room, Situation
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

        Raises:
            ServiceAway: The service does not answer; what was begun is found again.
            ApiError: It refuses, such as a token that has expired.
        """
        summary = Summary(at=now)
        self._following.follow(self._own(now), now, summary)
        pilots = self._own(now)
        self._orphans.end({pilot.stamp for pilot in pilots}, summary)
        numbers = counting.waiting_and_running(pilots)
        summary.waiting, summary.running = numbers[False], numbers[True]
        decided = self._decide(pilots, now, summary)
        summary.wanted = sum(decided.new.values())
        sending = Sending(sites=self.sites, pilots=self._pilots)
        # Those that want certain nodes first: pilots that take any node would fill theirs.
        for post in sorted(decided.new, key=lambda post: not post.flags):
            sending.send(post, decided.pools.get(post, ()), decided.new[post], summary)
        return summary

    def _own(self, now: datetime) -> list[Pilot]:
        """Our pilots: those that live, and those that ended not long ago."""
        habits = self.sites.habits
        found = {
            pilot.stamp: pilot
            for of_vo in self._pilots.values()
            # Those that live first: who ends between the two questions is in both, not in neither.
            for pilot in (*of_vo.active(), *of_vo.ended(now - habits.memory))
        }
        return [pilot for pilot in found.values() if sent_as(pilot.stamp, habits.name) is not None]

    def _decide(self, pilots: Sequence[Pilot], now: datetime, summary: Summary) -> _Decided:
        habits = self.sites.habits
        bad = counting.bad_landings(pilots, habits.name, habits.pause, now)
        summary.paused += sorted({f"{queue} of {broker}" for _, broker, queue in bad})
        wanted = [Asking(client, vo).ask(self.sites, without=bad) for vo, client in self.clients.items()]
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
    ) -> Mapping[str, Room]:
        """What our queues take; where VOs see other limits of one queue the smaller ones hold."""
        told = {queue: limits for each in wanted for queue, limits in each.limits.items()}
        of_queue = counting.of_queues(pilots, told)
        rooms: dict[str, Room] = {}
        usable = self._usable(summary)
        for each in wanted:
            for queue, limits in each.limits.items():
                free = min(counting.room(of_queue.get(queue, ()), limits), self.sites.habits.at_once)
                before = rooms.get(queue, Room(pilots=free))
                fewer = min(free, before.pilots) if queue in usable else 0
                rooms[queue] = Room(pilots=fewer, rank=each.ranks[queue])
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
