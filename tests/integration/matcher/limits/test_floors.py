"""Floors of a site: jobs of a VO below its floor come first, exactly, and what it does not use is lent."""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

import pytest
from sqlalchemy import Engine, select, update

from cs_config.tree.configuration import Configuration
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.claim.snapshot import ExpectedPilots
from matcher.request.match_request import MatchCaller, MatchRequest
from requirements.errors import InvalidResource, PilotageError
from requirements.resource import Location
from taskqueue.db import database
from taskqueue.pilots import pilots
from taskqueue.schema.tables import attempts, task_queues
from taskqueue.sites import scope_rules as rules
from tests.support import databases, scope_counters
from tests.support.claimers import claiming, run
from tests.support.factories import queued_jobs, stored_rows
from tests.support.factories.queued_jobs import LONG

BOTH = frozenset({"cms", "lhcb"})


def _config(floors: str, own: str = "", version: int = 1) -> Configuration:
    site = "    A.B.ch:\n"
    return queued_jobs.grid(queued_jobs.GRID.replace(site, f"{site}      Floors: {floors}\n{own}"), version)


def _put(engine: Engine, now: datetime, vo: str, count: int, cores: int = 1) -> list[int]:
    """Jobs; those of cms have nearly no share."""
    asked = replace(queued_jobs.EVERYWHERE, vo=vo, processors_min=cores, processors_max=cores)
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, count, asked=asked, group=f"{vo}_user")
        weight = 1e-6 if vo == "cms" else 1000.0
        conn.execute(update(task_queues).where(task_queues.c.vo == vo).values(priority=weight))
    return ids


def _request(vos: Collection[str] = BOTH, count: int = 1, cores: int = 8) -> MatchRequest:
    caller = MatchCaller(subject="pilot", vos=frozenset(vos))
    return queued_jobs.request(caller=caller, count=count, NumberOfProcessors=cores, **queued_jobs.at(LONG))


def _ask(matcher: Matcher, times: int, vos: Collection[str] = BOTH) -> list[str]:
    """The VOs of the jobs that so many requests get, in order."""
    return [job.vo for _ in range(times) for job in queued_jobs.serve(matcher, _request(vos)).claimed]


def test_jobs_of_a_vo_below_its_floor_come_first_and_only_until_it_is_reached(
    engine: Engine, now: datetime
) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
    matcher = queued_jobs.matcher(engine, now, _config("{cms: 3}"))
    assert _ask(matcher, 6) == ["cms"] * 3 + ["lhcb"] * 3
    assert scope_counters.agree(engine)


def test_what_a_vo_has_no_work_for_is_lent_and_comes_back_as_jobs_end(engine: Engine, now: datetime) -> None:
    _put(engine, now, "lhcb", 9)
    matcher = queued_jobs.matcher(engine, now, _config("{CMS: 2}"))
    lent = [queued_jobs.serve(matcher, _request()) for _ in range(4)]
    assert [job.vo for each in lent for job in each.claimed] == ["lhcb"] * 4, "nothing is kept free"
    _put(engine, now, "cms", 9)
    matcher.refresh()
    assert _ask(matcher, 1) == ["cms"]
    queued_jobs.release(engine, now, *(each.claimed[0].lease for each in lent))
    assert _ask(matcher, 2) == ["cms", "lhcb"]
    assert scope_counters.agree(engine)


def test_the_floor_is_kept_as_jobs_of_its_vo_end(engine: Engine, now: datetime) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
    matcher = queued_jobs.matcher(engine, now, _config("{cms: 1}"))
    for _ in range(3):
        first = queued_jobs.serve(matcher, _request())
        assert [job.vo for job in first.claimed] == ["cms"]
        assert _ask(matcher, 1) == ["lhcb"]
        queued_jobs.release(engine, now, first.claimed[0].lease)
    assert scope_counters.agree(engine)


