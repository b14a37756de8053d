"""What jobs used, and for what they waited, is summed by the hour: each attempt and each end once."""

import contextlib
from collections import Counter
from dataclasses import asdict
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, Table, func, select, update

from agents import accounting
from requirements.resource import Location
from taskqueue.accounting import usage
from taskqueue.accounting.usage import Usage
from taskqueue.db import database
from taskqueue.jobs import control
from taskqueue.leases import expiry
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import accounted_use, accounted_waits, attempts, job_flows
from taskqueue.task_queues import wait_causes
from taskqueue.task_queues.wait_causes import WaitCause
from tests.support import crashes, databases
from tests.support.factories import accounted_jobs, pilot_reports, queued_jobs

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PLACE = Location(site="LCG.A.org", ce="ce1", queue="long")


@pytest.fixture(params=databases.LAYOUTS)
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(databases.FIXTURES[request.param])
    return url


def _cycle(engine: Engine, now: datetime) -> None:
    accounted_jobs.count(engine, now, holder="test")


def _sum(engine: Engine, table: Table, name: str, *by: str) -> dict[object, float]:
    columns = [table.c[each] for each in by]
    with database.reading(engine) as conn:
        rows = conn.execute(select(*columns, func.sum(table.c[name])).group_by(*columns)).all()
    found = ((values if len(by) > 1 else values[0], total) for *values, total in rows)
    return {
        tuple(key) if isinstance(key, list) else key: round(float(total), 3) for key, total in found if total
    }


