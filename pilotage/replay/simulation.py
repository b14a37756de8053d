"""Discrete events of a day, in which the matcher of the program hands out the jobs again.

The clock jumps from event to event. Jobs come as they came, slots open and close as they did, configurations,
closures and advertisements hold from when they held; which job a slot gets, the matcher decides, on the
database of the replay, together with the agents for pools and weights. Events of one second are one batch, as
they are of a busy service. All draws are those of a seed: the same day is replayed alike.

A job occupies its slot as long as it did. What is not known of that is drawn from the others of its class,
else of its group, its VO, or all; of a job that still runs, from those that took longer than it has so far. A
pilot asks again when a job ends, and without a job as idle pilots do. Its slot is there as long as it was:
another configuration makes no other pilots come. What a site advertises is what it did, too.
"""

import heapq
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import IntEnum
from random import Random
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, Engine

from agents import pools as pool_agent
from agents import priorities
from agents.priorities import PriorityState
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.answer_recorder import AnswerRecorder
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import NO_TASK_QUEUE, Matcher
from matcher.forecast.product_limit import Observed, ProductLimit
from matcher.request import queue_offer
from matcher.request.match_request import RETRY_AFTER, MatchCaller, MatchRequest, core_tags
from pilotage.replay import replay_database
from pilotage.replay.recorded_day import Advertised, NotReplayable, RecordedDay, Stay, overlap
from pilotage.replay.replay_database import SUBJECT, ReplayedJob
from requirements.requirement_class import RequirementClass
from requirements.resource import Resource, StatedResource
from requirements.values import fold
from taskqueue.day_record import Slot
from taskqueue.db import database
from taskqueue.leases.opening import ClaimedJob
from taskqueue.pilots import hardware
from taskqueue.pilots.hardware import HardwareShape
from taskqueue.sites import closures, reservations
from taskqueue.sites.closures import Downtime
from taskqueue.sites.reservations import Advertisement
from taskqueue.task_queues.class_derivation import derive_class_again

#: Seconds whose events are one batch.
STEP: Final = 1.0
#: Seconds between two looks for what weighs task queues and maps pools, and the longest without.
_AGENTS: Final = 30.0
_WEIGHED: Final = 120.0
_MAPPED: Final = 600.0
#: Seconds in which the time that a pilot offers changes, see `pilotage.fabric.pilot.offer`.
_OFFERED: Final = 300
#: Of a job, if none at all has ended.
_ANY_SECONDS: Final = 3600.0
#: Ended jobs of one kind below which a time is drawn from a wider one.
_FEW: Final = 5
#: Times of waiting of one job that have ids of their own.
_STAYS: Final = 1 << 10

#: Cached offers.
_RESOURCES: Final = 100_000

#: Told the part of the day that is replayed.
Progress: TypeAlias = Callable[[float], None]


class _Event(IntEnum):
    """What happens, in the order of one second."""

    CONFIGURATION = 0
    ADVERTISED = 1
    CLOSED = 2
    ENDED = 3
    WITHDRAWN = 4
    CAME = 5
    OPENED = 6
    LEFT = 7
    ASKS = 8
    AGENTS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The start of a job."""

    at: datetime
    site: str


@dataclass(slots=True, kw_only=True)
class ReplayedDay:
    """What came of a day."""

    starts: list[Started | None]  #: of the times of waiting of the recorded day, in its order
    busy: float = 0.0  #: core-seconds of slots in which they had jobs
    requests: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """A part of a slot that a job has."""

    cores: int
    ram_mb: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class _Offer:
    """What decides what a slot offers: equal ones get equal answers."""

    place: QueueAddress
    vo: str
    shape: str | None
    cores: int  #: of the slot
    free: int  #: of these
    used_ram: int  #: MB
    used_gpus: int
    steps: int  #: of its time that are over

    @property
    def is_whole(self) -> bool:
        """Whether the slot has no job."""
        return self.free == self.cores


@dataclass(frozen=True, slots=True)
class _Stated:
    """What the slots of a queue with equal hardware offer when they begin."""

    resource: Resource | None  #: None: the configuration has no such queue for the VO
    power: float  #: CPU time of a second


@dataclass(slots=True, kw_only=True, eq=False)
class _Slot:
    """A slot in the replay."""

    recorded: Slot
    place: QueueAddress
    cores: int
    free: int
    used_ram: int = 0  #: MB of its jobs
    used_gpus: int = 0
    is_open: bool = True
    offer: _Offer | None = None  #: with which it waits; None: it does not

    def take(self, share: _Share) -> None:
        """Give a part to a job."""
        self.free -= share.cores
        self.used_ram += share.ram_mb
        self.used_gpus += share.gpus

    def give_back(self, share: _Share) -> None:
        """Take a part back from a job that has ended."""
        self.free += share.cores
        self.used_ram -= share.ram_mb
        self.used_gpus -= share.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A job that runs in a slot."""

    slot: _Slot
    lease: str
    share: _Share
    since: float  #: seconds of the replay


