"""Counters of scopes are copies of rows, whatever ends an attempt and whoever changes a rule."""

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Connection, Engine, delete, func, select, text, update

from agents import scope_counters as agent
from agents.scope_counters import ScopeCountersState
from cs_config.options.operations import options_for
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher import demand
from matcher.claim.claim_request import ClaimResult
from matcher.claim.matcher import Matcher
from matcher.limits import compiled_rules
from matcher.limits.compiled_rules import RuleFollower
from optimizers.submit import submission
from taskqueue.db import database
from taskqueue.errors import IllegalTransition, StaleLease
from taskqueue.jobs import control
from taskqueue.leases import expiry, lifecycle
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import attempts, job_log, reservations, scope_returns, scope_rules
from taskqueue.sites import rule_counters, scopes
from taskqueue.sites import scope_rules as rules
from taskqueue.sites.occupancy import JobsAndCores
from taskqueue.sites.reservations import Advertisement, accept_advertisement, create_watermark
from taskqueue.task_queues import reclassification
from tests.support import databases, earlier_release, scope_counters, wait
from tests.support.factories import pilot_reports, queued_jobs, stored_rows, submitted_jobs
from tests.support.factories.queued_jobs import ELSEWHERE, LONG, SHORT

ROOT = Path(__file__).parents[4]
SITE = "A.B.ch"
LEASE = timedelta(minutes=5)
LIMITS = "Operations: {{Defaults: {{JobScheduling: {{RunningLimit: {{A.B.ch: {limits}}}}}}}}}\n"
THROTTLE = "VO: [lhcb, cms]\n      Throttle: {Policy: level0, MaxSubmittingJobs: 6, Lifetime: 100000}"


def _config(limits: str, version: int = 1, *, throttled: bool = False) -> Configuration:
    tree = queued_jobs.GRID.replace("VO: [lhcb, cms]", THROTTLE) if throttled else queued_jobs.GRID
    return queued_jobs.grid(tree + LIMITS.format(limits=limits), version)


def _put(
    engine: Engine, now: datetime, count: int, job_type: str = "MC", cores: tuple[int, int] = (1, 1)
) -> list[int]:
    """`cores`: how many the jobs need, and can use."""
    asked = replace(
        queued_jobs.EVERYWHERE,
        job_types=frozenset({job_type}),
        processors_min=cores[0],
        processors_max=cores[1],
    )
    return queued_jobs.put(engine, now, count, asked=asked, job_type=job_type)


def _ask(
    matcher: Matcher, where: QueueAddress = LONG, count: int = 1, cores: int | None = None
) -> ClaimResult:
    stated = {} if cores is None else {"NumberOfProcessors": cores}
    while True:
        look = queued_jobs.serve(matcher, queued_jobs.request(**queued_jobs.at(where), count=count, **stated))
        if not look.in_other_hands:
            return look


def _count(engine: Engine, where: str = "true") -> int:
    with database.reading(engine) as conn:
        found: int = conn.execute(
            text(f"SELECT count(*) FROM attempts WHERE closed_at IS NULL AND {where}")
        ).scalar_one()
    return found


def test_whatever_ends_an_attempt_is_returned_without_a_lock_of_the_scope(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 12)
    matcher = queued_jobs.matcher(engine, now, _config("{JobType: {mc: 6}, CEs: {ce1: {JobType: {MC: 9}}}}"))
    taken = list(_ask(matcher, count=9).claimed)
    assert len(taken) == 6
    assert scope_counters.agree(engine)
    late = now + 10 * LEASE
    silent = {"silent_since": {"lhcb": late}, "now": late}

    def end(conn: Connection, number: int) -> None:
        job = taken[number]
        match number:
            case 0:
                pilot_reports.release(conn, job.lease, reason="", max_rescheduling=3, now=now)
            case 1:
                pilot_reports.start(conn, job.lease, lease_time=LEASE, now=now)
                pilot_reports.finish(conn, job.lease, PayloadResult(status="Done"), now=now)
            case 2:
                assert control.reschedule_jobs(conn, [job.job_id], source="test", now=now, maximum=9) == [
                    job.job_id
                ]
            case 3:
                assert lifecycle.recall(conn, job.lease, reason="gone", now=now)
            case 4:
                conn.execute(delete(job_log).where(job_log.c.job_id == job.job_id))
                conn.execute(delete(attempts).where(attempts.c.job_id == job.job_id))
            case _:
                expiry.expire_leases(conn, **silent)

    with contextlib.ExitStack() as stack:
        if engine.dialect.name == "postgresql":  # on SQLite there is one writer
            holder = stack.enter_context(database.writing(engine))
            assert scopes.lock_scopes(holder, [SITE, f"{SITE}/ce1"])
        for number in range(len(taken)):
            with database.writing(engine) as conn:
                end(conn, number)
            assert scope_counters.agree(engine)
    assert _count(engine) == 0
    assert len(_ask(matcher, count=9).claimed) == 6
    assert scope_counters.agree(engine)


