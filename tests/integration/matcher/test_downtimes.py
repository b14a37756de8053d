"""Downtimes: drained before, closed during, open again after, without anybody acting."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

import pytest
from sqlalchemy import Connection, Engine

from cs_config.cache import RowCounts
from matcher import demand
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.explain import blockers, queue_set
from matcher.index.waiting import FeedFreshness
from matcher.limits.job_groups import JobView
from requirements.errors import PilotageError, format_time
from requirements.requirement_class import RequirementClass
from taskqueue.db import database
from taskqueue.sites import closures
from taskqueue.sites.closures import Ban, Downtime, Severity
from tests.support import concurrency
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import EVERYWHERE, LONG

#: Of queues: an hour and a half of CPU time, two hours of wall time.
GRID = queued_jobs.GRID.replace(
    "VO: [lhcb, cms]\n", "VO: [lhcb, cms]\n      CPUTime: 5400\n      maxWallClockTime: 7200\n"
).replace("long: {VO: [cms]}", "long: {}")
OTHER_CE = replace(LONG, ce="ce2")
BEGIN, END = timedelta(hours=10), timedelta(hours=12)
OFFER = {"CPUTime": 5400, "WallTime": 7200}


class World:
    """A grid with a clock that is passed."""

    def __init__(self, engine: Engine, start: datetime) -> None:
        self.engine, self.start, self.now = engine, start, start
        self.config = queued_jobs.grid(GRID)
        self.matcher = Matcher(engine, lambda: self.config, lambda: self.now, Random(1))
        self.matcher._freshness = FeedFreshness(lambda: 100.0)  # however long the machine takes

    def go_to(self, since_start: timedelta) -> None:
        self.now = self.start + since_start

    def plan(self, place: str = "A.B.ch", severity: Severity = Severity.OUTAGE) -> None:
        new = Downtime(
            place=place,
            begins=self.start + BEGIN,
            ends=self.start + END,
            severity=severity,
            reason="new cooling",
            author="ada",
            at=self.start,
        )
        with database.writing(self.engine) as conn:
            closures.add_downtimes(conn, [new])

    def put(self, asked: RequirementClass = EVERYWHERE, owner: str = "alice") -> int:
        job_type = next(iter(asked.job_types), "")
        [job_id] = queued_jobs.put(self.engine, self.now, asked=asked, owner=owner, job_type=job_type)
        return job_id

    def ask(self, where: object = LONG) -> ClaimResult | PilotageError:
        said = {**queued_jobs.at(where), **OFFER}  # type: ignore[arg-type]
        [look] = self.matcher.serve([queued_jobs.request(**said)])
        return look

    def gets(self, where: object = LONG) -> bool:
        look = self.ask(where)
        return isinstance(look, ClaimResult) and bool(look.claimed)

    def is_wanted(self, where: object = LONG) -> bool:
        """Whether a director would send a pilot there."""
        said = {**queued_jobs.at(where), **OFFER}  # type: ignore[arg-type]
        asked = queued_jobs.request(**said)
        found = demand.count_demand(self.matcher, [asked.presented], asked.caller, RowCounts())
        return bool(found.served[0])

    def explain(self, asked: RequirementClass) -> list[str]:
        job = JobView(
            job_id=None,
            vo="lhcb",
            owner="alice",
            owner_group="lhcb_user",
            job_name="",
            job_type=next(iter(asked.job_types), ""),
            job_group="",
            priority=1,
            submit_pool=None,
            description={},
        )
        survey = queue_set.all_queues(self.config, "lhcb")
        with database.reading(self.engine) as conn:
            found = blockers.list_blocked_queues(
                conn, self.config, job, asked, survey, survey.within(str(LONG)), self.now
            )
            return [text for _, text in found]


@pytest.fixture
def world(engine: Engine, now: datetime) -> World:
    return World(engine, now.replace(microsecond=0))


def test_a_job_that_would_not_end_before_the_begin_is_not_sent_and_others_are(world: World) -> None:
    world.plan()
    world.go_to(BEGIN - timedelta(minutes=30))
    long = world.put()
    assert not world.is_wanted()
    assert not world.gets()
    world.put(replace(EVERYWHERE, cpu_time=1800))
    assert world.is_wanted()
    look = world.ask()
    assert isinstance(look, ClaimResult)
    assert [each.job_id for each in look.claimed] != [long]


def test_a_job_without_stated_time_waits_for_as_long_as_it_is_given_by_default(world: World) -> None:
    world.plan()
    world.put(replace(EVERYWHERE, cpu_time=5400))
    world.go_to(BEGIN - timedelta(seconds=5400 + 60))
    assert world.gets()


@pytest.mark.parametrize("place", ["A.B.ch", "A.B.ch/ce1"])
def test_a_place_is_closed_from_the_begin_to_the_end_for_all_but_tests(world: World, place: str) -> None:
    world.plan(place)
    world.put(replace(EVERYWHERE, cpu_time=60))
    for moment, is_open in (
        (BEGIN, False),
        (END - timedelta(seconds=1), False),
        (END, True),
    ):
        world.go_to(moment)
        assert world.is_wanted() is is_open
        look = world.ask()
        assert isinstance(look, ClaimResult)
        assert (look.refused, bool(look.claimed)) == (None if is_open else "banned", is_open)
    world.go_to(BEGIN)
    world.put(replace(EVERYWHERE, cpu_time=60, job_types=frozenset({"Test"})), owner="bob")
    assert world.gets()


def test_a_downtime_of_a_ce_closes_that_ce_alone(world: World) -> None:
    world.plan("A.B.ch/ce1")
    world.put()
    world.go_to(BEGIN)
    assert not world.gets(LONG)
    assert world.gets(OTHER_CE)


def test_a_pilot_that_does_not_say_where_it_is_gets_nothing_while_a_part_is_closed(world: World) -> None:
    world.plan("A.B.ch/ce1")
    world.put()
    world.go_to(BEGIN)
    [look] = world.matcher.serve([queued_jobs.request(Site="A.B.ch", **OFFER)])
    assert isinstance(look, PilotageError)
    assert "a.b.ch/ce1 counts its jobs or is closed, so state GridCE" in str(look)


def test_a_warning_closes_nothing(world: World) -> None:
    world.plan(severity=Severity.WARNING)
    world.put()
    for moment in (BEGIN - timedelta(minutes=1), BEGIN + timedelta(minutes=1)):
        world.go_to(moment)
        assert world.is_wanted()
    assert world.gets()


def test_what_was_told_from_memory_before_a_downtime_is_not_told_after_it(world: World) -> None:
    world.plan()
    world.put()
    said = {**queued_jobs.at(LONG), **OFFER}
    asked = replace(queued_jobs.request(**said), cache_key="same")
    world.go_to(BEGIN - timedelta(minutes=30))
    look = queued_jobs.serve(world.matcher, asked)
    assert not look.claimed
    assert world.matcher.find_no_match("same") is not None
    world.go_to(END)
    world.matcher.refresh()
    assert world.matcher.find_no_match("same") is None
    look = queued_jobs.serve(world.matcher, asked)
    assert look.claimed


def test_what_closes_a_place_now_is_the_reason_before_what_will_close_it(world: World) -> None:
    world.plan()
    world.put(replace(EVERYWHERE, job_types=frozenset({"Test"})))
    world.go_to(BEGIN - timedelta(minutes=30))
    asked = replace(queued_jobs.request(**queued_jobs.at(LONG), **OFFER), cache_key="same")

    def ban(site: str) -> None:
        new = Ban(site=site, reason="down", author="ada", at=world.now, until=None)
        with database.writing(world.engine) as conn:
            closures.set_ban(conn, new)

    ban("A.B.ch")
    assert queued_jobs.serve(world.matcher, asked).refused is None, "a test that is too long is not banned"
    world.put()
    assert queued_jobs.serve(world.matcher, asked).refused == "banned"
    with database.writing(world.engine) as conn:
        closures.lift_ban(conn, "A.B.ch")
    assert queued_jobs.serve(world.matcher, asked).refused is None
    assert world.matcher.find_no_match("same") is not None
    ban("A.B.ch")
    world.matcher.refresh()
    assert world.matcher.find_no_match("same") is None, "what was told from memory before"
    assert queued_jobs.serve(world.matcher, asked).refused == "banned"


def test_a_downtime_that_is_cancelled_holds_nothing_back(world: World) -> None:
    world.plan()
    world.put()
    world.go_to(BEGIN - timedelta(minutes=30))
    assert not world.gets()
    with database.writing(world.engine) as conn:
        [planned] = closures.list_downtimes(conn, ["A.B.ch"], now=world.now)
        closures.remove_downtimes(conn, [planned.downtime_id])
    assert world.gets()


def test_a_feed_that_was_read_twice_at_once_is_stored_once_after_the_next_reading(
    engine: Engine, now: datetime
) -> None:
    old = Downtime(
        place="LCG.A.org/ce",
        begins=now,
        ends=now + timedelta(hours=9),
        severity=Severity.OUTAGE,
        reason="disks",
        author="ann",
        at=now,
        source="gocdb",
        source_id="1G0",
    )
    new = replace(old, ends=now + timedelta(hours=1))
    for twice in ([old, old], [old, new], [new, old]):
        with database.writing(engine) as conn:
            closures.add_downtimes(conn, twice)
            closures.replace_feed(conn, "gocdb", [new], ["LCG.A.org"])
            [left] = closures.list_downtimes(conn, ["LCG.A.org"], now=now)
            assert left.ends == new.ends
            assert closures.replace_feed(conn, "gocdb", [], ["LCG.A.org"]).removed == 1


def test_two_readings_of_a_feed_at_once_store_it_once(engine: Engine, now: datetime) -> None:
    stated = Downtime(
        place="LCG.A.org/ce",
        begins=now,
        ends=now + timedelta(hours=9),
        severity=Severity.OUTAGE,
        reason="disks",
        author="ann",
        at=now,
        source="gocdb",
        source_id="1G0",
    )

    def read(conn: Connection) -> closures.DowntimeChanges:
        closures.lock_downtimes(conn)
        return closures.replace_feed(conn, "gocdb", [stated], ["LCG.A.org"])

    def read_too() -> closures.DowntimeChanges:
        with database.writing(engine) as conn:
            return read(conn)

    assert concurrency.meanwhile(engine, read, read_too).added == 0
    with database.reading(engine) as conn:
        assert len(closures.list_downtimes(conn, ["LCG.A.org"], now=now)) == 1


def test_a_downtime_begins_while_a_ban_ends(world: World) -> None:
    world.plan()
    with database.writing(world.engine) as conn:
        until = world.start + BEGIN
        closures.set_ban(conn, Ban(site="A.B.ch", reason="disks", author="root", at=world.start, until=until))
    world.put(replace(EVERYWHERE, cpu_time=60))
    for moment in (BEGIN - timedelta(seconds=1), BEGIN):
        world.go_to(moment)
        assert not world.gets()
    world.go_to(END)
    assert world.gets()


def _last(asked: RequirementClass) -> timedelta:
    """The last moment before the begin at which a job can still be sent."""
    return BEGIN - timedelta(seconds=max(asked.cpu_time, asked.wall_time))


_JOBS: tuple[Callable[[], RequirementClass], ...] = (
    lambda: replace(EVERYWHERE, cpu_time=60),
    lambda: replace(EVERYWHERE, cpu_time=3600),
    lambda: replace(EVERYWHERE, cpu_time=0, wall_time=3600),
    lambda: replace(EVERYWHERE, cpu_time=3600, job_types=frozenset({"Test"})),
)


@pytest.mark.parametrize("kind", range(len(_JOBS)))
def test_claim_demand_and_explanation_agree_at_the_boundaries(world: World, kind: int) -> None:
    asked = _JOBS[kind]()
    world.plan()
    second = timedelta(seconds=1)
    moments = (_last(asked), BEGIN, END)
    for number, moment in enumerate(
        each + step for each in moments for step in (-second, 0 * second, second)
    ):
        world.go_to(moment)
        world.put(asked, owner=f"user{number}")
        is_open = not world.explain(asked)
        assert world.is_wanted() is is_open, (moment, world.explain(asked))
        assert world.gets() is is_open
        if not is_open:  # so that the next one begins without jobs
            world.go_to(timedelta())
            assert world.gets()


def test_an_explanation_names_the_downtime_and_its_reason(world: World) -> None:
    world.plan("A.B.ch/ce1")
    world.go_to(BEGIN - timedelta(minutes=30))
    [text] = world.explain(EVERYWHERE)
    assert text.startswith("A.B.ch/ce1 has a downtime from ")
    assert text.endswith("(new cooling): the job asks for more time than is left until then")
    world.go_to(BEGIN)
    [text] = world.explain(EVERYWHERE)
    until = format_time(world.start + END)
    assert text == (
        f"A.B.ch/ce1 is closed by a downtime until {until}: new cooling (by ada); only jobs of type Test "
        "run there"
    )