@dataclass(slots=True)
class _Clock:
    """The time of the replay."""

    begin: datetime
    seconds: float = 0.0

    def now(self) -> datetime:
        return self.begin + timedelta(seconds=self.seconds)

    def steady(self) -> float:
        return self.seconds


class Simulation:
    """One replay of a day."""

    def __init__(
        self,
        engine: Engine,
        day: RecordedDay,
        *,
        seed: int = 0,
        change: Callable[[Configuration], Configuration] = lambda config: config,
        progress: Progress = lambda _: None,
        deadline: float | None = None,
    ) -> None:
        """`change` is applied to each configuration of the day; `deadline` is of the monotonic clock."""
        self._engine = engine
        self._day = day
        self._change = change
        self._progress = progress
        self._deadline = deadline
        self._clock = _Clock(day.begin)
        self._config = change(day.find_configuration(day.begin))
        self._matcher = Matcher(
            engine, lambda: self._config, self._clock.now, Random(seed), steady=self._clock.steady
        )
        self._random = Random(seed)  # of the pilots
        self._answers = AnswerRecorder(engine, self._matcher)
        self._weights = PriorityState()
        self._heap: list[tuple[float, int, int, Any]] = []
        self._numbers = 0
        times, random = RunTimes(day.stays), Random(seed)
        self._seconds = [times.draw(each, random) for each in day.stays]
        self._ids = _number_jobs(day.stays)
        self._stays = {job_id: number for number, job_id in enumerate(self._ids)}
        self._waiting: set[int] = set()
        self._running: dict[int, _Running] = {}
        self._started: dict[int, str] = {}  # leases of jobs whose start is not stored yet, by id
        self._slots: dict[str, _Slot] = {}
        self._idle: dict[_Offer, dict[_Slot, None]] = {}
        self._due: set[_Offer] = set()  # of those that wait, which ask again at a known time
        self._classes: dict[tuple[str, int], RequirementClass] = {}
        self._stated: dict[tuple[QueueAddress, str, str | None, int], _Stated] = {}
        self._resources: dict[tuple[_Offer, int], Resource] = {}
        self._is_changed = self._has_come = False  # since the last cycle: the configuration; jobs came
        self._mapped = self._weighed = 0.0  # when the agents ran, seconds
        self._refreshed = -1.0  # when the matcher has read the changes, seconds
        self._description_id = 0
        self._result = ReplayedDay(starts=[None] * len(day.stays))

    def run(self) -> ReplayedDay:
        """Replay the day; NotReplayable after the deadline."""
        self._begin()
        length = (self._day.end - self._day.begin).total_seconds()
        told = 0
        while self._heap and self._heap[0][0] < length:
            self._take_step(min(self._heap[0][0] + STEP, length))
            if int(100 * self._clock.seconds / length) > told:
                told = int(100 * self._clock.seconds / length)
                self._progress(self._clock.seconds / length)
                if self._deadline is not None and time.monotonic() > self._deadline:
                    raise NotReplayable(
                        f"the time for the replay is over at {self._clock.now():%Y-%m-%d %H:%M} of the day: "
                        "give it more (--within), or shorten --for"
                    )
        self._clock.seconds = length
        for each in self._running.values():
            self._account(each)
        return self._result

    def _begin(self) -> None:
        day, offset = self._day, self._offset
        self._description_id = replay_database.fill(self._engine, day)
        for since, config in day.configurations:
            self._push(max(0.0, offset(since)), _Event.CONFIGURATION, config)
        for advertised in day.advertised:
            self._push(max(0.0, offset(advertised.at)), _Event.ADVERTISED, advertised)
        for closed in day.closed:
            self._push(max(0.0, offset(closed.at)), _Event.CLOSED, closed)
        for number, stay in enumerate(day.stays):
            self._push(max(0.0, offset(stay.since)), _Event.CAME, number)
            if stay.until is not None and not stay.site:
                self._push(max(0.0, offset(stay.until)), _Event.WITHDRAWN, number)
        for slot in day.slots:
            self._push(max(0.0, offset(slot.begin)), _Event.OPENED, slot)
        self._push(0.0, _Event.AGENTS, None)
        self._add_held()

    def _offset(self, at: datetime) -> float:
        return (at - self._day.begin).total_seconds()

    def _push(self, seconds: float, event: _Event, what: object) -> None:
        self._numbers += 1
        heapq.heappush(self._heap, (seconds, event, self._numbers, what))

    def _add_held(self) -> None:
        """Let the jobs run that slots have from the beginning."""
        held = {-number: each for number, each in enumerate(self._day.held, 1)}
        with database.writing(self._engine) as conn:
            leases = replay_database.add_held(conn, held, description_id=self._description_id)
        recorded = {each.stamp: each for each in self._day.slots}
        for job_id, each in held.items():
            slot = self._slots.get(each.stamp)
            if slot is None:
                slot = self._slots[each.stamp] = _open_slot(recorded[each.stamp])
            share = _Share(cores=each.processors, ram_mb=each.ram_mb or 0)
            slot.take(share)
            until = self._offset(each.until or self._day.end)
            self._running[job_id] = _Running(slot=slot, lease=leases[job_id], share=share, since=0.0)
            self._push(max(0.0, until), _Event.ENDED, job_id)

    def _take_step(self, until: float) -> None:
        of_kinds: list[list[Any]] = [[] for _ in _Event]
        while self._heap and self._heap[0][0] <= until:
            seconds, event, _, what = heapq.heappop(self._heap)
            self._clock.seconds = max(self._clock.seconds, seconds)
            of_kinds[event].append(what)
            self._result.events += 1
        asking = self._apply(of_kinds)
        self._run_agents(is_due=bool(of_kinds[_Event.AGENTS]))
        if asking:
            self._ask(asking)
        for offer in of_kinds[_Event.ASKS]:
            self._ask_idle(offer)

    def _apply(self, of_kinds: Sequence[Sequence[Any]]) -> list[_Slot]:
        """Change the database as the events do; the slots that ask for jobs."""
        now, has_changes = self._clock.now(), any(of_kinds[: _Event.OPENED])
        asking: dict[_Slot, None] = {}
        if has_changes or of_kinds[_Event.AGENTS]:
            with database.writing(self._engine) as conn:
                # With the next changes, which read them, as agents do: a transaction less for each second.
                replay_database.start_jobs(conn, self._started)
                self._started.clear()
                for config in of_kinds[_Event.CONFIGURATION]:
                    changed = self._change(config)
                    self._config = replay_database.store_configuration(conn, changed, now=now)
                    self._is_changed = True
                self._tell_sites(conn, of_kinds, now)
                asking |= dict.fromkeys(self._end(conn, of_kinds[_Event.ENDED], now))
                self._add(conn, of_kinds[_Event.CAME], now)
                self._withdraw(conn, of_kinds[_Event.WITHDRAWN], now)
        if has_changes:
            self._matcher.notify()
            self._stir()
        for slot in of_kinds[_Event.OPENED]:
            opened = self._slots.get(slot.stamp) or _open_slot(slot)
            self._slots[slot.stamp] = opened
            self._push(self._offset(slot.end), _Event.LEFT, opened)
            if opened.free > 0:
                asking[opened] = None
        for opened in of_kinds[_Event.LEFT]:
            opened.is_open = False
            self._leave_idle(opened)
            self._slots.pop(opened.recorded.stamp, None)
        return [each for each in asking if each.is_open]

    def _tell_sites(self, conn: Connection, of_kinds: Sequence[Sequence[Any]], now: datetime) -> None:
        advertised: Advertised
        for advertised in of_kinds[_Event.ADVERTISED]:
            new = Advertisement(attributes=advertised.attributes)
            reservations.accept_advertisement(conn, advertised.scope, new, now=now)
        closed: list[Downtime] = [replace(each, downtime_id=0) for each in of_kinds[_Event.CLOSED]]
        closures.add_downtimes(conn, closed)

    def _end(self, conn: Connection, job_ids: Sequence[int], now: datetime) -> Iterable[_Slot]:
        ended = {job_id: self._running.pop(job_id) for job_id in job_ids}
        if ended:
            replay_database.end_jobs(conn, {job_id: each.lease for job_id, each in ended.items()}, now=now)
        for each in ended.values():
            each.slot.give_back(each.share)
            self._account(each)
        return [each.slot for each in ended.values()]

    def _account(self, running: _Running) -> None:
        """Add the time that a job occupied its slot until now."""
        since = self._day.begin + timedelta(seconds=running.since)
        until = min(self._clock.now(), running.slot.recorded.end)
        self._result.busy += running.share.cores * overlap(since, until, self._day.begin, self._day.end)

    def _add(self, conn: Connection, numbers: Sequence[int], now: datetime) -> None:
        new = [
            ReplayedJob(
                job_id=self._ids[number],
                kind=(kind := self._day.stays[number].kind),
                asked=self._find_class(kind.digest),
            )
            for number in numbers
        ]
        if new:
            replay_database.add_jobs(conn, new, description_id=self._description_id, now=now)
            self._waiting.update(each.job_id for each in new)
            self._has_come = True

    def _find_class(self, digest: str) -> RequirementClass:
        """The class of a job with the defaults of today's configuration."""
        key = digest, self._config.version
        if key not in self._classes:
            asked = self._day.classes[digest]
            options = options_for(self._config, asked.vo)
            self._classes[key] = derive_class_again(asked, options)
        return self._classes[key]

    def _withdraw(self, conn: Connection, numbers: Sequence[int], now: datetime) -> None:
        ids = self._waiting & {self._ids[number] for number in numbers}
        if ids:
            replay_database.withdraw_jobs(conn, ids, now=now)
            self._waiting -= ids

    def _run_agents(self, *, is_due: bool) -> None:
        """Map pools and weigh task queues, as the agents do."""
        if not (is_due or self._is_changed):
            return
        seconds, now = self._clock.seconds, self._clock.now()
        config = self._config.at_moment(now)
        if self._is_changed or seconds >= self._mapped + _MAPPED:
            pool_agent.cycle(self._engine, config, now=now, holder=SUBJECT)
            self._mapped = seconds
        if self._is_changed or self._has_come or seconds >= self._weighed + _WEIGHED:
            priorities.cycle(self._engine, config, now=now, holder=SUBJECT, memory=self._weights)
            self._weighed = seconds
        self._answers.store()
        self._is_changed = self._has_come = False
        self._matcher.notify()
        if is_due:
            self._push(seconds + _AGENTS, _Event.AGENTS, None)

    def _ask(self, slots: Sequence[_Slot]) -> int:
        """Let slots ask for jobs, once; how many of them got any."""
        requests = [self._build_request(each) for each in slots]
        results = self._matcher.serve(requests)
        self._matcher.settle(results)
        self._refreshed = self._clock.seconds
        self._result.requests += len(requests)
        served = 0
        for slot, request, result in zip(slots, requests, results, strict=True):
            self._leave_idle(slot)
            jobs = result.claimed if isinstance(result, ClaimResult) else ()
            for job in jobs:
                self._start(slot, job)
            served += bool(jobs)
            reason = None
            if not jobs:
                refused = result.refused if isinstance(result, ClaimResult) else result.code
                reason = refused or NO_TASK_QUEUE
            self._answers.count(request.presented, request.caller.vos, reason, self._config)
            if jobs and slot.free > 0:
                self._wait(slot, STEP)
            elif not jobs:
                self._wait(slot, None if reason == NO_TASK_QUEUE else RETRY_AFTER)
        return served

    def _start(self, slot: _Slot, job: ClaimedJob) -> None:
        number, got = self._stays[job.job_id], job.allotment
        cores = slot.free if got.processors is None else got.processors
        share = _Share(cores=cores, ram_mb=got.ram_mb or 0, gpus=got.gpus or 0)
        slot.take(share)
        now = self._clock.seconds
        self._waiting.discard(job.job_id)
        self._result.starts[number] = Started(at=self._clock.now(), site=slot.place.site)
        self._running[job.job_id] = _Running(slot=slot, lease=job.lease, share=share, since=now)
        self._started[job.job_id] = job.lease
        self._push(now + self._seconds[number], _Event.ENDED, job.job_id)

    def _wait(self, slot: _Slot, seconds: float | None) -> None:
        """Let a slot wait among its like, which ask again after so long; None: when something changes."""
        self._leave_idle(slot)
        if not slot.is_open:
            return
        slot.offer = offer = self._find_offer(slot)
        self._idle.setdefault(offer, {})[slot] = None
        if seconds is not None:
            self._ask_later(offer, seconds)

    def _ask_later(self, offer: _Offer, seconds: float) -> None:
        if offer not in self._due:
            self._due.add(offer)
            self._push(self._clock.seconds + seconds, _Event.ASKS, offer)

    def _leave_idle(self, slot: _Slot) -> None:
        if slot.offer is not None:
            waiting = self._idle[slot.offer]
            del waiting[slot]
            if not waiting:
                del self._idle[slot.offer]
            slot.offer = None

    def _stir(self) -> None:
        """Let idle slots ask again, as something has changed."""
        for offer in self._idle:  # in their order, which a set would change from process to process
            if offer not in self._due:
                self._ask_later(offer, self._draw_delay(offer))

    def _draw_delay(self, offer: _Offer) -> float:
        """Seconds until the first of the slots with an offer asks: each does at a time of its own."""
        number = len(self._idle[offer])
        first: float = RETRY_AFTER * (1 - self._random.random() ** (1 / number))
        return max(STEP, first)

    def _ask_idle(self, offer: _Offer) -> None:
        """Let as many slots with an offer ask as do in one step; the others soon, if these all got jobs."""
        self._due.discard(offer)
        waiting = self._idle.get(offer)
        if waiting is None:
            return
        if self._refreshed < self._clock.seconds:  # a batch that was served before has read all changes
            self._matcher.refresh()
            self._refreshed = self._clock.seconds
        if self._matcher.find_no_match(offer) is not None:
            return
        most = max(1, round(len(waiting) * STEP / RETRY_AFTER))
        asking = [slot for slot, _ in zip(waiting, range(most), strict=False)]
        if self._ask(asking) == len(asking) and offer in self._idle:
            self._ask_later(offer, self._draw_delay(offer))

    def _find_offer(self, slot: _Slot) -> _Offer:
        elapsed = (self._clock.now() - slot.recorded.begin).total_seconds()
        return _Offer(
            place=slot.place,
            vo=slot.recorded.vo,
            shape=slot.recorded.shape,
            cores=slot.cores,
            free=slot.free,
            used_ram=slot.used_ram,
            used_gpus=slot.used_gpus,
            steps=int(elapsed) // _OFFERED,
        )

    def _build_request(self, slot: _Slot) -> MatchRequest:
        offer = self._find_offer(slot)
        key = offer, self._config.version
        resource = self._resources.get(key)
        if resource is None:
            if len(self._resources) >= _RESOURCES:
                self._resources.clear()
            resource = self._resources[key] = build_resource(offer, self._find_stated(offer))
        place, stamp = slot.place, slot.recorded.stamp
        return MatchRequest(
            presented=StatedResource(
                resource=resource, site=place.site, ce=place.ce, queue=place.queue, stamp=stamp
            ),
            caller=MatchCaller(subject=SUBJECT, vos=frozenset({offer.vo}), queue=place, stamp=stamp),
            deadline=math.inf,
            count=slot.free,
            cache_key=offer,
        )

    def _find_stated(self, offer: _Offer) -> _Stated:
        """Read once: it stays as the time of a slot goes by, which each few minutes makes another offer."""
        key = offer.place, offer.vo, offer.shape, self._config.version
        if key not in self._stated:
            if len(self._stated) >= _RESOURCES:
                self._stated.clear()
            self._stated[key] = _read_stated(offer, self._config)
        return self._stated[key]