def test_an_attempt_counts_where_and_when_its_time_was_spent(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        leases = accounted_jobs.begin(conn, accounted_jobs.put(conn, now), now + MINUTE, place=PLACE)
        conn.execute(update(attempts).values(processors=4))
        done = PayloadResult(status="Done", exit_code=0, cpu_seconds=7200.0, cpu_power=10.0)
        accounted_jobs.finish(conn, leases, now + 2 * HOUR + MINUTE, done)
    _cycle(engine, now + 3 * HOUR)
    with database.reading(engine) as conn:
        rows = conn.execute(select(accounted_use).order_by(accounted_use.c.hour)).mappings().all()
    assert {
        (row["vo"], row["site"], row["ce"], row["queue"], row["owner"], row["status"]) for row in rows
    } == {("lhcb", "LCG.A.org", "ce1", "long", "alice", "Done")}
    assert [row["hour"] for row in rows] == [now, now + HOUR, now + 2 * HOUR]
    assert [row["wall_seconds"] for row in rows] == pytest.approx([59 * 60, 3600, 60])
    assert [row["core_seconds"] for row in rows] == pytest.approx([4 * 59 * 60, 4 * 3600, 4 * 60])
    assert sum(row["cpu_seconds"] for row in rows) == pytest.approx(7200)
    assert sum(row["normalised_seconds"] for row in rows) == pytest.approx(72_000)
    assert [(row["jobs"], row["attempts"]) for row in rows] == [(0, 0), (0, 0), (1, 1)]


def test_what_no_pilot_told_is_not_taken_for_idle(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        for told in (None, 1800.0):
            [lease] = accounted_jobs.begin(conn, accounted_jobs.put(conn, now), now)
            accounted_jobs.finish(conn, [lease], now + HOUR, PayloadResult(status="Failed", cpu_seconds=told))
    _cycle(engine, now + 2 * HOUR)
    assert _sum(engine, accounted_use, "wall_seconds", "status") == {"Failed": 7200}
    assert _sum(engine, accounted_use, "told_core_seconds", "status") == {"Failed": 3600}
    assert _sum(engine, accounted_use, "cpu_seconds", "status") == {"Failed": 1800}
    assert _sum(engine, accounted_use, "normalised_seconds", "status") == {}


def test_no_attempt_counts_more_cpu_time_than_its_cores_can_have_used(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        leases = accounted_jobs.begin(conn, accounted_jobs.put(conn, now), now)
        conn.execute(update(attempts).values(processors=2))
        done = PayloadResult(status="Done", cpu_seconds=1e11, cpu_power=3.0)
        accounted_jobs.finish(conn, leases, now + HOUR, done)
    _cycle(engine, now + 2 * HOUR)
    assert _sum(engine, accounted_use, "cpu_seconds", "status") == {"Done": 7920}
    assert _sum(engine, accounted_use, "normalised_seconds", "status") == {"Done": 23760}


def test_no_processor_counts_more_than_one_can_have(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        leases = accounted_jobs.begin(conn, accounted_jobs.put(conn, now), now)
        done = PayloadResult(status="Done", cpu_seconds=10.0, cpu_power=1_000_000.0)
        accounted_jobs.finish(conn, leases, now + HOUR, done)
    _cycle(engine, now + 2 * HOUR)
    assert _sum(engine, accounted_use, "normalised_seconds", "status") == {"Done": 10_000}


def test_a_killed_job_ends_at_once_and_its_attempt_when_its_pilot_says_so(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, now, 2)
        leases = accounted_jobs.begin(conn, job_ids, now)
        control.kill_jobs(conn, job_ids, source="test", now=now + HOUR)
    _cycle(engine, now + HOUR + 5 * MINUTE)
    assert _sum(engine, accounted_use, "jobs", "status") == {"Killed": 2}
    assert _sum(engine, accounted_use, "wall_seconds", "status") == {}
    with database.writing(engine) as conn:
        accounted_jobs.finish(conn, leases[:1], now + 2 * HOUR)
        assert (
            expiry.close_killed(conn, silent_since={"lhcb": now + 3 * HOUR}, now=now + 3 * HOUR)
            == job_ids[1:]
        )
    _cycle(engine, now + 4 * HOUR)
    assert _sum(engine, accounted_use, "jobs", "status") == {"Killed": 2}
    assert _sum(engine, accounted_use, "attempts", "status") == {"Killed": 2}
    assert _sum(engine, accounted_use, "wall_seconds", "status") == {"Killed": 5 * 3600}


def test_every_way_in_which_an_attempt_is_closed_counts_it_once(engine: Engine, now: datetime) -> None:
    later = now + HOUR
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, now, 6)
        done, failed, released, taken, _, silent = accounted_jobs.begin(conn, job_ids, now)
        accounted_jobs.finish(conn, [done], later)
        accounted_jobs.finish(conn, [failed], later, PayloadResult(status="Failed"))
        pilot_reports.release(conn, released, reason="slot ends", max_rescheduling=3, now=later)
        by_lease = dict(conn.execute(select(attempts.c.lease, attempts.c.job_id)).all())
        assert control.reschedule_jobs(conn, [by_lease[taken]], source="test", now=later, maximum=3) == [
            by_lease[taken]
        ]
        pilot_reports.heartbeat(conn, silent, lease_time=HOUR, now=now)
        expiry.mark_stalled(conn, silent_since={"lhcb": later}, now=later)
        pilot_reports.give_up(conn, "lhcb", stalled_since=later + MINUTE, max_rescheduling=0, now=later)
    _cycle(engine, now + 2 * HOUR)
    closed = databases.scalar(engine, select(func.count()).where(attempts.c.closed_at.is_not(None)))
    counted = _sum(engine, accounted_use, "attempts", "status")
    assert sum(counted.values()) == closed == 6
    assert _sum(engine, accounted_use, "wall_seconds", "vo") == {"lhcb": 6 * 3600}
    assert counted == {"Done": 1, "Failed": 3, "Rescheduled": 2}
    assert _sum(engine, accounted_use, "jobs", "status") == {"Done": 1, "Failed": 3}


def test_a_job_that_never_ran_ends_nowhere(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        control.kill_jobs(conn, accounted_jobs.put(conn, now), source="test", now=now + HOUR)
    _cycle(engine, now + 2 * HOUR)
    assert _sum(engine, accounted_use, "jobs", "site", "status") == {("", "Killed"): 1}
    assert _sum(engine, accounted_waits, "seconds", "site", "cause") == {("", "a pilot"): 3600}


def test_each_time_of_waiting_counts_with_the_end_that_it_led_to(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = accounted_jobs.put(conn, now)
        leases = accounted_jobs.begin(conn, [job_id], now + 10 * MINUTE, place=PLACE)
        accounted_jobs.finish(conn, leases, now + 20 * MINUTE, PayloadResult(status="Failed"))
    _cycle(engine, now + HOUR)
    assert _sum(engine, accounted_waits, "seconds", "status", "cause") == {("Failed", "a pilot"): 600}
    with database.writing(engine) as conn:
        assert control.reschedule_jobs(conn, [job_id], source="test", now=now + 2 * HOUR, maximum=3) == [
            job_id
        ]
        assert control.kill_jobs(conn, [job_id], source="test", now=now + 3 * HOUR)
    _cycle(engine, now + 4 * HOUR)
    assert _sum(engine, accounted_waits, "seconds", "status", "cause") == {
        ("Failed", "a pilot"): 600,
        ("Killed", "optimizers"): 3600,
    }


def test_what_kept_a_job_from_pilots_is_told_apart(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = accounted_jobs.put(conn, now)
        kept = WaitCause(
            task_queue_id=queued_jobs.task_queue_of(conn, job_id),
            cause="throttled",
            since=now,
            until=now + 15 * MINUTE,
        )
        wait_causes.record_causes(conn, [kept])
        leases = accounted_jobs.begin(conn, [job_id], now + 20 * MINUTE, place=PLACE)
        accounted_jobs.finish(conn, leases, now + HOUR)
    accounting.cycle(engine, now=now + HOUR + MINUTE, holder="test")
    assert _sum(engine, accounted_waits, "seconds", "cause") == {}, "the matchers write a minute late"
    _cycle(engine, now + HOUR + 3 * MINUTE)
    assert _sum(engine, accounted_waits, "seconds", "site", "cause") == {
        ("LCG.A.org", "throttled"): 900,
        ("LCG.A.org", "a pilot"): 300,
    }


def test_a_wrong_clock_does_not_hold_the_others_up(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first, second = accounted_jobs.put(conn, now, 2)
        assert control.kill_jobs(conn, [first], source="test", now=now + timedelta(days=365))
        assert control.kill_jobs(conn, [second], source="test", now=now + MINUTE)
    _cycle(engine, now + HOUR)
    assert _sum(engine, accounted_use, "jobs", "status") == {"Killed": 2}
    assert sum(_sum(engine, accounted_waits, "seconds", "hour").values()) == 365 * 86400 + 60


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        ((0, 60), {0: 1.0}),
        ((30, 90), {0: 0.5, 1: 0.5}),
        ((10, 10), {0: 1.0}),
        ((50, 40), {0: 1.0}),
        ((0, 180), {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}),
    ],
)
def test_a_time_is_spread_over_its_hours(
    now: datetime, minutes: tuple[int, int], expected: dict[int, float]
) -> None:
    since, until = (now + each * MINUTE for each in minutes)
    found = {(hour - now) // HOUR: share for hour, share in usage.spread_over_hours(since, until)}
    assert found == pytest.approx(expected)


def test_sums_add_up_field_by_field() -> None:
    one = Usage(jobs=1, attempts=2, wall_seconds=3.0, cpu_seconds=4.0)
    assert Counter(asdict(one + one)) == Counter({name: 2 * value for name, value in asdict(one).items()})
    assert one * 0.5 == Usage(wall_seconds=1.5, cpu_seconds=2.0)


def test_what_is_old_is_kept_by_longer_times(engine: Engine, now: datetime) -> None:
    place, at = {"place": PLACE}, now - timedelta(hours=7)  # all in one day
    with database.writing(engine) as conn:
        for hour in range(3):
            begun = at + hour * HOUR
            leases = accounted_jobs.begin(conn, accounted_jobs.put(conn, begun), begun + MINUTE, **place)
            accounted_jobs.finish(
                conn, leases, begun + 30 * MINUTE, PayloadResult(status="Done", cpu_seconds=60.0)
            )
    _cycle(engine, now)
    fine = {name: _sum(engine, accounted_use, name, "vo") for name in usage.SUM_NAMES}
    waited = _sum(engine, accounted_waits, "seconds", "cause")
    assert len(_sum(engine, accounted_use, "jobs", "hour")) == 3
    for days in (4, 91, 92):
        _cycle(engine, now + timedelta(days=days))
    [(day, number)] = _sum(engine, accounted_use, "jobs", "hour").items()
    assert (day, number) == (now.replace(hour=0), 3)
    assert {name: _sum(engine, accounted_use, name, "vo") for name in usage.SUM_NAMES} == fine
    assert _sum(engine, accounted_waits, "seconds", "cause") == waited
    assert len(_sum(engine, accounted_waits, "seconds", "hour")) == 1
    assert set(_sum(engine, job_flows, "came", "minute")) == {at + hour * HOUR for hour in range(3)}
    assert _sum(engine, job_flows, "came", "status")["Done"] == 3
    _cycle(engine, now + timedelta(days=500))
    assert _sum(engine, job_flows, "came", "status") == {}
    assert _sum(engine, accounted_use, "jobs", "vo") == {"lhcb": 3}


@pytest.mark.parametrize("statement", range(6, 26, 3))
def test_who_is_killed_while_it_folds_has_lost_and_doubled_nothing(
    engine: Engine, now: datetime, statement: int
) -> None:
    with database.writing(engine) as conn:
        leases = accounted_jobs.begin(conn, accounted_jobs.put(conn, now), now + MINUTE)
        accounted_jobs.finish(conn, leases, now + 4 * HOUR)
    _cycle(engine, now + 5 * HOUR)
    later = now + timedelta(days=100)
    with crashes.killed_at(engine, statement), contextlib.suppress(crashes.KilledError):
        accounting.cycle(engine, now=later, holder="victim")
    assert accounting.cycle(engine, now=later + HOUR, holder="heir") is not None
    assert _sum(engine, accounted_use, "wall_seconds", "hour") == {now.replace(hour=0): 4 * 3600 - 60}
    assert _sum(engine, job_flows, "came", "status")["Done"] == 1
