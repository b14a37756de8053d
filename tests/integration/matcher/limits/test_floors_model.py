"""Floors of a site against their rule in one sentence each, on random small worlds.

VOs with floors and without, pilots of one VO and of several, slots of several sizes, jobs that end in any
order, and two matchers that take turns. After each answer: which VOs could have had the next job by the rule,
with what each of them had then.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

import pytest
from sqlalchemy import Engine, update

from cs_config.cache import RowCounts
from cs_config.options.place_limits import Floor
from cs_config.tree.configuration import Configuration
from matcher import demand
from matcher.claim.matcher import Matcher
from matcher.limits import floors as floors_of_sites
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.leases.reports import PayloadResult
from taskqueue.pilots import pilots
from taskqueue.schema.tables import task_queues
from tests.integration.matcher.limits.test_floors import _request
from tests.support import scope_counters
from tests.support.factories import pilot_reports, queued_jobs, stored_rows
from tests.support.factories.queued_jobs import LONG

VOS = ("atlas", "cms", "lhcb")
SIZES = (1, 2, 4)
FLOORS = (
    "{cms: 3}",
    "{cms: 4, lhcb: 2}",
    "{cms: 40%}",
    "{atlas: 30%, cms: 30%, lhcb: 40%}",
    "{cms: 2, lhcb: 50%}",
    "{atlas: 0, cms: 100%}",
)


@dataclass(kw_only=True)
class World:
    """What waits and runs at the site, as the test put it there."""

    floors: dict[str, Floor]
    waiting: dict[str, Counter[int]] = field(default_factory=lambda: {vo: Counter() for vo in VOS})
    running: dict[str, tuple[str, int, int]] = field(default_factory=dict)  #: VO, cores, job by lease
    expected: set[str] = field(default_factory=set)  #: VOs with a pilot that waits for a slot
    cores_of: dict[int, int] = field(default_factory=dict)  #: of each job

    def cores(self, vo: str) -> int:
        return sum(cores for each, cores, _ in self.running.values() if each == vo)

    def is_below(self, vo: str) -> bool:
        total = sum(map(self.cores, VOS))
        return vo in self.floors and self.floors[vo].is_below(self.cores(vo), total)

    def fits(self, vo: str, slot: int) -> bool:
        return any(number and cores <= slot for cores, number in self.waiting[vo].items())

    def may_have(self, vos: frozenset[str], slot: int) -> set[str]:
        """The VOs one of which has the next job of a slot for these VOs; none: it gets nothing."""
        fitting = {vo for vo in VOS if self.fits(vo, slot)}
        if first := {vo for vo in fitting & vos if self.is_below(vo)}:
            return first
        if any(vo in self.expected and self.is_below(vo) for vo in fitting - vos):
            return set()
        return fitting & vos


def _config(floors: str) -> Configuration:
    text = queued_jobs.GRID.replace(
        "VO: [lhcb, cms]\n", f"VO: [atlas, lhcb, cms]\n      Floors: {floors}\n", 1
    )
    return queued_jobs.grid(text.replace("VO: {lhcb: {}, cms: {}}", "VO: {atlas: {}, lhcb: {}, cms: {}}"))


def _submit(engine: Engine, now: datetime, world: World, vo: str, cores: int, number: int) -> None:
    asked = RequirementClass(vo=vo, cpu_time=3600, processors_min=cores, processors_max=cores)
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, number, asked=asked, group=f"{vo}_user")
        # The smallest share to those with floors: without them lhcb would have nearly all.
        weights = {"atlas": 1.0, "cms": 1e-6, "lhcb": 1e6}
        conn.execute(update(task_queues).where(task_queues.c.vo == vo).values(priority=weights[vo]))
    world.waiting[vo][cores] += number
    world.cores_of |= dict.fromkeys(ids, cores)


def _expect(engine: Engine, now: datetime, world: World, vo: str, *, waits: bool) -> None:
    with database.writing(engine) as conn:
        pilots.record_contact(conn, stamp=f"pilot-{vo}", vo=vo, queue=LONG, now=now)
        stored_rows.force_pilot(conn, f"pilot-{vo}", status="Waiting" if waits else "Done")
    (world.expected.add if waits else world.expected.discard)(vo)


def _end_one(engine: Engine, now: datetime, world: World, lease: str, *, is_done: bool) -> str:
    """End the job of a lease, or give it back, and it waits again; the VO."""
    vo, cores, job = world.running.pop(lease)
    if is_done:
        pilot_reports.start(engine, lease, lease_time=timedelta(minutes=5), now=now)
        pilot_reports.finish(engine, lease, PayloadResult(status="Done", exit_code=0), now=now)
    else:
        queued_jobs.release(engine, now, lease)
        world.waiting[vo][cores] += 1
        world.cores_of[job] = cores
    return vo


def _ask(matcher: Matcher, world: World, vos: frozenset[str], slot: int, count: int) -> list[str]:
    """Ask for jobs, and check each against the rule; the VOs of those that came."""
    matcher.refresh()  # within a second a process reads what others changed; until then it may keep a slot
    found = queued_jobs.serve(matcher, _request(vos, count=count, cores=slot))
    left, given = slot, []
    for job in found.claimed:
        allowed = world.may_have(vos, left)
        assert job.vo in allowed, (given, job.vo, allowed, left, world)
        cores = world.cores_of.pop(job.job_id)  # each is handed out once
        assert cores <= left, "never more than the slot has"
        world.waiting[job.vo][cores] -= 1
        world.running[job.lease] = (job.vo, cores, job.job_id)
        left -= cores
        given.append(job.vo)
    if len(given) < count:
        assert not world.may_have(vos, left), f"a slot of {left} is idle after {given}: {found} {world}"
    return given


def _list(matcher: Matcher, world: World, vos: frozenset[str], slot: int) -> None:
    """Directors are told of the VOs of which a pilot for these VOs could get jobs one after the other."""
    matcher.refresh()
    asked = _request(vos, cores=slot)
    listed = {
        each.task_queue.vo for each in demand.get_matching_task_queues(matcher, asked.presented, asked.caller)
    }
    found = demand.count_demand(matcher, [asked.presented], asked.caller, RowCounts())
    counted = {found.task_queues[each].vo for each in found.served[0]}
    allowed = world.may_have(vos, slot)
    below = {vo for vo in vos if world.is_below(vo)}
    keeps = any(
        vo in world.expected and world.is_below(vo) and world.fits(vo, slot) for vo in VOS if vo not in vos
    )
    fitting = {vo for vo in vos if world.fits(vo, slot)}
    assert listed == counted == (fitting & below if keeps else fitting), (vos, slot, world)
    assert allowed <= listed, "no pilot is sent for what it would not get"


def _steps(random: Random, number: int) -> Iterator[str]:
    return iter(random.choices(["submit", "ask", "end", "expect"], [3, 8, 4, 2], k=number))


@pytest.mark.parametrize("floors", FLOORS)
@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_one_that_the_rule_of_floors_allows(
    engine: Engine, now: datetime, floors: str, seed: int
) -> None:
    random = Random(f"{floors} {seed}")
    config = _config(floors)
    stated = {vo: floor for (_, vo), floor in floors_of_sites.list_floors(config).items()}
    world = World(floors=stated)
    matchers: list[Matcher] = []

    def restart() -> None:
        # Waiting pilots are read every few seconds only: new processes read them at once.
        matchers[:] = [Matcher(engine, lambda: config, lambda: now, Random(seed + each)) for each in (1, 2)]

    restart()
    for step in _steps(random, 45):
        if step == "submit":
            _submit(engine, now, world, random.choice(VOS), random.choice(SIZES), random.randint(1, 4))
        elif step == "ask":
            vos = frozenset(random.sample(VOS, random.choice((1, 2, 3, 3))))
            slot = random.choice((1, 2, 4, 8))
            _list(random.choice(matchers), world, vos, slot)
            _ask(random.choice(matchers), world, vos, slot, random.choice((1, 1, 2, 4)))
        elif step == "end" and world.running:
            lease = random.choice(sorted(world.running))
            vo = _end_one(engine, now, world, lease, is_done=random.random() < 0.7)
            if world.is_below(vo) and world.fits(vo, 8):  # its slot comes back to it
                first = _ask(random.choice(matchers), world, frozenset(VOS), 8, 1)
                assert first, "work that fits is not left"
        elif step == "expect":
            vo = random.choice(VOS)
            _expect(engine, now, world, vo, waits=vo not in world.expected)
            restart()
    # As slots of all VOs become free each VO with work has its floor, and in the end nothing waits.
    while _ask(random.choice(matchers), world, frozenset(VOS), 8, 4):
        pass
    assert not any(+each for each in world.waiting.values())
    assert scope_counters.agree(engine)