def test_the_counter_of_all_sites_is_that_of_the_rows_and_is_mended(engine: Engine, now: datetime) -> None:
    _put(engine, now, 9)
    limits = "Operations: {Defaults: {JobScheduling: {RunningLimit: {AllSites: {JobType: {MC: 3}}}}}}\n"
    matcher = queued_jobs.matcher(engine, now, queued_jobs.grid(queued_jobs.GRID + limits))
    taken = [*_ask(matcher, count=2).claimed, *_ask(matcher, ELSEWHERE, count=2).claimed]
    assert len(taken) == 3
    queued_jobs.release(engine, now, taken[0].lease)
    with database.writing(engine) as conn:
        assert not rule_counters.list_differences(conn, compiled_rules.counts)
        conn.execute(text("UPDATE scope_rules SET n = n + 5"))
        [difference] = rule_counters.list_differences(conn, compiled_rules.counts)
        assert (difference.rule.n, difference.there.jobs) == (7, 2)
        rule_counters.mend(conn, difference.rule, compiled_rules.counts)
        assert not rule_counters.list_differences(conn, compiled_rules.counts)
    newer = queued_jobs.matcher(engine, now, queued_jobs.grid(queued_jobs.GRID + limits))
    assert len(_ask(newer, ELSEWHERE, count=9).claimed) == 1
    with database.reading(engine) as conn:
        assert not rule_counters.list_differences(conn, compiled_rules.counts)


def test_a_job_that_is_resumed_counts_again_also_for_a_limit_that_is_newer(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 3)
    matcher = queued_jobs.matcher(engine, now, _config("{JobType: {MC: 1}}"))
    [lost] = _ask(matcher).claimed
    pilot_reports.start(engine, lost.lease, lease_time=LEASE, now=now)
    late = now + 20 * LEASE
    with database.writing(engine) as conn:
        expiry.mark_stalled(conn, silent_since={"lhcb": late}, now=now)
        pilot_reports.give_up(conn, "lhcb", max_rescheduling=5, now=late)
    assert scope_counters.agree(engine)
    newer = queued_jobs.matcher(engine, now, _config("{JobType: {MC: 2}, VO: {lhcb: 1}}", version=2))
    newer.refresh()
    pilot_reports.heartbeat(engine, lost.lease, lease_time=LEASE, now=late)
    returns = databases.scalars(engine, select(scope_returns.c.number))
    assert sorted(returns) == [-1, 1, 1] or sorted(returns) == [1, 1]
    assert _ask(newer).refused == "limits"


def test_a_process_with_an_older_configuration_keeps_the_new_limit(engine: Engine, now: datetime) -> None:
    _put(engine, now, 9)
    old = queued_jobs.matcher(engine, now, _config("{JobType: {Other: 1}}", version=1), seed=1)
    free = queued_jobs.matcher(engine, now, queued_jobs.grid(version=1), seed=3)
    assert len(_ask(old).claimed) == 1
    new = queued_jobs.matcher(engine, now, _config("{JobType: {MC: 3}}", version=2), seed=2)
    assert len(_ask(new).claimed) == 1
    for matcher in (old, free, new) * 2:
        _ask(matcher)
    assert _count(engine) == 3
    assert scope_counters.agree(engine)
    looks = free.serve([queued_jobs.request(**queued_jobs.at(LONG)) for _ in range(2)])
    assert not any(look.claimed for look in looks if isinstance(look, ClaimResult))
    with database.reading(engine) as conn:
        assert rules.read_version(conn) == (2, 0)
        assert [(each.value, each.n) for each in rules.list_rules(conn)] == [("mc", 3)]


def test_a_new_limit_counts_what_runs_and_stays_closed_while_an_old_claim_is_open(
    postgresql: Engine, now: datetime
) -> None:
    _put(postgresql, now, 9)
    before = queued_jobs.matcher(postgresql, now, queued_jobs.grid())
    assert len(_ask(before, count=2).claimed) == 2
    limited = _config("{JobType: {MC: 3}}", version=2)
    matcher = queued_jobs.matcher(postgresql, now, limited)
    with database.writing(postgresql) as rival:
        # A claim that began before the limit was stored, and took a job that it does not know to be counted.
        [task_queue] = rival.execute(text("SELECT DISTINCT task_queue_id FROM waiting_jobs")).scalars()
        queued_jobs.claim(rival, [task_queue], now, place=_location())
        look = queued_jobs.serve(matcher, queued_jobs.request(**queued_jobs.at(LONG)))
        assert (look.claimed, look.in_other_hands) == ((), True)
    assert _ask(matcher).refused == "limits"
    assert _count(postgresql) == 3
    assert scope_counters.agree(postgresql)