def test_a_part_is_of_the_cores_of_all_jobs_at_the_site(engine: Engine, now: datetime) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 30, cores=2)
    given = _ask(queued_jobs.matcher(engine, now, _config("{cms: 25%}")), 20)
    for end in range(4, 21):
        assert given[:end].count("cms") in (end // 4, end // 4 + 1), given
    assert scope_counters.agree(engine)


def test_floors_of_several_vos_are_filled_together(engine: Engine, now: datetime) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
    given = _ask(queued_jobs.matcher(engine, now, _config("{cms: 3, lhcb: 3}")), 6)
    assert [Counter(given[: 2 * number]) for number in (1, 2, 3)] == [
        {"cms": number, "lhcb": number} for number in (1, 2, 3)
    ]


def test_a_request_for_several_jobs_gets_no_more_of_the_floor_than_is_missing(
    engine: Engine, now: datetime
) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
    matcher = queued_jobs.matcher(engine, now, _config("{cms: 5}"))
    given = [job.vo for job in queued_jobs.serve(matcher, _request(count=8, cores=8)).claimed]
    assert given == ["cms"] * 5 + ["lhcb"] * 3
    assert scope_counters.agree(engine)


def test_cores_count_not_jobs(engine: Engine, now: datetime) -> None:
    _put(engine, now, "cms", 9, cores=4)
    _put(engine, now, "lhcb", 9)
    assert _ask(queued_jobs.matcher(engine, now, _config("{cms: 8}")), 4) == ["cms", "cms", "lhcb", "lhcb"]


def test_a_limit_of_the_vo_holds_beside_its_floor(engine: Engine, now: datetime) -> None:
    """One row counts for both; what the limit keeps out is lent."""
    for vo in BOTH:
        _put(engine, now, vo, 9)
    own = "      RunningLimit: {VO: {cms: 2}}\n"
    assert _ask(queued_jobs.matcher(engine, now, _config("{cms: 5}", own)), 4) == [
        "cms",
        "cms",
        "lhcb",
        "lhcb",
    ]
    assert scope_counters.agree(engine)
    with database.reading(engine) as conn:
        assert [each.format for each in rules.list_rules(conn)] == [rules.FORMAT_OF_FLOORS]


def _expect_pilot(engine: Engine, now: datetime, vo: str = "cms", status: str = "Waiting") -> None:
    """A pilot of the VO waits in the batch system of the site."""
    with database.writing(engine) as conn:
        pilots.record_contact(conn, stamp=vo, vo=vo, queue=LONG, now=now)
        stored_rows.force_pilot(conn, vo, status=status)


def test_pilots_of_another_vo_borrow_while_none_of_the_owner_waits(engine: Engine, now: datetime) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
    _expect_pilot(engine, now, status="Running")
    matcher = queued_jobs.matcher(engine, now, _config("{cms: 3}"))
    assert _ask(matcher, 2, ["lhcb"]) == ["lhcb"] * 2
    assert _ask(matcher, 2, ["cms"]) == ["cms"] * 2
    assert _ask(matcher, 2) == ["cms", "lhcb"]
    assert scope_counters.agree(engine)


def test_waiting_pilots_are_read_every_few_seconds(engine: Engine, now: datetime) -> None:
    """Not by each claim: there may be very many pilots."""
    at = 100.0
    expected = ExpectedPilots(lambda: at)

    def read() -> frozenset[tuple[str, str]]:
        with database.reading(engine) as conn:
            return expected.read(conn, now=now)

    _expect_pilot(engine, now, status="Submitted")
    assert read() == {("cms", "A.B.ch")}
    _expect_pilot(engine, now, "lhcb")
    _expect_pilot(engine, now, "atlas", status="Running")
    at += 4.9
    assert read() == {("cms", "A.B.ch")}
    at += 0.1
    assert read() == {("cms", "A.B.ch"), ("lhcb", "A.B.ch")}


def test_a_pilot_that_is_held_in_its_batch_system_keeps_slots_for_a_day(
    engine: Engine, now: datetime
) -> None:
    _expect_pilot(engine, now)
    with database.reading(engine) as conn:
        assert pilots.list_expected(conn, now=now + timedelta(hours=23)) == {("cms", "A.B.ch")}
        assert pilots.list_expected(conn, now=now + timedelta(hours=25)) == set()


def test_pilots_of_another_vo_get_nothing_while_one_of_the_owner_waits_for_a_slot(
    engine: Engine, now: datetime
) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
    _expect_pilot(engine, now)
    config = _config("{cms: 2}")
    matcher = queued_jobs.matcher(engine, now, config)
    for _ in range(2):
        assert queued_jobs.serve(matcher, _request(["lhcb"])).refused == "limits"
        with matcher.current_view() as view:
            slot = view.place_now(_request(["lhcb"]).presented, _request(["lhcb"]).caller)[1]
            gate = view.gate(Location(site="A.B.ch", ce="ce1", queue="long"), resource=slot, count=1)
            assert gate is not None
            assert not gate.admits_all, "directors send no pilot for such jobs"
        assert _ask(matcher, 1, ["cms"]) == ["cms"]
    assert _ask(matcher, 2, ["lhcb"]) == ["lhcb"] * 2, "the floor is reached"
    assert scope_counters.agree(engine)


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ({"Site": "A.B.ch"}, "A.B.ch has floors of other VOs, so state GridCE and Queue"),
        ({"Site": "A.B.ch", "GridCE": "ce1"}, "A.B.ch has floors of other VOs, so state Queue"),
    ],
)
def test_pilots_of_another_vo_do_not_pass_by_a_floor_without_their_queue(
    engine: Engine, now: datetime, site: Mapping[str, str], said: str
) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
    _expect_pilot(engine, now)
    matcher = queued_jobs.matcher(engine, now, _config("{cms: 3}"))

    def ask(*vos: str) -> ClaimResult | PilotageError:
        caller = MatchCaller(subject="pilot", vos=frozenset(vos))
        [result] = matcher.serve([queued_jobs.request(caller=caller, **site)])
        return result

    refused = ask("lhcb")
    assert isinstance(refused, InvalidResource)
    assert said in str(refused)
    served = ask("cms")
    assert isinstance(served, ClaimResult)
    assert [job.vo for job in served.claimed] == ["cms"]


