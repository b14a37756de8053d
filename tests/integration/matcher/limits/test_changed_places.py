"""Limits, throttles and bans hold while the configuration of a place changes, and for pilots that hide it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, select

from agents import scope_counters
from agents.scope_counters import ScopeCountersState
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.request.match_request import MatchCaller
from requirements.errors import InvalidResource, PilotageError
from taskqueue.db import database
from taskqueue.schema.tables import attempts, scope_returns
from taskqueue.sites import closures
from taskqueue.sites.reservations import Advertisement, accept_advertisement, create_watermark
from tests.support import databases
from tests.support.factories import pilot_reports, queued_jobs, stored_rows
from tests.support.factories.queued_jobs import LONG

LEASE = timedelta(minutes=5)
LIMIT = "Operations: {Defaults: {JobScheduling: {RunningLimit: {A.B.ch: {VO: {lhcb: 2}}}}}}\n"
LIMIT_OF_CE = (
    "Operations: {Defaults: {JobScheduling: {RunningLimit: {A.B.ch: {CEs: {ce1: {VO: {lhcb: 2}}}}}}}}\n"
)
THROTTLE = "VO: [lhcb, cms]\n      Throttle: {Policy: level0, MaxSubmittingJobs: 2, Lifetime: 100000}"
RESPELLED = QueueAddress(site="a.b.CH", ce="CE1", queue="long")
AT_SITE = {"Site": "A.B.ch"}


def _matcher(engine: Engine, now: datetime, tree: str, version: int = 1) -> Matcher:
    return queued_jobs.matcher(engine, now, queued_jobs.grid(tree, version))


def _respell(tree: str) -> str:
    return tree.replace("A.B.ch", RESPELLED.site).replace("ce1", RESPELLED.ce)


def _request(matcher: Matcher, where: Mapping[str, object], count: int = 9) -> ClaimResult | PilotageError:
    while True:
        [found] = matcher.serve([queued_jobs.request(**where, count=count)])
        if isinstance(found, PilotageError) or not found.in_other_hands:
            return found
        matcher.settle([found])


def _claim(matcher: Matcher, where: QueueAddress = LONG, count: int = 9) -> ClaimResult:
    found = _request(matcher, queued_jobs.at(where), count)
    assert isinstance(found, ClaimResult)
    return found


def _advertise(engine: Engine, now: datetime, submitting: int, site: str = "A.B.ch") -> None:
    with database.writing(engine) as conn:
        state = {"CurrentSubmittingJobs": submitting}
        as_of = create_watermark(conn, site)
        assert accept_advertisement(conn, site, Advertisement(attributes=state, as_of=as_of), now=now)


def test_a_limit_counts_what_runs_at_the_other_spelling(engine: Engine, now: datetime) -> None:
    queued_jobs.put(engine, now, 9)
    old = _matcher(engine, now, queued_jobs.GRID + LIMIT)
    assert len(_claim(old, count=1).claimed) == 1
    new = _matcher(engine, now, _respell(queued_jobs.GRID + LIMIT), version=2)
    assert len(_claim(new, RESPELLED).claimed) == 1
    for matcher, queue in ((old, LONG), (new, RESPELLED)):
        assert _claim(matcher, queue).refused == "limits"
        assert _claim(matcher, queue, count=1).refused == "limits"


def test_a_new_limit_holds_for_a_process_with_the_other_spelling(engine: Engine, now: datetime) -> None:
    queued_jobs.put(engine, now, 9)
    old = _matcher(engine, now, queued_jobs.GRID)
    assert len(_claim(old, count=1).claimed) == 1
    new = _matcher(engine, now, _respell(queued_jobs.GRID + LIMIT), version=2)
    new.refresh()
    assert len(_claim(new, RESPELLED, count=1).claimed) == 1
    for count in (1, 9):
        assert not _claim(old, count=count).claimed


def test_a_ban_stays_when_the_site_is_respelled(engine: Engine, now: datetime) -> None:
    queued_jobs.put(engine, now, 9)
    stored_rows.ban(engine, now)
    for tree, queue in ((queued_jobs.GRID, LONG), (_respell(queued_jobs.GRID), RESPELLED)):
        for count in (1, 9):
            assert _claim(_matcher(engine, now, tree), queue, count).refused == "banned"
    with database.writing(engine) as conn:
        assert list(closures.read_bans(conn, ["a.B.ch", "C.D.ch"], now=now)) == ["a.B.ch"]
        assert closures.lift_ban(conn, RESPELLED.site)


def test_reservations_and_advertisements_stay_when_the_site_is_respelled(
    engine: Engine, now: datetime
) -> None:
    queued_jobs.put(engine, now, 9)
    tree = queued_jobs.GRID.replace("VO: [lhcb, cms]", THROTTLE)
    old = _matcher(engine, now, tree)
    old.refresh()
    _advertise(engine, now, 0)
    assert len(_claim(old).claimed) == 2
    new = _matcher(engine, now, _respell(tree), version=2)
    assert _claim(new, RESPELLED).refused == "throttled"
    _advertise(engine, now, 0, RESPELLED.site)
    assert _claim(old).refused == "throttled", "what is on its way stays reserved"


@pytest.mark.parametrize("where", [{}, {"GridCE": "ce1"}])
def test_a_pilot_without_site_is_refused_where_a_limit_may_concern_it(
    engine: Engine, now: datetime, where: dict[str, object]
) -> None:
    queued_jobs.put(engine, now, 9)
    assert isinstance(_request(_matcher(engine, now, queued_jobs.GRID), where, 1), ClaimResult)
    refused = _request(_matcher(engine, now, queued_jobs.GRID + LIMIT, version=2), where, 1)
    assert isinstance(refused, InvalidResource)
    assert "A.B.ch counts its jobs or is closed, so state Site" in str(refused)
    for_others = LIMIT.replace("Defaults", "cms")
    assert isinstance(
        _request(_matcher(engine, now, queued_jobs.GRID + for_others, version=3), where, 1), ClaimResult
    )


def test_a_pilot_without_site_is_refused_while_a_site_is_banned(engine: Engine, now: datetime) -> None:
    queued_jobs.put(engine, now, 9)
    matcher = _matcher(engine, now, queued_jobs.GRID)
    assert isinstance(_request(matcher, {}, 1), ClaimResult)
    stored_rows.ban(engine, now, "C.D.ch")
    matcher.refresh()
    assert isinstance(_request(matcher, {}, 1), InvalidResource)
    assert len(_claim(matcher, count=1).claimed) == 1


@pytest.mark.parametrize("where", [{}, AT_SITE])
@pytest.mark.parametrize("count", [1, 3])
def test_a_process_that_has_not_seen_a_new_limit_gives_nothing_to_a_pilot_that_may_be_inside(
    engine: Engine, now: datetime, where: dict[str, object], count: int
) -> None:
    queued_jobs.put(engine, now, 9)
    old = _matcher(engine, now, queued_jobs.GRID)
    _matcher(engine, now, queued_jobs.GRID + LIMIT_OF_CE, version=2).refresh()
    found = queued_jobs.serve(old, queued_jobs.request(**where, count=count))
    assert (found.claimed, found.in_other_hands) == ((), True)
    _matcher(engine, now, queued_jobs.GRID + LIMIT_OF_CE.replace("Defaults", "cms"), version=3).refresh()
    assert len(_request(old, where, count).claimed) == count  # type: ignore[union-attr]


def test_a_new_throttle_counts_what_is_on_its_way_until_an_advertisement_contains_it(
    engine: Engine, now: datetime
) -> None:
    queued_jobs.put(engine, now, 9)
    free = _matcher(engine, now, queued_jobs.GRID)
    _advertise(engine, now, 0)
    [first, second, third] = _claim(free, count=3).claimed
    pilot_reports.start(engine, first.lease, lease_time=LEASE, now=now)
    throttled = _matcher(engine, now, queued_jobs.GRID.replace("VO: [lhcb, cms]", THROTTLE), version=2)
    assert _claim(throttled).refused == "throttled"
    _advertise(engine, now, 0)  # the first has left the submitting ones
    assert _claim(throttled).refused == "throttled"
    queued_jobs.release(engine, now, second.lease)
    assert len(_claim(throttled).claimed) == 1, "the third is still on its way"
    assert third.epoch == 1
    assert not _cycle(engine, now, queued_jobs.GRID.replace("VO: [lhcb, cms]", THROTTLE)).mended


def test_a_new_throttle_counts_a_job_that_was_rescheduled_on_its_way_until_its_lease_ends(
    engine: Engine, now: datetime
) -> None:
    queued_jobs.put(engine, now, 9)
    [first, _] = _claim(_matcher(engine, now, queued_jobs.GRID), count=2).claimed
    stored_rows.reschedule(engine, now, first.job_id, maximum=1)
    tree = queued_jobs.GRID.replace("VO: [lhcb, cms]", THROTTLE)
    throttled = _matcher(engine, now, tree, version=2)
    assert _claim(throttled).refused == "throttled"
    _advertise(engine, now, 0)
    assert _claim(throttled).refused == "throttled"
    later = now + 2 * LEASE
    _advertise(engine, later, 0)
    assert len(_claim(_matcher(engine, later, tree, version=2)).claimed) == 1
    assert not _cycle(engine, now, tree).mended


def test_a_new_limit_does_not_count_a_job_that_was_rescheduled_on_its_way(
    engine: Engine, now: datetime
) -> None:
    queued_jobs.put(engine, now, 9)
    [first, _] = _claim(_matcher(engine, now, queued_jobs.GRID), count=2).claimed
    stored_rows.reschedule(engine, now, first.job_id, maximum=1)
    assert len(_claim(_matcher(engine, now, queued_jobs.GRID + LIMIT, version=2)).claimed) == 1
    with database.reading(engine) as conn:
        marked = conn.execute(select(attempts.c.job_id).where(attempts.c.counted_by.is_not(None))).scalars()
        assert first.job_id not in set(marked)


def test_an_advertisement_of_before_the_clock_was_set_back_is_not_fresh(
    engine: Engine, now: datetime
) -> None:
    queued_jobs.put(engine, now, 9)
    matcher = _matcher(engine, now, queued_jobs.GRID.replace("VO: [lhcb, cms]", THROTTLE))
    for ahead, refused in ((timedelta(days=1), "throttled"), (timedelta(seconds=1), None)):
        _advertise(engine, now + ahead, 0)
        assert _claim(matcher, count=1).refused == refused


def _cycle(engine: Engine, now: datetime, tree: str) -> scope_counters.ScopeCountersResult:
    config: Configuration = queued_jobs.grid(tree, 9)
    memory = ScopeCountersState()
    for _ in range(2):
        result = scope_counters.cycle(engine, config, now=now, holder="test", memory=memory)
    assert result is not None
    return result


def test_ends_of_jobs_at_a_place_without_limits_any_more_are_not_collected(
    engine: Engine, now: datetime
) -> None:
    queued_jobs.put(engine, now, 9)
    taken = _claim(_matcher(engine, now, queued_jobs.GRID + LIMIT)).claimed
    _matcher(engine, now, queued_jobs.GRID, version=2).refresh()
    queued_jobs.release(engine, now, *(job.lease for job in taken))
    _cycle(engine, now, queued_jobs.GRID)
    assert not databases.count(engine, scope_returns)


def test_a_limit_of_a_vo_that_equals_the_common_one_counts_its_own_jobs_only(
    engine: Engine, now: datetime
) -> None:
    limit = "JobScheduling: {RunningLimit: {A.B.ch: {JobType: {MC: 2}}}}"
    config = f"Operations: {{Defaults: {{{limit}}}, lhcb: {{{limit}}}}}\n"
    asked = replace(queued_jobs.EVERYWHERE, job_types=frozenset({"MC"}))
    with database.writing(engine) as conn:
        for vo in ("cms", "lhcb"):
            queued_jobs.put(conn, now, 3, asked=replace(asked, vo=vo), job_type="MC")
    matcher = _matcher(engine, now, queued_jobs.GRID + config)
    of_cms = MatchCaller(subject="pilot", vos=frozenset({"cms"}))
    found = queued_jobs.serve(matcher, queued_jobs.request(caller=of_cms, **queued_jobs.at(LONG), count=9))
    assert len(found.claimed) == 2
    assert len(_claim(matcher).claimed) == 2
    assert _claim(matcher).refused == "limits"
