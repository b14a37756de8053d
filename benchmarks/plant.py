"""A plant in simulated time: jobs of LHCb's shape and pilots, recorded by the program as a real one is.

Submission, optimizers, matcher, reports of pilots, recorders and agents are those of the program; only the
clock, the pilots and the payloads are made up. It shares no code with `pilotage.replay`, which replays what
it leaves: each pilot asks for itself, at a time of its own.
"""

import heapq
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from random import Random
from typing import Any, Final

from sqlalchemy import Engine

from agents import day_record, pools, priorities
from agents.priorities import PriorityState
from benchmarks import lhcb
from cs_config import validate
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from matcher.answer_recorder import AnswerRecorder
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import NO_TASK_QUEUE, Matcher
from matcher.hardware_recorder import HardwareRecorder
from matcher.request import match_request
from matcher.request.match_request import MatchCaller, MatchRequest
from optimizers.chain import batch
from optimizers.submit import submission
from optimizers.submit.submitter import Submitter
from taskqueue.db import database
from taskqueue.leases import lifecycle
from taskqueue.leases.reports import FinishReport, LeaseReport, LeaseRules, PayloadResult, Sender, StartReport
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest

BEGIN: Final = datetime(2026, 3, 28, tzinfo=UTC)
_SUBMITTER = Submitter(subject="plant", vo=lhcb.VO, owner="plant", operator=True)
_PILOTS = Sender(subject=None)
#: Pilots send no heartbeats here.
_RULES = LeaseRules(lease_time=timedelta(days=1), max_rescheduling=3)
#: Seconds between two requests of an idle pilot, as `pilotage.fabric.pilot` draws them.
_POLL: Final = (18.0, 24.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What happens in a plant."""

    hours: float = 6.0
    jobs: int = 600
    classes: int = 20
    slots: int = 40  #: at once; each is followed by another one
    bulk: int = 10  #: jobs of one submission
    seconds: float = 1200.0  #: mean run time
    slot_hours: float = 3.0
    queues: int = 8  #: of the configuration, at which pilots are
    every: float = 10.0  #: seconds between two cycles of the agents; 60 is a multiple of it
    scarcity: bool = False  #: whether scarce slots go to the jobs of an owner that have no other
    lost: tuple[float, float] | None = None  #: hours between which no pilot of a third of the queues asks
    seed: int = 1

    @property
    def offers(self) -> Sequence[Mapping[str, object]]:
        """What the pilots of each queue offer."""
        return lhcb.queues()[:: len(lhcb.queues()) // self.queues]


def configuration(*, scarcity: bool = False) -> Configuration:
    """LHCb's sites, with all that their pilots offer."""
    stated = {
        (str(queue["Site"]), str(queue["GridCE"]), str(queue["Queue"])): {
            name: queue[name] for name in ("CPUTime", "MaxRAM", "NumberOfProcessors", "Platform", "Tag")
        }
        for queue in lhcb.queues()
    }
    tree = json.loads(lhcb.configuration(stated, {}))
    if scarcity:
        tree["Operations"][lhcb.VO] = {"JobScheduling": {"Scarcity": "owner"}}
    return validate.parse(json.dumps(tree), "plant.yaml")


@dataclass(slots=True, kw_only=True)
class _Pilot:
    stamp: str
    offer: Mapping[str, object]
    until: datetime
    free: int


@dataclass
class _World:
    """The plant at one time."""

    engine: Engine
    plant: Plant
    config: Configuration
    each_minute: Callable[[Configuration, datetime], object] = lambda *_: None
    now: datetime = BEGIN
    heap: list[tuple[datetime, int, Callable[[], None]]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.draw = Random(self.plant.seed)
        self.matcher = Matcher(
            self.engine,
            lambda: self.config,
            lambda: self.now,
            Random(self.plant.seed),
            steady=lambda: (self.now - BEGIN).total_seconds(),
        )
        self.answers = AnswerRecorder(self.engine, self.matcher)
        self.hardware = HardwareRecorder(self.engine, self.matcher)
        self.weights = PriorityState()

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        """Let something happen."""
        at = self.now + timedelta(seconds=seconds)
        heapq.heappush(self.heap, (at, next(self.numbers), event))

    def run(self, until: datetime) -> None:
        """Let everything happen up to a time."""
        while self.heap and self.heap[0][0] < until:
            self.now, _, event = heapq.heappop(self.heap)
            event()
        self.now = until

    def run_agents(self) -> None:
        """What services and agents do once a minute, and more often."""
        pools.cycle(self.engine, self.config, now=self.now, holder="plant")
        if self.now.second == 0:
            day_record.cycle(self.engine, now=self.now, holder="plant")
            self.each_minute(self.config, self.now)
        priorities.cycle(self.engine, self.config, now=self.now, holder="plant", memory=self.weights)
        self.answers.store()
        self.hardware.store()
        self.later(self.plant.every, self.run_agents)

    def submit(self, described: Sequence[dict[str, object]]) -> None:
        """Jobs come, and are led through the optimizers."""
        stored = submission.submit(self.engine, self.config, _SUBMITTER, described, now=self.now)
        batch.optimize(self.engine, self.config, stored.due, now=self.now)
        self.matcher.notify()

    def open_slot(self, offer: Mapping[str, object]) -> None:
        """A pilot begins, and another one after it."""
        hours = self.plant.slot_hours * self.draw.uniform(0.7, 1.3)
        pilot = _Pilot(
            stamp=f"pilot-{next(self.numbers)}",
            offer=offer,
            until=self.now + timedelta(hours=hours),
            free=int(str(offer["NumberOfProcessors"])),
        )
        with database.writing(self.engine) as conn:
            first = FirstRequest(stamp=pilot.stamp, vo=lhcb.VO, queue=_address(offer), processors=pilot.free)
            pilots.bind_queues(conn, [first], now=self.now)
        self.ask(pilot)
        self.later(3600 * hours, lambda: self.open_slot(offer))

    def ask(self, pilot: _Pilot) -> None:
        """A pilot asks for one job."""
        if self.now >= pilot.until or not pilot.free:
            return
        if silent := self.find_silence(pilot.offer):
            self.later(silent, lambda: self.ask(pilot))
            return
        request = self.build_request(pilot)
        [result] = self.matcher.serve([request])
        self.matcher.settle([result])
        assert isinstance(result, ClaimResult)
        self.hardware.count(request, self.config.sites)
        reason = None if result.claimed else result.refused or NO_TASK_QUEUE
        self.answers.count(request.presented, request.caller.vos, reason, self.config)
        with database.writing(self.engine) as conn:
            pilots.record_contacts(conn, {lhcb.VO: [pilot.stamp]}, now=self.now)
        for job in result.claimed:
            cores = job.allotment.processors or pilot.free
            pilot.free -= cores
            self.report(StartReport(lease=job.lease, sender=_PILOTS))
            seconds = self.draw.expovariate(1 / self.plant.seconds)
            self.later(seconds, self.ending(pilot, job.lease, cores))
        if pilot.free:
            self.later(1.0 if result.claimed else self.draw.uniform(*_POLL), lambda: self.ask(pilot))

    def find_silence(self, offer: Mapping[str, object]) -> float:
        """Seconds for which the pilots of a queue do not ask."""
        if self.plant.lost is None or self.plant.offers.index(offer) % 3:
            return 0.0
        begin, end = (BEGIN + timedelta(hours=each) for each in self.plant.lost)
        return (end - self.now).total_seconds() if begin <= self.now < end else 0.0

    def ending(self, pilot: _Pilot, lease: str, cores: int) -> Callable[[], None]:
        """The end of a job, after which its pilot asks at once."""

        def end() -> None:
            self.report(FinishReport(lease=lease, sender=_PILOTS, result=PayloadResult(status="Done")))
            was_full = not pilot.free
            pilot.free += cores
            if was_full:
                self.ask(pilot)

        return end

    def report(self, report: LeaseReport) -> None:
        """A pilot reports."""
        with database.writing(self.engine) as conn:
            lifecycle.record(conn, [report], rules=_RULES, now=self.now)

    def build_request(self, pilot: _Pilot) -> MatchRequest:
        """What a pilot states."""
        stated = {**pilot.offer, "NumberOfProcessors": pilot.free}
        return MatchRequest(
            presented=match_request.read_resource(stated),
            caller=MatchCaller(
                subject="plant",
                vos=frozenset({lhcb.VO}),
                queue=_address(pilot.offer),
                stamp=pilot.stamp,
            ),
            deadline=inf,
        )


def _address(offer: Mapping[str, object]) -> QueueAddress:
    return QueueAddress(site=str(offer["Site"]), ce=str(offer["GridCE"]), queue=str(offer["Queue"]))


def record(
    engine: Engine, plant: Plant, each_minute: Callable[[Configuration, datetime], object] = lambda *_: None
) -> datetime:
    """Let a plant run from `BEGIN` on, and call `each_minute`; the time at which it ends."""
    config = configuration(scarcity=plant.scarcity)
    with database.writing(engine) as conn:
        number = store.store_checked(
            conn, config, author="plant", message="", expected=None, now=BEGIN, changed=()
        )
    world = _World(engine, plant, config.stored_as(number, "plant"), each_minute)
    seconds = 3600 * plant.hours
    draw = Random(plant.seed)
    kinds = [
        lhcb.description(asked) | lhcb.requirements(number)
        for number, asked in enumerate(lhcb.requirement_classes(plant.classes, tagged=0.1))
    ]
    for _ in range(plant.jobs // plant.bulk):
        described = draw.choice(kinds)
        world.later(draw.uniform(0, seconds), partial(world.submit, [described] * plant.bulk))
    for number in range(plant.slots):
        offer = plant.offers[number % len(plant.offers)]
        world.later(draw.uniform(0, 600), partial(world.open_slot, offer))
    world.run_agents()
    end = BEGIN + timedelta(seconds=seconds)
    world.run(end)
    world.answers.store()
    return end