def _read_stated(offer: _Offer, config: Configuration) -> _Stated:
    """What the queue states, and what that leaves open as it was measured."""
    if not config.knows(offer.place) or offer.vo not in config.vos:
        return _Stated(None, 1.0)
    values = config.values(offer.place, offer.vo)
    stated = queue_offer.build_resource(values)
    measured = {} if offer.shape is None else _list_measured(stated, hardware.read_shape(offer.shape))
    return _Stated(replace(stated, **measured), queue_offer.read_power(values))


def build_resource(offer: _Offer, known: _Stated) -> Resource:
    """What a pilot states, by the time and the parts of its slot that are left."""
    stated = known.resource
    if stated is None:
        return Resource(cpu_time=0)  # the matcher answers that it is not served
    elapsed = offer.steps * _OFFERED
    if elapsed and stated.wall_time is not None:
        left = max(0.0, stated.wall_time - elapsed) // _OFFERED * _OFFERED
        cpu_time = min(stated.cpu_time, left * known.power)
        stated = replace(stated, wall_time=left, cpu_time=cpu_time)
    before = core_tags(stated.processors or 1, whole_node=stated.whole_node)
    is_whole_node = stated.whole_node and offer.is_whole
    cores = core_tags(offer.free, whole_node=is_whole_node)
    return replace(
        stated,
        processors=offer.free,
        whole_node=is_whole_node,
        tags=None if stated.tags is None else (stated.tags - before) | cores,
        max_ram=None if stated.max_ram is None else max(0, stated.max_ram - offer.used_ram),
        gpus=max(0, stated.gpus - offer.used_gpus),
    )


