"""What is told from memory: nothing, while nothing has changed."""

from dataclasses import replace
from datetime import datetime
from random import Random

import pytest
from sqlalchemy import Engine

from cs_config.tree.configuration import Configuration
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.index.waiting import FeedFreshness
from matcher.request import node_document
from matcher.request.match_request import MatchRequest
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.sites import closures
from taskqueue.sites.closures import Ban
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import EVERYWHERE, LONG, at, request


class World:
    """A matcher whose configuration may change."""

    def __init__(self, engine: Engine, now: datetime) -> None:
        self.engine, self.now = engine, now
        self.config: Configuration = queued_jobs.grid()
        self.seconds = 100.0  # of the clock that says how old a look is
        self.matcher = Matcher(engine, lambda: self.config, lambda: now, Random(1))
        self.matcher._freshness = FeedFreshness(lambda: self.seconds)

    def ask(self, asked: MatchRequest | None = None) -> ClaimResult:
        return queued_jobs.serve(self.matcher, asked or _like(request(**at(LONG))))

    def put(self, asked: RequirementClass = EVERYWHERE, owner: str = "alice") -> int:
        [job_id] = queued_jobs.put(self.engine, self.now, asked=asked, owner=owner)
        return job_id

    @property
    def tells_nothing(self) -> bool:
        return self.matcher.find_no_match("same") is not None


def _like(asked: MatchRequest) -> MatchRequest:
    return replace(asked, cache_key="same")


@pytest.fixture
def world(engine: Engine, now: datetime) -> World:
    return World(engine, now)


def test_what_was_looked_at_in_vain_is_told_again(world: World) -> None:
    assert not world.tells_nothing
    assert not world.ask().claimed
    assert world.tells_nothing
    assert world.matcher.find_no_match("another") is None


def test_what_was_looked_at_in_vain_is_not_told_of_another_time_left(world: World) -> None:
    world.ask(replace(_like(request(**at(LONG))), time_left=60))
    assert world.matcher.find_no_match("same", 60) is not None
    assert world.matcher.find_no_match("same", 90) is None
    assert world.matcher.find_no_match("same") is None


def test_a_known_node_gets_what_fits_into_its_time_left(world: World) -> None:
    job_id = world.put(replace(EVERYWHERE, cpu_time=500))

    def ask(time_left: float) -> list[int]:
        asked = _like(request(**at(LONG), CPUPowerDB12=10))
        timed = node_document.set_time(asked.presented.resource, time_left)
        presented = replace(asked.presented, resource=timed)
        found = world.ask(replace(asked, presented=presented, time_left=time_left))
        return [each.job_id for each in found.claimed]

    assert [ask(time_left) for time_left in (49, 50)] == [[], [job_id]]
    assert world.matcher.place_lookups["hit"]


def test_after_a_ring_it_is_looked_at_again(world: World) -> None:
    world.ask()
    job_id = world.put()
    assert world.tells_nothing, "nobody has rung yet"
    world.matcher.notify()
    assert not world.tells_nothing
    world.matcher.refresh()
    assert not world.tells_nothing, "there is something"
    assert [each.job_id for each in world.ask().claimed] == [job_id]


def test_without_a_ring_the_next_look_at_the_feed_finds_it(world: World) -> None:
    world.ask()
    world.put()
    world.matcher.refresh()
    assert not world.tells_nothing


def test_too_old_a_look_is_not_told_from(world: World) -> None:
    world.ask()
    world.seconds += 1
    assert not world.tells_nothing


def test_task_queues_that_come_and_do_not_fit_change_nothing(world: World) -> None:
    world.ask()
    world.put(replace(EVERYWHERE, sites=frozenset({"c.d.ch"})))
    world.matcher.refresh()
    assert world.tells_nothing
    world.put(owner="bob")
    world.matcher.refresh()
    assert not world.tells_nothing


def test_a_task_queue_that_was_emptied_is_nothing_again(world: World) -> None:
    world.put()
    look = world.ask()
    assert look.claimed
    assert not world.tells_nothing
    world.matcher.settle([world.ask()])
    world.ask()
    assert world.tells_nothing


def test_a_pool_that_gets_the_queue_has_it_looked_at_again(world: World) -> None:
    pool = queued_jobs.pool(world.engine, world.now, "p" * 64, config=world.config)
    world.put(replace(EVERYWHERE, submit_pool=pool))
    assert not world.ask().claimed
    assert world.tells_nothing
    queued_jobs.remap(world.engine, world.now, pool, LONG, config=world.config)
    world.matcher.refresh()
    assert not world.tells_nothing
    assert world.ask().claimed


def test_another_configuration_has_it_looked_at_again(world: World) -> None:
    world.ask()
    world.config = queued_jobs.grid(version=2)
    assert not world.tells_nothing


@pytest.mark.parametrize(
    "said", [{"JobID": 1}, {"Site": ["A.B.ch", "Unknown.ch"]}, {**at(LONG), "Queue": "shut"}]
)
def test_what_more_decides_about_is_not_remembered(world: World, said: dict[str, object]) -> None:
    [look] = world.matcher.serve([_like(request(**said))])
    assert not (isinstance(look, ClaimResult) and look.claimed)
    assert not world.tells_nothing


@pytest.mark.parametrize("reason", ["limits", "banned"])
def test_what_waits_but_is_held_back_is_not_told_from_memory(world: World, reason: str) -> None:
    """Limits, bans and throttles are looked at each time, and noted with the jobs that they hold back."""
    if reason == "limits":
        limit = "JobScheduling: {RunningLimit: {A.B.ch: {VO: {lhcb: 0}}}}"
        world.config = queued_jobs.grid(f"{queued_jobs.GRID}\nOperations:\n  Defaults:\n    {limit}")
    else:
        ban = Ban(site="A.B.ch", reason="fire", author="alice", at=world.now, until=None)
        with database.writing(world.engine) as conn:
            closures.set_ban(conn, ban)
    world.put()
    assert (world.ask().refused, world.tells_nothing) == (reason, False)
    assert (world.ask().refused, world.tells_nothing) == (reason, False)


def test_what_was_found_under_an_older_configuration_is_not_held_on_to(world: World) -> None:
    assert not world.ask().claimed
    older, world.config = world.config, queued_jobs.grid(version=2)
    other = replace(request(**at(LONG)), cache_key="other")
    assert not world.ask(other).claimed
    world.config = older
    assert not world.tells_nothing, "it may be asked about no more, and the older one is large"