@pytest.mark.parametrize("place", ["AllSites", SITE, f"{SITE}/CEs/ce1"])
def test_a_limit_that_is_newer_than_what_runs_counts_each_spelling_until_it_ends(
    engine: Engine, now: datetime, place: str
) -> None:
    # The second one has a Kelvin sign, equal to K where case is ignored.
    spellings = ["kit", "\u212aIT", "KIT", "Other", "kit2", "Caf\u00e9"]
    for each in spellings:
        [job_id] = _put(engine, now, 1, "MC")
        stored_rows.force(engine, job_id, job_type=each)
    taken = _ask(queued_jobs.matcher(engine, now, queued_jobs.grid()), count=9).claimed
    assert len(taken) == 6
    limit = "{JobType: {Kit: 9}}"
    for name in reversed(place.split("/")):
        limit = f"{{{name}: {limit}}}"
    limits = f"Operations: {{lhcb: {{JobScheduling: {{RunningLimit: {limit}}}}}}}\n"
    matcher = queued_jobs.matcher(engine, now, queued_jobs.grid(queued_jobs.GRID + limits, 2))
    matcher.refresh()
    with database.reading(engine) as conn:
        [rule] = rules.list_rules(conn)
    assert (rule.vo, rule.value, rule.n, rule.opened) == ("lhcb", "kit", 3, True)
    for job in taken:
        queued_jobs.release(engine, now, job.lease)
        with scope_counters.snapshot(engine) as conn:
            assert not rule_counters.list_differences(conn, compiled_rules.counts)
    with database.reading(engine) as conn:
        assert [(each.n) for each in rules.read_rules(conn, [rule.scope])] == [0]


def _location() -> queued_jobs.Location:
    return queued_jobs.Location(site=SITE, ce="ce1", queue="long")


def test_a_process_that_dies_while_it_counts_leaves_nothing_half_counted(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(engine, now, 9)
    assert len(_ask(queued_jobs.matcher(engine, now, queued_jobs.grid()), count=5).claimed) == 5
    config = _config("{JobType: {MC: 7}}", version=2)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rules, "set_counts", die)
        with pytest.raises(KeyboardInterrupt):
            RuleFollower(engine).follow(config)
    with database.reading(engine) as conn:
        assert [(each.n, each.opened) for each in rules.list_rules(conn)] == [(rules.FULL, False)]
    assert len(_ask(queued_jobs.matcher(engine, now, config), count=9).claimed) == 2
    assert scope_counters.agree(engine)


def test_new_limits_are_opened_wherever_the_process_that_stores_them_is_killed(
    engine: Engine, database_url: str, now: datetime
) -> None:
    _put(engine, now, 4)
    assert len(_ask(queued_jobs.matcher(engine, now, queued_jobs.grid(version=0)), count=3).claimed) == 3
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.scripts.rule_follower_crash", database_url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) > 10
    assert [each for each in found if each[1:] != ["True", "True"]] == []


def test_an_older_version_takes_nothing_beyond_its_limits_before_the_newer_ones_are_stored(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(engine, now, 9)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rules, "replace_rules", die)
        with pytest.raises(KeyboardInterrupt):
            RuleFollower(engine).follow(_config("{JobType: {MC: 6}}", version=3))
    assert len(_ask(queued_jobs.matcher(engine, now, _config("{JobType: {MC: 5}}")), count=9).claimed) == 5


def test_a_limit_that_another_process_left_uncounted_is_counted_without_a_new_configuration(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(engine, now, 4)
    monkeypatch.setattr(compiled_rules, "_AGAIN", 600.0)
    follower, config = RuleFollower(engine), _config("{JobType: {MC: 2}}")
    while not follower.follow(config):
        pass
    databases.execute(engine, text("UPDATE scope_rules SET counted = false"))
    assert follower.follow(config), "the database is not read for each request"
    monkeypatch.setattr(compiled_rules, "_AGAIN", 0.0)
    follower._until = 0.0
    wait.until(lambda: follower.follow(config))
    with database.reading(engine) as conn:
        assert [(each.n, each.opened) for each in rules.list_rules(conn)] == [(0, True)]


def test_new_limits_of_many_scopes_are_counted_a_few_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_rules, "_TOGETHER", 1)
    follower, config = RuleFollower(engine), _limit_sites(3)
    wanted = compiled_rules.list_rules(config)
    follower._store(wanted, (config.version, config.expiries), wanted)

    def count_opened() -> int:
        with database.reading(engine) as conn:
            return sum(each.opened for each in rules.list_rules(conn))

    found = []
    for _ in range(3):
        follower.count_new(seconds=0)
        found.append(count_opened())
    assert found == [1, 2, 3]


def test_a_limit_that_a_process_of_1_0_has_half_counted_is_counted_anew(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 9)
    taken = _ask(queued_jobs.matcher(engine, now, queued_jobs.grid()), count=4).claimed
    config = _config("{JobType: {MC: 6}}", version=2)
    [[wanted]] = compiled_rules.list_rules(config).values()
    with database.writing(engine) as conn:  # as it stores a rule, and marks two attempts of four
        scopes.lock_scopes(conn, [SITE])
        rules.insert_rules(conn, [wanted])
        conn.execute(text("UPDATE scope_rules SET opened = false, counted = true, n = 2"))
        [before] = rules.list_rules(conn)
        for job in taken[:2]:
            mark = attempts.c.lease == job.lease
            text_of_mark = rules.format_countings([before.counting])
            conn.execute(update(attempts).where(mark).values(counted_by=text_of_mark))
    for job in (taken[0], taken[3]):
        queued_jobs.release(engine, now, job.lease)
    with database.reading(engine) as conn:
        numbers = conn.execute(select(scope_returns.c.number)).scalars().all()
        assert (before.opened, numbers) == (False, [-1]), "it has counted one of the two that ended"
    matcher = queued_jobs.matcher(engine, now, config)
    matcher.refresh()
    with database.writing(engine) as conn:  # what it still does, with the id that it knows
        for what in ("n = n + 2", "opened = true"):
            conn.execute(text(f"UPDATE scope_rules SET {what} WHERE rule_id = {before.rule_id}"))
    assert scope_counters.agree(engine)
    assert len(_ask(matcher, count=9).claimed) == 4
    assert scope_counters.agree(engine)