def _list_measured(stated: Resource, shape: HardwareShape) -> Mapping[str, Any]:
    """What a pilot measured, as far as the queue does not state it."""
    names = (each.name for each in fields(HardwareShape))
    open_names = (name for name in names if hasattr(stated, name) and not getattr(stated, name))
    found: dict[str, Any] = {name: getattr(shape, name) for name in open_names}
    if shape.node_tags is not None and stated.tags is not None and stated.literal_tags is not None:
        here = {each for each in shape.node_tags if each.startswith(stated.open_tags or ("\0",))}
        found["literal_tags"] = stated.literal_tags | here
        found |= {"tags": stated.tags.union(map(fold, here)), "open_tags": ()}
    return found


def _open_slot(recorded: Slot) -> _Slot:
    cores = recorded.processors or 1
    place = QueueAddress(site=recorded.site, ce=recorded.ce, queue=recorded.queue)
    return _Slot(recorded=recorded, place=place, cores=cores, free=cores)


def _number_jobs(stays: Sequence[Stay]) -> list[int]:
    """Ids in the replay, in the order of the recorded ones; each time of waiting has one of its own."""
    times: defaultdict[int, int] = defaultdict(int)
    found: list[int] = []
    for each in stays:
        found.append(each.job_id * _STAYS + times[each.job_id])
        times[each.job_id] += 1
    return found


