"""One cycle of a director over its sites: track existing pilots, decide, submit new ones.

The director talks to the service; batch systems are used by their workers, each in a thread of its own
(`workers`), between which and the service the cycle mediates.

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
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta

from pilotage.client.api import ApiError, ServiceAway, ServiceClient
from pilotage.fabric import cycle_summaries
from pilotage.fabric.batch.batch_system import BatchJob, JobResources
from pilotage.fabric.cycle_summaries import DirectorSummary, Presence
from pilotage.fabric.director import (
    bad_nodes,
    demand,
    matcher_client,
    queue_states,
    surplus,
    system_check,
    targets,
    workers,
)
from pilotage.fabric.director import recorded_pilots as director_pilots
from pilotage.fabric.director.bad_nodes import BadNodes
from pilotage.fabric.director.demand import DemandSituation, PilotDecision, Place, QueueLimits, QueueRoom
from pilotage.fabric.director.matcher_client import UnservedWork, VoDemand
from pilotage.fabric.director.queue_states import ReportedQueue
from pilotage.fabric.director.recorded_pilots import (
    ACTIVE,
    DirectorPilot,
    PilotReport,
    Pilots,
    PilotSlot,
    Status,
)
from pilotage.fabric.director.surplus import SurplusMemory, SurplusPilot
from pilotage.fabric.director.targets import DirectorTargets, QueuePause, TargetGroup
from pilotage.fabric.director.tracking import CleaningActions, OrphanTracking, PilotTracking
from pilotage.fabric.director.workers import (
    ActionResults,
    PilotSubmission,
    SystemActions,
    SystemWorker,
)
from pilotage.fabric.node_script import PilotScript
from requirements.nodes.lrms_vocabulary import OF_COMMANDS, are_flags

#: The code of the service's refusal while another process of this director works.
_OTHER_PROCESS = "other_process"
#: Seconds for which pilots avoid no nodes of a queue after one that was to avoid some was refused.
_WITHOUT_OTHERS = 3600.0
#: Groups with flags, of each VO, with which a check lets batch systems tell whether they take pilots.
_CHECKED_GROUPS = 50


@dataclass(slots=True, kw_only=True)
class Director:
    """Sends pilots to the queues of its sites, straight or through brokers that pick the queue.

    Source: DIRAC, SiteDirector and TaskQueueDirector; here they are one, since work counts once for both.
    """

    sites: DirectorTargets
    clients: Mapping[str, ServiceClient]  #: by VO, each with the VO's token
    chance: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = time.monotonic  #: seconds; one that is not set by anybody
    patience: float = 10.0  #: seconds that a cycle waits for batch systems, twice
    every: float = 60.0  #: seconds between two cycles
    config_version: int = 0  #: the newest version of the configuration that a cycle has read
    expected: float | None = None  #: seconds until the next cycle, if that is another process; None: `every`
    risks: Sequence[str] = ()  #: of its file, for its reports: those of each VO
    holder: str = field(default_factory=cycle_summaries.identify_process)
    _last: DirectorSummary | None = None
    _too_small: Mapping[str, Sequence[UnservedWork]] = field(default_factory=dict)  #: by VO, last known
    _nodes: dict[str, str] = field(default_factory=dict)  #: by stamp, the node as its batch system names it
    _bad_nodes: Mapping[Place, BadNodes] = field(default_factory=dict)
    #: Nodes that pilots which may still wait were sent to avoid, by stamp; after a restart none is known.
    _avoided: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: When a queue refused a pilot that was to avoid nodes: it may have no others.
    _without_others: dict[str, float] = field(default_factory=dict)
    _queues: Mapping[str, Sequence[ReportedQueue]] = field(default_factory=dict)  #: by VO, last known
    _pilots: Mapping[str, Pilots] = field(init=False)
    _workers: Mapping[str, SystemWorker] = field(init=False)
    _following: PilotTracking = field(init=False)
    _orphans: OrphanTracking = field(init=False)
    _surplus: SurplusMemory = field(init=False)
    _submitting: dict[str, TargetGroup] = field(default_factory=dict)  #: by stamp, given to workers
    _unserved: frozenset[TargetGroup] = frozenset()  #: that could run more jobs than they got pilots for
    #: By VO, what became of submissions, until the service answers.
    _unreported: dict[str, list[PilotReport]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._pilots = {
            vo: Pilots(client, vo, self.sites.options.name) for vo, client in self.clients.items()
        }
        self._workers = {
            name: SystemWorker(name=name, system=system, seconds=self.sites.options.system_timeout)
            for name, system in sorted(self.sites.systems.items())
        }
        self._following = PilotTracking(sites=self.sites, pilots=self._pilots)
        self._orphans = OrphanTracking(sites=self.sites, clock=self.clock)
        self._surplus = SurplusMemory(evidence=self.sites.options.surplus, clock=self.clock)

    def cycle(self, now: datetime) -> DirectorSummary:
        """Run one cycle; `ServiceAway` if the service does not answer: what was begun is found again.

        A VO of which the service refuses something is left out from there on, as one whose token has expired;
        `ApiError` if it refuses something of every VO. A batch system that fails or hangs is left out, too.
        """
        summary = DirectorSummary(at=now)
        self._report_presence(summary)
        self._take_results(summary)
        pilots, actions = self._follow(self._refresh(summary), summary)
        running = [director_pilots.is_running(each) for each in pilots if each.status in ACTIVE]
        summary.waiting, summary.running = running.count(False), running.count(True)
        new, too_many, demands = self._decide(pilots, summary)
        summary.wanted = sum(new.values())
        self._withdraw(too_many, actions, summary)
        self._act(actions, self._intend(new, demands, summary))
        self._take_results(summary)
        self._last = summary
        if summary.refusals and summary.refusals.keys() == self.clients.keys():
            raise next(iter(summary.refusals.values()))
        return summary

    def end(self) -> None:
        """Let another process of this director work at once; the service may be away."""
        for vo, client in self.clients.items():
            with suppress(ApiError, ServiceAway):
                self._report(vo, client, ends=True)

    def _report_presence(self, summary: DirectorSummary) -> None:
        """Report that this process works; a VO for which another one does is left out.

        The token is renewed also where a report is refused for another reason: it would expire meanwhile.
        """
        for vo, client in self.clients.items():
            with summary.noting_refusals(vo):
                try:
                    self._report(vo, client)
                except ApiError as error:
                    if error.code != _OTHER_PROCESS:
                        with suppress(ApiError, ServiceAway):  # the refused report is the problem
                            client.renew_token()
                        raise
                    holder = str(error.details.get("holder", ""))
                    if not cycle_summaries.has_ended(holder):
                        raise
                    self._report(vo, client, replaces=holder)
                self._renew_token(vo, client, summary)

    def _renew_token(self, vo: str, client: ServiceClient, summary: DirectorSummary) -> None:
        """Renew the token if it is due; if that is refused, it still serves until it expires."""
        try:
            client.renew_token()
        except ApiError as error:
            summary.note_problem(vo, f"the token for the VO {vo} is not renewed: {error}")

    def _report(self, vo: str, client: ServiceClient, *, ends: bool = False, replaces: str = "") -> None:
        last = self._last
        here = Presence(
            kind="director",
            name=self.sites.options.name,
            sites=sorted({each.queue.partition("/")[0] for each in self.sites.all_targets(vo)}),
            every=self.every,
            expected=self.expected,
            holder=self.holder,
        )
        report = here.build_report(
            vo,
            problems=() if last is None else self._list_problems(vo, last),
            too_small=[asdict(each) for each in self._too_small.get(vo, ())],
            ends=ends,
        )
        report |= {"replaces": replaces} if replaces else {}
        states = [each.to_report() for each in self._queues.get(vo, ())]
        try:
            client.report_process(report | ({"queues": states} if states else {}))
        except ApiError as error:
            if not states or error.code != director_pilots.INVALID:
                raise
            client.report_process(report)  # a service of 1.0 takes no queues

    def _list_problems(self, vo: str, last: DirectorSummary) -> list[str]:
        """Problems of the last cycle that concern a VO, first those of batch systems that it skipped."""
        skipped = (self._workers[name].trouble for name in last.skipped)
        queues = {each.queue for each in self.sites.all_targets(vo)}
        return list(dict.fromkeys((*filter(None, skipped), *last.problems_of(vo, queues), *self.risks)))

    def check_slots(self, *, with_unknown: bool = False) -> list[str]:
        """Contradictions between the file and the queues, for any VO; also queues that do not exist."""
        found = set[str]()
        for vo, client in self.clients.items():
            of_vo = matcher_client.check_slots(client, vo, self.sites)
            found.update(of_vo.wrong, of_vo.unknown if with_unknown else ())
        return sorted(found)

    def check_systems(self) -> Mapping[str, str]:
        """What is wrong with each batch system and its queues; an empty string: nothing."""
        queues: dict[targets.QueueTarget, None] = {}
        for vo, client in self.clients.items():
            queues |= dict.fromkeys(matcher_client.check_slots(client, vo, self.sites).queues)
            queues |= dict.fromkeys(self._list_flagged(matcher_client.fetch_demand(client, vo, self.sites)))
        return system_check.check_systems(
            self.sites.systems, queues, seconds=self.sites.options.system_timeout
        )

    def _list_flagged(self, of_vo: VoDemand) -> list[targets.QueueTarget]:
        """How pilots would be sent for waiting jobs that need certain nodes, those of most jobs first."""
        jobs = Counter[TargetGroup]()
        for each in of_vo.work:
            jobs.update({group: each.jobs for group in each.groups if group.flags})
        found = []
        for group, _ in jobs.most_common(_CHECKED_GROUPS):
            target = self.sites.find_target(group)
            found.append(
                replace(
                    target,
                    queue=group.where,
                    resources=of_vo.slot_of(group),
                    flags=(*target.flags, *group.flags),
                )
            )
        return found

    def _refresh(self, summary: DirectorSummary) -> list[DirectorPilot]:
        """Read our pilots from the service anew, VO by VO; refusals are noted in the summary."""
        found: list[DirectorPilot] = []
        for vo, of_vo in self._pilots.items():
            with summary.noting_refusals(vo):
                found += of_vo.refresh(summary.at)
        return found

    def _follow(
        self, own: Sequence[DirectorPilot], summary: DirectorSummary
    ) -> tuple[list[DirectorPilot], Mapping[str, CleaningActions]]:
        """Poll all batch systems and report what they show; the pilots as they are now, and actions."""
        last = {name: each.snapshot for name, each in self._workers.items() if each.snapshot is not None}
        followed = self._following.build_requests(own, last)
        snapshots = workers.poll_all(
            self._workers, {name: request for name, (request, _) in followed.items()}, self.patience, summary
        )
        known = {each.stamp for each in own}
        self._nodes = {stamp: node for stamp, node in self._nodes.items() if stamp in known} | {
            stamp: report.node
            for snapshot in snapshots.values()
            for stamp, report in snapshot.reports.items()
            if report.node
        }
        changed, actions = self._following.follow(followed, snapshots, summary)
        self._following.give_up(own, (request for request, _ in followed.values()), summary)
        found = [each.with_report(changed[each.stamp]) if each.stamp in changed else each for each in own]
        stamps = {pilot.stamp for pilot in own} | self._submitting.keys()
        for vo, client in self.clients.items():
            if vo not in summary.refusals:  # any VO will do
                with summary.noting_refusals(vo):
                    orphans = self._orphans.find(snapshots, stamps, client, summary)
                    for name, of_system in orphans.items():
                        actions[name].kill.extend(of_system.kill)
                        actions[name].forget.extend(of_system.forget)
                break
        return found, actions

    def _fetch_demand(
        self, without: Collection[tuple[str, str, str]], summary: DirectorSummary
    ) -> Sequence[VoDemand]:
        """Waiting jobs of the VOs that the service refuses nothing."""
        found = []
        for vo, client in self.clients.items():
            if vo not in summary.refusals:
                with summary.noting_refusals(vo):
                    found.append(matcher_client.fetch_demand(client, vo, self.sites, without=without))
        return found

    def _decide(
        self, pilots: Sequence[DirectorPilot], summary: DirectorSummary
    ) -> tuple[Mapping[TargetGroup, int], Sequence[SurplusPilot], Mapping[str, VoDemand]]:
        """The numbers of new pilots, pilots that are too many, and the demand of each VO."""
        options = self.sites.options
        bad = director_pilots.list_bad_targets(pilots, options.name, options.back_off, summary.at)
        summary.paused += sorted({f"{queue} of {broker}" for _, broker, queue in bad})
        paused = {(vo, queue) for vo, _, queue in bad}
        demands = self._fetch_demand(bad, summary)
        self.config_version = max((self.config_version, *(each.config_version for each in demands)))
        for each in demands:
            self._too_small = {**self._too_small, each.vo: each.too_small}
            summary.unserved |= {f"{slot.queue}: {slot.slot}": slot.jobs for slot in each.too_small}
            for problem in each.problems:
                summary.note_problem(each.vo, problem)
        work = [each for of_vo in demands for each in of_vo.work]
        summary.jobs = sum(each.jobs for each in work)
        used = {queue for each in demands for queue in each.limits}
        up = {each.queue for each in self.sites.all_targets() if not self._is_closed(each)}
        summary.closed += sorted(used - up) if work else ()
        groups = {group: of_vo for of_vo in demands for group in of_vo.pools}
        by_group = director_pilots.pilots_by_group(pilots, groups, options.name)
        slots = self._describe_slots(by_group, groups)
        counted = {
            group: director_pilots.count_slots(own, slots[group], summary.at)
            for group, own in by_group.items()
        }
        of_queue = director_pilots.pilots_by_queue(pilots, _widest_limits(demands))
        rooms = self._rooms(of_queue, demands)
        on_trial, pauses = self._judge_groups(by_group, summary)
        situation = DemandSituation(
            work=work,
            rooms=rooms,
            there={group: there for group, (there, _) in counted.items()},
            late={group: late for group, (_, late) in counted.items()},
            most=_lowest(on_trial, self._limit_by_places(by_group, groups, rooms)),
        )
        decision = self._limit_to_places(demand.decide_pilots(situation, self.chance), pilots, by_group)
        self._unserved = decision.unserved
        judged = [each for each in pilots if all((each.vo, queue) not in paused for queue in each.queues)]
        others = director_pilots.list_others(judged, by_group, {each.vo for each in demands})
        soon = timedelta(seconds=options.short_job)
        filled = self._list_filled(of_queue, demands)
        full = self._list_full(filled, by_group, decision.new)
        self._bad_nodes = self._find_bad_nodes(pilots, summary.at)
        too_many = surplus.list_surplus(by_group, others, work, full, soon, summary.at)
        too_many += surplus.list_for_room(full, by_group, too_many, summary.at)
        too_many += self._list_for_nodes(filled, pilots, too_many)
        chosen = {
            self.sites.choose_trial(group, self.chance) if group in on_trial else group: number
            for group, number in decision.new.items()
        }
        of_places = queue_states.longest_pauses(
            [
                *((group.vo, group.queues, pause) for group, pause in pauses.items()),
                *((vo, (queue,), pause) for (vo, _, queue), pause in bad.items()),
            ]
        )
        self._queues = {**self._queues} | {
            each.vo: queue_states.list_states(each, of_queue, rooms, decision.new, of_places, self._bad_nodes)
            for each in demands
        }
        return chosen, too_many, {each.vo: each for each in demands}

    def _limit_to_places(
        self,
        decision: PilotDecision,
        pilots: Iterable[DirectorPilot],
        by_group: Mapping[TargetGroup, Iterable[DirectorPilot]],
    ) -> PilotDecision:
        """The decision with no more pilots than there are free places for all queues together."""
        if self.sites.places is None:
            return decision
        free = self.sites.places - sum(each.status in ACTIVE for each in pilots)
        existing = {group: sum(each.status in ACTIVE for each in own) for group, own in by_group.items()}
        return replace(decision, new=demand.share_places(decision.new, existing, free))

    def _find_bad_nodes(self, pilots: Iterable[DirectorPilot], now: datetime) -> Mapping[Place, BadNodes]:
        """The nodes that new pilots avoid, by VO and queue; none of a queue that seems to have no others."""
        at_place: dict[Place, list[DirectorPilot]] = defaultdict(list)
        for each in pilots:
            if each.stamp in self._nodes and each.queue:
                at_place[each.vo, each.queue].append(each)
        since = self.clock() - _WITHOUT_OTHERS
        return {
            place: bad_nodes.find_bad_nodes(there, self._nodes, now)
            for place, there in at_place.items()
            if self._without_others.get(place[1], since) <= since
        }

    def _limit_by_places(
        self,
        by_group: Mapping[TargetGroup, Sequence[DirectorPilot]],
        groups: Collection[TargetGroup],
        rooms: Mapping[Place, QueueRoom],
    ) -> Mapping[TargetGroup, int]:
        """Limits of groups in whose queues others, which have work since the last cycle, have no place."""
        without = [
            group for group in self._unserved if group in groups and not surplus.has_place(group, by_group)
        ]
        return surplus.limit_by_places(without, by_group, lambda group: _room_of(group, rooms))

    def _list_filled(
        self, of_queue: Mapping[str, Sequence[DirectorPilot]], demands: Sequence[VoDemand]
    ) -> Collection[Place]:
        """The queues, by VO, where waiting pilots alone fill all places."""
        open_queues = {each.queue for each in self.sites.all_targets() if self._is_open(each)}
        return {
            (each.vo, queue)
            for each in demands
            for queue, limits in each.limits.items()
            if queue in open_queues
            and director_pilots.are_places_taken_by_waiting(of_queue.get(queue, ()), limits)
        }

    def _list_for_nodes(
        self, filled: Collection[Place], pilots: Iterable[DirectorPilot], leaving: Iterable[SurplusPilot]
    ) -> list[SurplusPilot]:
        """Waiting pilots to withdraw for new ones that may try a node which all of them avoid.

        Only where work has no pilots for want of places, and none leaves one anyway.
        """
        places = {(group.vo, group.queues[0]) for group in self._unserved if not group.broker}
        places -= {(each.pilot.vo, each.pilot.queue) for each in leaving if each.pilot.queue}
        waits = [each for each in pilots if director_pilots.is_waiting(each)]
        stamps = {each.stamp for each in waits} | self._submitting.keys()
        self._avoided = {stamp: nodes for stamp, nodes in self._avoided.items() if stamp in stamps}
        waiting: dict[Place, list[DirectorPilot]] = defaultdict(list)
        for each in waits:
            if each.queue and (each.vo, each.queue) in places.intersection(filled):
                waiting[each.vo, each.queue].append(each)
        kept_from = {place: bad.avoided_by(0) for place, bad in self._bad_nodes.items()}
        return surplus.list_for_nodes(waiting, self._avoided, kept_from)

    def _list_full(
        self,
        filled: Collection[Place],
        by_group: Mapping[TargetGroup, Sequence[DirectorPilot]],
        new: Collection[TargetGroup],
    ) -> Mapping[str, Sequence[TargetGroup]]:
        """The groups with work and without a place, by queue, where waiting pilots alone fill all places."""
        found: dict[str, list[TargetGroup]] = defaultdict(list)
        for group in sorted(self._unserved.difference(new)):
            is_full = all((group.vo, queue) in filled for queue in group.queues)
            if is_full and not surplus.has_place(group, by_group):
                found[group.queues[0]].append(group)
        return found

    def _withdraw(
        self,
        found: Sequence[SurplusPilot],
        actions: Mapping[str, CleaningActions],
        summary: DirectorSummary,
    ) -> None:
        """End the batch jobs of pilots that have been too many for long enough, if they still wait."""
        summary.surplus += surplus.describe(found)
        for each in self._surplus.list_proven(found):
            name = self.sites.system_of(each.pilot.stamp, each.pilot.queue)
            worker = None if name is None else self._workers[name]
            if name is None or worker is None or not worker.is_usable or worker.snapshot is None:
                continue
            if self._following.withdraw(each.pilot, worker.snapshot, each.reason, actions[name]):
                summary.withdrawn += 1

    def _rooms(
        self, of_queue: Mapping[str, Sequence[DirectorPilot]], demands: Sequence[VoDemand]
    ) -> Mapping[Place, QueueRoom]:
        """Room of our queues for the pilots of each VO, which may see other limits there."""
        by_queue: dict[str, list[targets.QueueTarget]] = defaultdict(list)
        for target in self.sites.all_targets():
            by_queue[target.queue].append(target)
        rooms: dict[Place, QueueRoom] = {}
        for each in demands:
            for queue, limits in each.limits.items():
                here = of_queue.get(queue, ())
                room = min(director_pilots.free_room(here, limits), self.sites.options.max_pilots_per_cycle)
                usable = [target for target in by_queue[queue] if self._is_open(target)]
                rooms[each.vo, queue] = QueueRoom(
                    pilots=room if usable else 0,
                    free=self._free_slots(usable, here, each),
                    batch_queue=",".join(f"{target.system}/{target.batch_queue}" for target in usable),
                )
        return rooms

    def _is_open(self, target: targets.QueueTarget) -> bool:
        """Whether the batch queue is up, at a batch system that answers."""
        return self._workers[target.system].is_usable and not self._is_closed(target)

    def _is_closed(self, target: targets.QueueTarget) -> bool:
        """Whether the batch queue was closed at the last poll; one that is not reported may take pilots."""
        snapshot = self._workers[target.system].snapshot
        here = None if snapshot is None else snapshot.capacity.get(target.batch_queue)
        return here is not None and here.cores <= 0

    def _free_cores(self, target: targets.QueueTarget) -> int | None:
        """Free cores of a batch queue at the last poll; None: unknown."""
        snapshot = self._workers[target.system].snapshot
        here = None if snapshot is None else snapshot.capacity.get(target.batch_queue)
        return None if here is None else here.free_cores

    def _free_slots(
        self, usable: Iterable[targets.QueueTarget], pilots: Sequence[DirectorPilot], of_vo: VoDemand
    ) -> int | None:
        """Pilots that would start at once in a queue; those that wait there will fill some cores."""
        found = []
        waiting = sum(not director_pilots.is_running(each) for each in pilots if each.status in ACTIVE)
        for target in usable:
            cores = of_vo.slots.get((target.broker, target.queue), target.resources).cores
            if (free := self._free_cores(target)) is None:
                return None
            found.append(max(0, free // cores - waiting))
        return sum(found)

    def _describe_slots(
        self, by_group: Iterable[TargetGroup], groups: Mapping[TargetGroup, VoDemand]
    ) -> Mapping[TargetGroup, PilotSlot]:
        """The slots of existing pilots by group."""
        found = {}
        for group in by_group:
            asked = groups[group].slot_of(group)
            free = self._free_cores(self.sites.find_target(group))
            found[group] = PilotSlot(
                cores=asked.cores,
                lifetime=asked.wall_time,
                is_full=free is not None and free < asked.cores,
                soon=timedelta(seconds=self.sites.options.short_job),
            )
        return found

    def _judge_groups(
        self, by_group: Mapping[TargetGroup, Iterable[DirectorPilot]], summary: DirectorSummary
    ) -> tuple[Mapping[TargetGroup, int], Mapping[TargetGroup, QueuePause]]:
        """New pilots at most by group, where experience sets a limit; and pauses, also for the summary."""
        back_off, now = self.sites.options.back_off, summary.at
        most: dict[TargetGroup, int] = {}
        pauses: dict[TargetGroup, QueuePause] = {}
        for group, own in by_group.items():
            trials = list(director_pilots.list_trials(own, now, with_flags=bool(group.flags)))
            if (limit := targets.most_to_send(trials, back_off, now)) is not None:
                most[group] = limit
            if (until := targets.find_pause(trials, back_off, now)) is not None:
                pauses[group] = QueuePause(until=until, reason=targets.read_last_reason(trials))
        summary.paused += sorted({group.where for group in pauses})
        return most, pauses

    def _intend(
        self, new: Mapping[TargetGroup, int], demands: Mapping[str, VoDemand], summary: DirectorSummary
    ) -> Mapping[str, list[PilotSubmission]]:
        """Store the intents for new pilots; their submissions by batch system."""
        by_vo: dict[str, dict[str, TargetGroup]] = defaultdict(dict)
        left = {name: each.most_submissions for name, each in self._workers.items()}
        # Those that want certain nodes first: pilots that take any node would fill theirs.
        for group in sorted(new, key=lambda each: not each.flags):
            system = self.sites.find_target(group).system
            if not are_flags(group.flags, self.sites.languages.get(system, OF_COMMANDS)):
                summary.note_problem(
                    group.vo,
                    f"{group.where}: flags {' '.join(group.flags)!r:.200} of the service are refused: "
                    f"{system} has no such conditions on nodes",
                )
                continue
            number = min(new[group], left[system])
            left[system] -= number
            sent_as = (self.sites.options.name, group.flags, group.broker)
            for _ in range(number):
                by_vo[group.vo][targets.new_stamp(*sent_as, service=self.sites.service)] = group
        found: dict[str, list[PilotSubmission]] = defaultdict(list)
        for vo, intents in by_vo.items():
            if vo in summary.refusals:
                continue
            try:
                with summary.noting_refusals(vo):
                    secrets = self._pilots[vo].intend(intents)
                    self._submitting |= intents
                    numbers = Counter[TargetGroup]()
                    for stamp, group in intents.items():
                        avoided = self._choose_avoided(group, numbers[group])
                        numbers[group] += 1
                        self._avoided |= {stamp: avoided} if avoided else {}
                        submission = self._submission(stamp, secrets[stamp], group, demands[vo], avoided)
                        found[self.sites.find_target(group).system].append(submission)
            except ServiceAway as error:  # those whose intents are stored are submitted
                summary.problems.append(str(error))
                break
        return found

    def _choose_avoided(self, group: TargetGroup, number: int) -> tuple[str, ...]:
        """The nodes that one of several new pilots of a group is to avoid; of a broker none."""
        if group.broker:
            return ()
        return self._bad_nodes.get((group.vo, group.queues[0]), BadNodes()).avoided_by(number)

    def _submission(
        self,
        stamp: str,
        secret: str,
        group: TargetGroup,
        of_vo: VoDemand,
        avoided_nodes: tuple[str, ...],
    ) -> PilotSubmission:
        target, slot = self.sites.find_target(group), of_vo.slot_of(group)
        pools = of_vo.pools.get(group, ())
        script = PilotScript(
            stamp=stamp,
            secret=secret,
            queue=target.queue,
            possible_queues=self.sites.batch_queues_of(group),
            pools=pools,
            words=_slot_arguments(slot),
        )

        def make_job() -> BatchJob:
            return BatchJob(
                stamp=stamp,
                script=self.sites.script(script),
                queue=target.batch_queue,
                resources=slot,
                flags=(*target.flags, *group.flags),
                avoided_nodes=avoided_nodes,
                about={"VO": group.vo, "Pools": "+".join(pool[:10] for pool in pools)},
            )

        return PilotSubmission(stamp=stamp, target=group.where, make_job=make_job)

    def _act(
        self, actions: Mapping[str, CleaningActions], submissions: Mapping[str, Sequence[PilotSubmission]]
    ) -> None:
        """Have the workers do what was decided, those with certain nodes first, and wait a while."""
        for name in sorted(actions.keys() | submissions.keys()):
            cleaning = actions.get(name, CleaningActions())
            self._workers[name].begin_actions(
                SystemActions(
                    kill=cleaning.kill,
                    forget=cleaning.forget,
                    submit=submissions.get(name, ()),
                )
            )
        workers.wait_for(self._workers.values(), self.patience)

    def _take_results(self, summary: DirectorSummary) -> None:
        """Report to the service what became of submissions, of this cycle or an earlier one."""
        for worker in self._workers.values():
            results = worker.take_results(summary.away)
            if results is None:
                continue
            self._following.mark_cleared(results.forgotten)
            for report in _build_reports(results, self._avoided):
                self._unreported[self._submitting[report.stamp].vo].append(report)
            self._count(results, summary)
        for vo in [*self._unreported]:
            with summary.noting_refusals(vo):
                # A pilot that was faster than we are runs already: then the next poll stores its reference.
                self._pilots[vo].report(self._unreported[vo])
            del self._unreported[vo]

    def _count(self, results: ActionResults, summary: DirectorSummary) -> None:
        summary.submitted += len(results.submitted)
        summary.uncertain += len(results.uncertain)
        summary.refused += len(results.refused)
        summary.unsubmitted += len(results.unsubmitted)
        for stamp, error in results.refused.items():
            group = self._submitting[stamp]
            if stamp in self._avoided:
                self._without_others |= dict.fromkeys(group.queues, self.clock())
            else:
                summary.note_problem(group.vo, f"{group.where}: {error}")
        for stamp in (*results.submitted, *results.uncertain, *results.refused, *results.unsubmitted):
            del self._submitting[stamp]


def _build_reports(results: ActionResults, avoiding: Collection[str]) -> list[PilotReport]:
    """Reports of results. None of an uncertain submission: its intent stays, and the next polls show it.

    The refusal of a pilot that was to avoid nodes is no experience of its queue.
    """
    return [
        *(
            PilotReport(stamp=stamp, status=Status.WAITING, reference=reference)
            for stamp, reference in results.submitted.items()
        ),
        *(
            PilotReport(
                stamp=stamp,
                status=Status.DELETED if stamp in avoiding else Status.ABORTED,
                reason=error[:2000],
            )
            for stamp, error in results.refused.items()
        ),
        *(
            PilotReport(stamp=stamp, status=Status.DELETED, reason=error[:2000])
            for stamp, error in results.unsubmitted.items()
        ),
    ]


def _slot_arguments(slot: JobResources) -> tuple[str, ...]:
    """Options for the size of the slot; a whole node is measured as far as its size is not known."""
    known = {
        "--lifetime": slot.wall_time,
        "--max-ram": slot.memory,
        "--processors": None if slot.whole_node and slot.cores == 1 else slot.cores,
        "--gpus": None if slot.whole_node and not slot.gpus else slot.gpus,
    }
    words = [f"{name}={value}" for name, value in known.items() if value is not None]
    return (*words, "--whole-node") if slot.whole_node else tuple(words)


def _room_of(group: TargetGroup, rooms: Mapping[Place, QueueRoom]) -> int:
    places = ((group.vo, queue) for queue in group.queues)
    return sum(rooms[place].pilots for place in places if place in rooms)


def _lowest(*limits: Mapping[TargetGroup, int]) -> Mapping[TargetGroup, int]:
    """The lowest limit of each group."""
    found: dict[TargetGroup, int] = {}
    for each in limits:
        for group, most in each.items():
            found[group] = min(most, found.get(group, most))
    return found


def _widest_limits(demands: Iterable[VoDemand]) -> Mapping[str, QueueLimits]:
    """The limits of each queue for the VO that may have most pilots there."""
    found: dict[str, QueueLimits] = {}
    for each in demands:
        for queue, limits in each.limits.items():
            known = found.get(queue, limits)
            found[queue] = QueueLimits(
                total=max(known.total, limits.total), waiting=max(known.waiting, limits.waiting)
            )
    return found