def _limit_sites(sites: int) -> Configuration:
    limits = ", ".join(f"S.{number}.org: {{JobType: {{MC: 2}}}}" for number in range(sites))
    return queued_jobs.grid(
        queued_jobs.GRID + f"Operations: {{Defaults: {{JobScheduling: {{RunningLimit: {{{limits}}}}}}}}}\n", 1
    )


def test_new_limits_of_many_sites_are_stored_and_opened_together(engine: Engine) -> None:
    sites, statements = 200, databases.record_statements(engine)
    follower, config = RuleFollower(engine), _limit_sites(sites)
    wait.until(lambda: follower.follow(config))
    with database.reading(engine) as conn:
        assert [each.opened for each in rules.list_rules(conn)] == [True] * sites
    assert len(statements) < 2 * sites, "each is counted by a statement of its own, and little more"


def test_all_limits_of_a_version_are_stored_before_anything_is_claimed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_rules, "_AT_A_TIME", 0.0)
    assert not RuleFollower(engine).follow(_limit_sites(120))
    with database.reading(engine) as conn:
        assert len(rules.list_rules(conn)) == 120


def test_a_locked_scope_keeps_only_its_own_limits_waiting(postgresql: Engine) -> None:
    follower, config = RuleFollower(postgresql), _limit_sites(5)

    def list_opened() -> list[str]:
        with database.reading(postgresql) as conn:
            return sorted(each.scope for each in rules.list_rules(conn) if each.opened)

    with database.writing(postgresql) as conn:
        scopes.lock_scopes(conn, ["S.2.org"])
    with database.writing(postgresql) as conn:
        # Not as a claim locks it: all rules would wait for the end of that.
        conn.execute(text("UPDATE scopes SET site = site WHERE scope = 's.2.org'"))
        wait.until(lambda: not follower.follow(config) and len(list_opened()) == 4)
    wait.until(lambda: follower.follow(config))
    assert list_opened() == [f"s.{number}.org" for number in range(5)]


def test_a_scope_that_stays_locked_keeps_only_its_own_stored_limits_closed(postgresql: Engine) -> None:
    follower, config = RuleFollower(postgresql), _limit_sites(5)
    wanted = compiled_rules.list_rules(config)
    assert follower._store(wanted, (config.version, config.expiries), wanted)
    with database.writing(postgresql) as conn:
        conn.execute(text("UPDATE scopes SET site = site WHERE scope IN ('s.0.org', 's.1.org')"))
        for _ in range(6):
            assert not follower.count_new(seconds=0.0)
        with database.reading(postgresql) as other:
            assert {each.scope for each in rules.list_uncounted(other)} == {"s.0.org", "s.1.org"}
    assert follower.count_new()


def test_what_runs_is_read_once_for_all_new_limits_of_a_scope(engine: Engine, now: datetime) -> None:
    _put(engine, now, 1)
    assert len(_ask(queued_jobs.matcher(engine, now, queued_jobs.grid()), SHORT).claimed) == 1
    limits = "JobType: {MC: 2, Merge: 3, Test: 4}, VO: {lhcb: 2}"
    follower, config = RuleFollower(engine), _config(f"{{{limits}}}", version=2)
    wanted = compiled_rules.list_rules(config)
    assert follower._store(wanted, (config.version, config.expiries), wanted)
    statements = databases.record_statements(engine)
    wait.until(follower.count_new)
    assert sum("count(*)" in each and "GROUP BY" in each for each in statements) == 1
    with database.reading(engine) as conn:
        found = {(each.attribute, each.value): each.n for each in rules.list_rules(conn)}
    assert found == {("JobType", "mc"): 1, ("JobType", "merge"): 0, ("JobType", "test"): 0, ("VO", "lhcb"): 1}


def test_rules_count_as_stored_only_when_their_version_does(postgresql: Engine) -> None:
    wait.until(lambda: RuleFollower(postgresql).follow(_limit_sites(1)))
    follower, newer = RuleFollower(postgresql), replace(_limit_sites(1), version=2)
    with database.writing(postgresql) as conn:
        conn.execute(text("UPDATE installation SET epoch_floor = epoch_floor"))
        assert not follower.follow(newer)
    wait.until(lambda: follower.follow(newer))
    with database.reading(postgresql) as conn:
        assert rules.read_version(conn) == (2, newer.expiries)