class RunTimes:
    """How long jobs occupy their slots, by what they have in common."""

    def __init__(self, stays: Sequence[Stay]) -> None:
        self._observed: defaultdict[object, list[Observed]] = defaultdict(list)
        self._known: dict[object, ProductLimit] = {}
        for each in stays:
            if each.seconds is not None:
                observed = each.seconds, each.has_ended
                for like in _list_like(each):
                    self._observed[like].append(observed)

    def draw(self, stay: Stay, random: Random) -> float:
        """The time of one: as it was, else a likely one that is longer than what is known of it."""
        if stay.seconds is not None and stay.has_ended:
            return stay.seconds
        so_far = stay.seconds or 0.0
        known = map(self._find, _list_like(stay))
        like = next((each for each in known if each.count_longer(so_far) >= _FEW), self._find(None))
        found = like.find(1 - random.random(), longer_than=so_far)
        if found is not None:
            return found
        # Beyond all that is known jobs end at one rate.
        last = max([so_far, *like.times[-1:]])
        return last + random.expovariate(1.0) * (_ANY_SECONDS if like.mean is None else like.mean)

    def _find(self, like: object) -> ProductLimit:
        if like not in self._known:
            self._known[like] = ProductLimit(self._observed.get(like, ()))
        return self._known[like]


def _list_like(stay: Stay) -> Sequence[object]:
    """What jobs have in common, the most first."""
    kind = stay.kind
    return (kind.vo, kind.owner_group, kind.digest), (kind.vo, kind.owner_group), kind.vo, None
