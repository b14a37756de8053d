"""One cycle of a director over its sites: track existing pilots, decide, submit new ones.

All state is at the service, in the batch systems and in the stamps: a director stores nothing itself, and one
that was killed can simply be restarted.

A pilot is submitted in two phases: first an intent at the service, then the batch job. If the director is
killed during the first phase, there may be an intent without a batch job; later there is the intent with the
stamp that the batch job has, if it exists. A stamp is never submitted again: the next cycles search for it
(`tracking`), then adopt the job or give the intent up; a pilot that is still needed gets a new stamp. So no
pilot is lost or doubled at whatever point the director dies. Two batch jobs with one stamp, which a batch
system may make of one submission, are one pilot: the second one finds the mark of the first, or the secret
used.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    JobResources,
    SubmissionRefused,
    SubmissionUncertain,
)
from pilotage.fabric.client import Client
from pilotage.fabric.cycle_summaries import DirectorSummary
from pilotage.fabric.director import demand, matcher_client, targets
from pilotage.fabric.director import pilots as director_pilots
from pilotage.fabric.director.demand import DemandSituation, Place, QueueLimits, QueueRoom
from pilotage.fabric.director.matcher_client import VoDemand
from pilotage.fabric.director.pilots import ACTIVE, DirectorPilot, Pilots, Status
from pilotage.fabric.director.targets import DirectorTargets, TargetGroup, parse_stamp
from pilotage.fabric.director.tracking import OrphanTracking, PilotTracking
from pilotage.fabric.node_script import PilotScript

_Pools = Mapping[TargetGroup, tuple[str, ...]]
#: How long pilots that ended are looked at.
_MEMORY = timedelta(days=1)


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
        self._orphans = OrphanTracking(sites=self.sites, clock=self.clock)

    def cycle(self, now: datetime) -> DirectorSummary:
        """Run one cycle; `ServiceAway` if the service does not answer: what was begun is found again.

        A VO of which the service refuses something is left out from there on, as one whose token has expired;
        `ApiError` if it refuses something of every VO.
        """
        summary = DirectorSummary(at=now)
        self._following.follow(self._own(summary), summary)
        pilots = self._own(summary)
        self._end_orphans(pilots, summary)
        running = [director_pilots.is_running(each) for each in pilots if each.status in ACTIVE]
        summary.waiting, summary.running = running.count(False), running.count(True)
        new, pools = self._decide(pilots, summary)
        summary.wanted = sum(new.values())
        # Those that want certain nodes first: pilots that take any node would fill theirs.
        for group in sorted(new, key=lambda each: not each.flags):
            if group.vo not in summary.refusals:
                with summary.noting_refusals(group.vo):
                    self._send(group, pools.get(group, ()), new[group], summary)
        if summary.refusals.keys() == self.clients.keys():
            raise next(iter(summary.refusals.values()))
        return summary

    def _own(self, summary: DirectorSummary) -> list[DirectorPilot]:
        """Our pilots: those that live, and those that ended not long ago."""
        habits = self.sites.habits
        found: dict[str, DirectorPilot] = {}
        for vo, of_vo in self._pilots.items():
            if vo in summary.refusals:
                continue
            with summary.noting_refusals(vo):
                # Those that live first: who ends between the two queries is in both, not in neither.
                pilots = (*of_vo.active(), *of_vo.ended(summary.at - _MEMORY))
                found |= {pilot.stamp: pilot for pilot in pilots}
        return [pilot for pilot in found.values() if parse_stamp(pilot.stamp, habits.name) is not None]

    def _end_orphans(self, pilots: Iterable[DirectorPilot], summary: DirectorSummary) -> None:
        """End orphans with the client of a VO that the service refuses nothing."""
        for vo, client in self.clients.items():
            if vo not in summary.refusals:
                with summary.noting_refusals(vo):
                    self._orphans.end({pilot.stamp for pilot in pilots}, client, summary)
                return

    def _ask(self, without: Collection[tuple[str, str, str]], summary: DirectorSummary) -> Sequence[VoDemand]:
        """Waiting jobs of the VOs that the service refuses nothing."""
        found = []
        for vo, client in self.clients.items():
            if vo not in summary.refusals:
                with summary.noting_refusals(vo):
                    found.append(matcher_client.fetch_demand(client, vo, self.sites, without=without))
        return found

    def _decide(
        self, pilots: Sequence[DirectorPilot], summary: DirectorSummary
    ) -> tuple[Mapping[TargetGroup, int], _Pools]:
        """The numbers of new pilots, and the pools that they are for."""
        habits = self.sites.habits
        bad = director_pilots.bad_landings(pilots, habits.name, habits.back_off, summary.at)
        summary.paused += sorted({f"{queue} of {broker}" for _, broker, queue in bad})
        wanted = self._ask(bad, summary)
        work = [each for of_vo in wanted for each in of_vo.work]
        summary.jobs = sum(each.jobs for each in work)
        summary.problems += [
            f"{queue}: no such queue" for queue in sorted({name for each in wanted for name in each.unknown})
        ]
        pools = {group: names for each in wanted for group, names in each.pools.items()}
        by_group = director_pilots.pilots_by_group(pilots, pools, habits.name)
        situation = DemandSituation(
            work=work,
            rooms=self._rooms(pilots, wanted, summary),
            there=self._there(by_group, wanted, summary.at),
            most=self._most(by_group, summary),
        )
        new = demand.decide_pilots(situation, self.chance)
        return {
            self.sites.trial(group, self.chance) if group in situation.most else group: number
            for group, number in new.items()
        }, pools

    def _rooms(
        self, pilots: Iterable[DirectorPilot], wanted: Sequence[VoDemand], summary: DirectorSummary
    ) -> Mapping[Place, QueueRoom]:
        """Room of our queues for the pilots of each VO, which may see other limits there."""
        of_queue = director_pilots.pilots_by_queue(pilots, _widest_limits(wanted))
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
                if here is None or here.cores > 0:  # one that is not reported may take pilots all the same
                    found.add(outlet.queue)
        return frozenset(found)

    def _there(
        self,
        by_group: Mapping[TargetGroup, Iterable[DirectorPilot]],
        wanted: Iterable[VoDemand],
        now: datetime,
    ) -> Mapping[TargetGroup, int]:
        lifetimes = {group: seconds for each in wanted for group, seconds in each.lifetimes.items()}
        soon = timedelta(seconds=self.sites.habits.soon)
        return {
            group: sum(
                director_pilots.will_take_a_job(pilot, now, lifetime=lifetimes[group], soon=soon)
                for pilot in pilots
            )
            for group, pilots in by_group.items()
        }

    def _most(
        self, by_group: Mapping[TargetGroup, Iterable[DirectorPilot]], summary: DirectorSummary
    ) -> Mapping[TargetGroup, int]:
        pause = self.sites.habits.back_off
        found = {
            group: targets.most_to_send(director_pilots.list_trials(pilots), pause, summary.at)
            for group, pilots in by_group.items()
        }
        summary.paused += sorted({group.where for group, most in found.items() if most == 0})
        return {group: most for group, most in found.items() if most is not None}

    def _send(
        self, group: TargetGroup, pools: tuple[str, ...], number: int, summary: DirectorSummary
    ) -> None:
        """Submit so many pilots; stop at the first one that its batch system does not take."""
        for _ in range(number):
            try:
                if not self._send_one(group, pools, summary):
                    return
            except (SubmissionUncertain, BatchSystemAway) as error:
                # It may be there: the intent stays, and the next cycles find out.
                summary.uncertain += 1
                summary.away.append(str(error))
                return

    def _send_one(self, group: TargetGroup, pools: tuple[str, ...], summary: DirectorSummary) -> bool:
        pilots, outlet = self._pilots[group.vo], self.sites.door(group)
        stamp = targets.new_stamp(self.sites.habits.name, group.flags, group.broker)
        script = PilotScript(
            stamp=stamp,
            secret=pilots.intend(stamp, group),
            queue=outlet.queue,
            landings=self.sites.landings(group),
            pools=pools,
            words=_slot_arguments(outlet.resources),
        )
        job = BatchJob(
            stamp=stamp,
            script=self.sites.script(script),
            queue=outlet.batch_queue,
            resources=outlet.resources,
            flags=(*outlet.flags, *group.flags),
        )
        try:
            reference = self.sites.systems[outlet.system].submit(job)
        except SubmissionRefused as error:
            pilots.tell(stamp, Status.ABORTED, reason=str(error)[:2000])
            summary.refused += 1
            summary.problems.append(f"{group.where}: {error}")
            return False
        # A pilot that was faster than we are runs already: then the next cycle stores its reference.
        pilots.tell(stamp, Status.WAITING, reference=reference)
        summary.submitted += 1
        return True


def _slot_arguments(asked: JobResources) -> tuple[str, ...]:
    """Options for the size of the slot; for all others the pilot takes the parameters of the queue."""
    known = {
        "--lifetime": asked.wall_time,
        "--max-ram": asked.memory,
        "--processors": asked.cores if asked.cores > 1 else None,
        "--gpus": asked.gpus or None,
    }
    return tuple(f"{name}={value}" for name, value in known.items() if value is not None)


def _widest_limits(wanted: Iterable[VoDemand]) -> Mapping[str, QueueLimits]:
    """The limits of each queue for the VO that may have most pilots there."""
    found: dict[str, QueueLimits] = {}
    for each in wanted:
        for queue, limits in each.limits.items():
            known = found.get(queue, limits)
            found[queue] = QueueLimits(
                total=max(known.total, limits.total), waiting=max(known.waiting, limits.waiting)
            )
    return found