def test_a_claim_that_waits_while_a_limit_is_mended_finds_it_right(postgresql: Engine, now: datetime) -> None:
    _put(postgresql, now, 4)
    assert (
        len(_ask(queued_jobs.matcher(postgresql, now, _config("{JobType: {MC: 2}}")), count=9).claimed) == 2
    )

    def lock() -> list[tuple[str, bool, int]]:
        with database.writing(postgresql) as conn:
            locked = rules.lock_rules(conn, [SITE.lower()], wait=True)
            return [(each.value, each.opened, each.n) for each in locked.rules]

    with ThreadPoolExecutor(1) as threads:
        with database.writing(postgresql) as conn:
            conn.execute(text("UPDATE scope_rules SET n = 7"))
            [difference] = rule_counters.list_differences(conn, compiled_rules.counts)
            rule_counters.mend(conn, difference.rule, compiled_rules.counts)
            waiter = threads.submit(lock)
            wait.until(lambda: waiter.done() or databases.count_lock_waits(postgresql))
        assert waiter.result() == [("mc", True, 2)]


def test_returns_are_read_once_however_many_rules_a_scope_has(postgresql: Engine, now: datetime) -> None:
    _put(postgresql, now, 3)
    matcher = queued_jobs.matcher(postgresql, now, _config("{JobType: {MC: 5, Merge: 5, Test: 5}}"))
    assert len(_ask(matcher, count=3).claimed) == 3
    databases.execute(postgresql, text("UPDATE attempts SET closed_at = opened_at, closed_as = 'killed'"))
    with database.writing(postgresql) as conn:
        rows = conn.execute(rules.LOCK_FREE, {"ids": [SITE.lower()]}).all()
    assert [len(row.returned or ()) for row in rows] == [3, 0, 0]