def test_a_vo_below_its_own_floor_waits_for_no_other(engine: Engine, now: datetime) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
        _expect_pilot(engine, now, vo)
    assert _ask(queued_jobs.matcher(engine, now, _config("{cms: 3, lhcb: 1}")), 2, ["lhcb"]) == ["lhcb"]


@pytest.mark.parametrize(
    ("cores", "own"), [(9, ""), (1, "      RunningLimit: {VO: {cms: 0}}\n"), (1, "VO: [lhcb]")]
)
def test_nothing_is_kept_for_work_that_the_slot_may_not_run(
    engine: Engine, now: datetime, cores: int, own: str
) -> None:
    _put(engine, now, "cms", 9, cores=cores)
    _put(engine, now, "lhcb", 9)
    _expect_pilot(engine, now)
    config = _config("{cms: 20}", own) if "VO: [" not in own else _config_of_lhcb("{cms: 20}")
    assert _ask(queued_jobs.matcher(engine, now, config), 2, ["lhcb"]) == ["lhcb"] * 2


def _config_of_lhcb(floors: str) -> Configuration:
    text = queued_jobs.GRID.replace("VO: [lhcb, cms]", f"VO: [lhcb]\n      Floors: {floors}")
    return queued_jobs.grid(text)


def test_a_moved_floor_holds_for_the_next_job(engine: Engine, now: datetime) -> None:
    for vo in BOTH:
        _put(engine, now, vo, 9)
    configs = {1: _config("{cms: 1}"), 2: _config("{cms: 2}", version=2)}
    version = 1
    matcher = Matcher(engine, lambda: configs[version], lambda: now, Random(1))
    assert _ask(matcher, 2) == ["cms", "lhcb"]
    version = 2
    assert _ask(matcher, 2) == ["cms", "lhcb"]
    assert scope_counters.agree(engine)


def test_processes_together_fill_a_floor_exactly(postgresql: Engine, now: datetime) -> None:
    """Pilots of several VOs and of one, by both claims, in two processes: the rows decide."""
    for vo in BOTH:
        _put(postgresql, now, vo, 60)
    config = _config("{cms: 8}")
    one, other = (queued_jobs.matcher(postgresql, now, config) for _ in range(2))
    with claiming(postgresql, one) as first, claiming(postgresql, other) as second:

        async def work() -> None:
            await first.ask(_request(["cms"]))  # its place is known now, and open
            await asyncio.gather(*(first.ask(_request(["cms"])) for _ in range(3)))
            assert first.in_loop > 0, "pilots of the only owner are served in the loop"
            pairs = [(each, vos) for each in (first, second) for vos in (BOTH, ["lhcb"]) for _ in range(12)]
            answers = await asyncio.gather(*(each.ask(_request(vos)) for each, vos in pairs))
            assert all(each.matches for each in answers)

        run(work, first, second)
    given = Counter(databases.scalars(postgresql, select(attempts.c.vo)))
    assert given == {"cms": 8, "lhcb": 4 + 48 - 8}
    assert scope_counters.agree(postgresql)


@pytest.mark.parametrize(
    ("floors", "said"),
    [
        ("{cms: -1}", "A.B.ch/cms: -1 is not a number of cores, allowed are 0 to"),
        (
            "{cms: many}",
            "A.B.ch/cms: 'many' is no floor, allowed are a number of cores, or a part such as 30%",
        ),
        ("{cms: 101%}", "A.B.ch/cms: '101%' is more than the whole, allowed are 0% to 100%"),
        ("{cms: 60%, lhcb: 50.5%}", "A.B.ch: the floors are 110.5 % together, allowed are 100 %"),
        ("5", "a section is needed here: {biomed: 200, atlas: 30%}"),
        ("{cms: {cores: 5}}", "is not a number of cores"),
    ],
)
def test_wrong_floors_are_told(floors: str, said: str) -> None:
    with pytest.raises(Exception, match="Floors") as caught:
        _config(floors)
    assert said in str(caught.value)