def test_counting_goes_on_between_the_claims_for_other_places(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(engine, now, 9)
    assert len(_ask(queued_jobs.matcher(engine, now, queued_jobs.grid()), count=4).claimed) == 4
    monkeypatch.setattr(compiled_rules, "_TOGETHER", 1)
    monkeypatch.setattr(compiled_rules, "_AT_A_TIME", -1.0)
    limits = "{JobType: {MC: 5}}, A.0.org: {JobType: {MC: 1}}"
    matcher = queued_jobs.matcher(engine, now, _config(limits, version=2))
    here, there = queued_jobs.at(LONG), queued_jobs.at(queued_jobs.ELSEWHERE)
    closed, free = matcher.serve([queued_jobs.request(**here), queued_jobs.request(**there)])
    assert isinstance(closed, ClaimResult)
    assert isinstance(free, ClaimResult)
    assert (closed.claimed, closed.in_other_hands, len(free.claimed)) == ((), True, 1)
    assert len(_ask(matcher, count=9).claimed) == 1
    assert scope_counters.agree(engine)


def _hold_end(conn: Connection, lease: str, how: str, now: datetime) -> None:
    """End an attempt, in a transaction that is not committed yet."""
    match how:
        case "release":
            pilot_reports.release(conn, lease, reason="", max_rescheduling=9, now=now)
        case "finish":
            pilot_reports.start(conn, lease, lease_time=LEASE, now=now)
            pilot_reports.finish(conn, lease, PayloadResult(status="Done"), now=now)
        case "recall":
            assert lifecycle.recall(conn, lease, reason="", now=now)
        case _:
            expiry.expire_leases(conn, silent_since={"lhcb": now + 10 * LEASE}, now=now + 10 * LEASE)


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("how", ["release", "finish", "recall", "expire"])
def test_a_limit_that_is_stored_while_an_attempt_ends_counts_it_until_then_and_returns_it_once(
    postgresql: Engine, now: datetime, how: str, *, is_committed: bool
) -> None:
    _put(postgresql, now, 5)
    taken = _ask(queued_jobs.matcher(postgresql, now, queued_jobs.grid()), count=3).claimed
    follower, config = (
        RuleFollower(postgresql),
        _config("{JobType: {MC: 4}, CEs: {ce1: {JobType: {MC: 9}}}}", version=2),
    )
    with database.writing(postgresql) as conn:
        lasting = attempts.c.lease != taken[0].lease
        conn.execute(update(attempts).where(lasting).values(lease_expires_at=now + 99 * LEASE))
    with contextlib.suppress(InterruptedError), database.writing(postgresql) as conn:
        _hold_end(conn, taken[0].lease, how, now)
        for _ in range(3):
            assert not follower.follow(config), "the end has not seen the limit"
        with database.writing(postgresql) as other:  # this one has: it comes before the count
            _hold_end(other, taken[1].lease, "finish", now)
        if not is_committed:
            raise InterruptedError
    wait.until(lambda: follower.follow(config))
    assert scope_counters.agree(postgresql)
    for job in taken:
        with contextlib.suppress(StaleLease, IllegalTransition):
            queued_jobs.release(postgresql, now, job.lease)
        assert scope_counters.agree(postgresql)


def test_an_end_that_is_under_way_while_a_limit_is_counted_is_returned_afterwards(
    postgresql: Engine, now: datetime
) -> None:
    _put(postgresql, now, 5)
    taken = _ask(queued_jobs.matcher(postgresql, now, queued_jobs.grid()), count=3).claimed
    follower, config = RuleFollower(postgresql), _config("{JobType: {MC: 4}}", version=2)
    wanted = compiled_rules.list_rules(config)
    assert follower._store(wanted, (config.version, config.expiries), wanted)
    with database.reading(postgresql) as conn:
        new = rules.list_uncounted(conn)
    with database.writing(postgresql) as ending:
        pilot_reports.release(ending, taken[0].lease, reason="", max_rescheduling=9, now=now)
        with database.writing(postgresql) as conn:
            scopes.lock_scopes(conn, [SITE])
            rule_counters.count_rules(conn, new, compiled_rules.counts)
        assert scope_counters.agree(postgresql)
    assert scope_counters.agree(postgresql)
    assert len(_ask(queued_jobs.matcher(postgresql, now, config), count=9).claimed) == 2


def test_a_locked_scope_delays_no_other_and_is_waited_for_at_last(postgresql: Engine, now: datetime) -> None:
    _put(postgresql, now, 9)
    matcher = queued_jobs.matcher(postgresql, now, _config("{JobType: {MC: 5}}"))
    here, there = queued_jobs.at(LONG), queued_jobs.at(queued_jobs.ELSEWHERE)
    matcher.refresh()
    with database.writing(postgresql) as rival:
        scopes.lock_scopes(rival, [SITE])
        for _ in range(6):  # the last ones wait for a moment
            busy, free = matcher.serve([queued_jobs.request(**here), queued_jobs.request(**there)])
            assert isinstance(busy, ClaimResult)
            assert isinstance(free, ClaimResult)
            assert (busy.claimed, busy.refused, busy.in_other_hands) == ((), None, True)
            assert free.claimed or free.emptied or _count(postgresql, "site = 'C.D.ch'") > 1
    assert _ask(matcher).claimed or _count(postgresql, f"site = '{SITE}'") > 0
    assert scope_counters.agree(postgresql)


MOST = {1: 5, 2: 4, 3: 6}  # by version of the configuration
CONFIGS = {
    number: _config(f"{{JobType: {{MC: {limit}}}, CEs: {{ce1: {{JobType: {{MC: 4}}}}}}}}", number)
    for number, limit in MOST.items()
}


def _put_of_all_sizes(engine: Engine, now: datetime) -> None:
    for cores in ((1, 1), (1, 4), (2, 8)):
        _put(engine, now, 50, cores=cores)


def _claim_and_end(engine: Engine, now: datetime, held: list[str], seed: int) -> None:
    """One matcher, with one of the configurations, and pilots that end jobs of any matcher."""
    draw = Random(seed)
    matcher = queued_jobs.matcher(engine, now, CONFIGS[1 + seed % 3], seed)
    for _ in range(12):
        cores = draw.choice((None, 1, 8))
        look = _ask(matcher, draw.choice((LONG, SHORT)), draw.choice((1, 1, 3)), cores=cores)
        held.extend(each.lease for each in look.claimed)
        for _ in range(draw.randint(0, 3)):
            with contextlib.suppress(IndexError, StaleLease, IllegalTransition):
                _end(engine, now, held.pop(), draw.randrange(4))


def _end(engine: Engine, now: datetime, lease: str, how: int) -> None:
    with database.writing(engine) as conn:
        match how:
            case 0:
                pilot_reports.release(conn, lease, reason="", max_rescheduling=9, now=now)
            case 1:
                pilot_reports.start(conn, lease, lease_time=LEASE, now=now)
                pilot_reports.finish(conn, lease, PayloadResult(status="Done"), now=now)
            case 2:
                lifecycle.recall(conn, lease, reason="", now=now)
            case _:
                pilot_reports.release(conn, lease, reason="", max_rescheduling=9, now=now)
                raise StaleLease("the transaction is rolled back")


def _watch(engine: Engine, over: threading.Event) -> None:
    """Look again and again, the last time after everything is over."""
    is_last = False
    while not is_last:
        is_last = over.is_set()
        with scope_counters.snapshot(engine) as conn:
            if all(each.opened for each in rules.list_rules(conn)):
                assert not scope_counters.find_differences(conn)
            there = conn.execute(text("SELECT count(*) FROM attempts WHERE closed_at IS NULL")).scalar_one()
            assert there <= max(MOST.values())


def test_counters_hold_while_everything_happens_at_once(engine: Engine, now: datetime) -> None:
    """Threads claim, end and change the limit; each snapshot agrees with the counters."""
    _put_of_all_sizes(engine, now)
    over = threading.Event()
    held: list[str] = []
    with ThreadPoolExecutor(5) as threads:
        watching = threads.submit(_watch, engine, over)
        claiming = [threads.submit(_claim_and_end, engine, now, held, seed) for seed in range(4)]
        try:
            errors = [each.exception() for each in claiming]
        finally:
            over.set()
        watching.result()
    assert errors == [None] * 4
    assert scope_counters.agree(engine)
    assert databases.scalar(engine, text("SELECT max(processors) FROM attempts")) > 1


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules of the last release."""
    return earlier_release.unpack(tmp_path_factory.mktemp("program"))


def test_counters_hold_beside_matchers_of_the_last_release_while_limits_change(
    engine: Engine, database_url: str, now: datetime, program: Path, tmp_path: Path
) -> None:
    """Either release stores and counts limits; each snapshot agrees with the counters."""
    _put_of_all_sizes(engine, now)
    trees = tmp_path / "trees.yaml"
    texts = [
        LIMITS.format(limits=f"{{JobType: {{MC: {limit}}}, CEs: {{ce1: {{JobType: {{MC: 4}}}}}}}}")
        for limit in MOST.values()
    ]
    trees.write_text("---\n".join(queued_jobs.GRID + each for each in texts))
    script = ROOT / "tests" / "support" / "scripts" / "earlier_matcher.py"
    over = threading.Event()
    held: list[str] = []
    with ThreadPoolExecutor(3) as threads, contextlib.ExitStack() as stack:
        watching = threads.submit(_watch, engine, over)
        words = [sys.executable, "-P", str(script), database_url, str(trees), now.isoformat()]
        environment = {**os.environ, "PYTHONPATH": str(program)}
        earlier = [
            stack.enter_context(
                subprocess.Popen(
                    [*words, str(seed), "12"],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for seed in range(2)
        ]
        claiming = [threads.submit(_claim_and_end, engine, now, held, seed) for seed in range(2)]
        try:
            errors = [each.exception() for each in claiming]
            outputs = [each.communicate()[0] for each in earlier]
        finally:
            over.set()
        watching.result()
    assert errors == [None] * 2
    assert outputs == [f"{program}\n"] * 2
    assert scope_counters.agree(engine)


def test_a_listing_does_not_take_off_twice_what_an_advertisement_has_acknowledged(
    engine: Engine, now: datetime
) -> None:
    """A pilot hands its job back, and the site advertises before the next claim there."""
    _put(engine, now, 20)
    matcher = queued_jobs.matcher(engine, now, _config("{}", throttled=True))
    matcher.refresh()
    _advertise(engine, now, 0)
    [taken] = _ask(matcher).claimed
    queued_jobs.release(engine, now, taken.lease)
    _advertise(engine, now, 6)
    with database.reading(engine) as conn:
        [rule] = rules.read_rules(conn, [SITE.lower()])
    assert rule.n == 0
    asked = queued_jobs.request(**queued_jobs.at(LONG))
    assert not demand.get_matching_task_queues(matcher, asked.presented, asked.caller)


def _advertise(engine: Engine, now: datetime, submitting: int) -> None:
    with database.writing(engine) as conn:
        said = {"CurrentSubmittingJobs": submitting}
        as_of = create_watermark(conn, SITE)
        assert accept_advertisement(conn, SITE, Advertisement(attributes=said, as_of=as_of), now=now)


def test_reservations_are_a_counter_that_advertisements_set_anew(engine: Engine, now: datetime) -> None:
    _put(engine, now, 20)
    matcher = queued_jobs.matcher(engine, now, _config("{}", throttled=True))

    def agree() -> bool:
        with database.reading(engine) as conn:
            [rule] = rules.read_rules(conn, [SITE.lower()])
            there = conn.execute(select(func.count()).select_from(reservations)).scalar_one()
        return rule.n <= there

    matcher.refresh()
    _advertise(engine, now, 0)
    first = list(_ask(matcher, count=4).claimed)
    assert len(first) == 4
    pilot_reports.release(engine, first[0].lease, reason="", max_rescheduling=3, now=now)
    pilot_reports.start(engine, first[1].lease, lease_time=LEASE, now=now)
    assert len(_ask(matcher, count=9).claimed) == 3
    assert _ask(matcher).refused == "throttled"
    assert agree()
    _advertise(engine, now, 1)
    assert _ask(matcher).refused == "throttled"
    with database.writing(engine) as conn:
        pilot_reports.start(conn, first[2].lease, lease_time=LEASE, now=now)
        assert control.reschedule_jobs(conn, [first[2].job_id], source="test", now=now, maximum=9) == [
            first[2].job_id
        ]
    assert _ask(matcher).refused == "throttled", "it may still run"
    _advertise(engine, now, 1)
    assert len(_ask(matcher, count=9).claimed) == 1
    assert agree()
    assert databases.scalar(engine, select(scope_rules.c.n)) == 5


def _throttle_uncounted(engine: Engine) -> tuple[RuleFollower, list[rules.StoredRule]]:
    """A follower that has stored a new throttle, which it does not count yet."""
    follower, config = RuleFollower(engine), _config("{}", throttled=True)
    wanted = compiled_rules.list_rules(config)
    assert follower._store(wanted, (config.version, config.expiries), wanted)
    with database.reading(engine) as conn:
        return follower, rules.list_uncounted(conn)


def test_a_process_of_1_0_that_accepts_an_advertisement_opens_no_uncounted_throttle(engine: Engine) -> None:
    _throttle_uncounted(engine)
    # As 1.0 does, which knows nothing of rules that are not counted.
    databases.execute(engine, update(scope_rules).where(scope_rules.c.kind == "throttle").values(n=0))
    assert databases.scalar(engine, select(scope_rules.c.n)) == rules.FULL


def test_a_throttle_that_another_process_has_counted_meanwhile_is_not_counted_again(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 20)
    claimed = _ask(queued_jobs.matcher(engine, now, queued_jobs.grid()), count=4).claimed
    with database.writing(engine) as conn:
        for job in claimed:
            pilot_reports.start(conn, job.lease, lease_time=LEASE, now=now)
    follower, new = _throttle_uncounted(engine)
    follower._count(new)
    for _ in range(2):
        _advertise(engine, now, 4)
    follower._count(new)
    with database.reading(engine) as conn:
        [rule] = rules.read_rules(conn, [SITE.lower()])
        there = conn.execute(select(func.count()).select_from(reservations)).scalar_one()
    assert (rule.n, there) == (0, 0)


def test_a_job_whose_type_has_changed_before_its_task_queue_counts_for_its_own_limit(
    engine: Engine, now: datetime
) -> None:
    """The default of `JobType` changes: jobs are written a page at a time, their task queue at the end."""
    limits, default = (
        "JobScheduling: {RunningLimit: {A.B.ch: {JobType: {User: 5, Merge: 1}}}}",
        "JobDescription: {JobType: {default: %s}}",
    )
    first, second = (
        submitted_jobs.grid(
            f"{submitted_jobs.GRID}Operations: {{Defaults: {{{default % job_type}, {limits}}}}}\n", version
        )
        for version, job_type in ((1, "User"), (2, "Merge"))
    )
    submission.submit(engine, first, submitted_jobs.ANN, [{"Executable": "a"}] * 6, now=now)
    matcher = queued_jobs.matcher(engine, now, first)
    options = options_for(second, "lhcb")
    with database.writing(engine) as conn:
        known = dict(reclassification.list_outdated(conn, "lhcb", options, after=0, most=1))
        reclassification.derive_again(conn, known=known, options=options, now=now, most=3)

    place = QueueAddress(site=SITE, ce="ce", queue="big")
    claimed = [job for _ in range(6) for job in _ask(matcher, place).claimed]
    assert _count(engine, "job_id IN (SELECT job_id FROM jobs WHERE job_type = 'Merge')") <= 1
    assert scope_counters.agree(engine)
    for job in claimed:
        queued_jobs.release(engine, now, job.lease)
    with scope_counters.snapshot(engine) as conn:
        assert {counted for _, counted in scope_counters.list_counts(conn)} == {JobsAndCores()}


def test_a_limit_of_before_the_upgrade_counts_the_cores_that_run_and_what_ends_meanwhile(
    engine: Engine, now: datetime
) -> None:
    _put(engine, now, 9, cores=(1, 8))
    config = _config("{JobType: {MC: 6}}")
    taken = [job for _ in range(4) for job in _ask(queued_jobs.matcher(engine, now, config), cores=4).claimed]
    assert [job.allotment.processors for job in taken] == [4] * 4
    with database.writing(engine) as conn:  # as the migration leaves it
        conn.execute(update(scope_rules).values(cores=None))
        pilot_reports.release(conn, taken[0].lease, reason="", max_rescheduling=3, now=now)
    matcher = queued_jobs.matcher(engine, now, config)
    matcher.refresh()
    with database.reading(engine) as conn:
        [(rule, counted)] = scope_counters.list_counts(conn)
        assert (rule.cores, counted) == (16, JobsAndCores(3, 12))
    assert len(_ask(matcher, count=9, cores=8).claimed) == 3
    assert scope_counters.agree(engine)


def test_counted_cores_that_are_wrong_are_mended(engine: Engine, now: datetime) -> None:
    _put(engine, now, 2, cores=(8, 8))
    config = _config("{JobType: {MC: 6}}")
    assert _ask(queued_jobs.matcher(engine, now, config), cores=8).claimed
    databases.execute(engine, update(scope_rules).values(cores=3))
    memory = ScopeCountersState()
    cycles = [agent.cycle(engine, config, now=now, holder="one", memory=memory) for _ in range(2)]
    assert [each.mended for each in cycles if each is not None] == [0, 1]
    assert scope_counters.agree(engine)


def test_a_rule_that_a_process_of_1_0_gives_a_new_id_counts_its_cores_again(
    postgresql: Engine, now: datetime
) -> None:
    _put(postgresql, now, 2, cores=(8, 8))
    matcher = queued_jobs.matcher(postgresql, now, _config("{JobType: {MC: 6}}"))
    assert _ask(matcher, cores=8).claimed
    with database.writing(postgresql) as conn:  # as it mends a counter
        conn.execute(text("UPDATE scope_rules SET rule_id = DEFAULT, n = 0, opened = false"))
        assert conn.execute(select(scope_rules.c.cores)).scalars().all() == [None]
    queued_jobs.matcher(postgresql, now, _config("{JobType: {MC: 6}}")).refresh()
    assert scope_counters.agree(postgresql)
