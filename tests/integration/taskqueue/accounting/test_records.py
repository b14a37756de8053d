"""Usage records: each attempt once, with what the accounting counted for it."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, func, select, update

from requirements.resource import Location
from taskqueue.accounting import records, usage
from taskqueue.accounting.records import UsageRecord
from taskqueue.accounting.usage import Usage
from taskqueue.db import database
from taskqueue.jobs import control
from taskqueue.leases import expiry
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import accounted_use, attempts
from tests.support.factories import accounted_jobs, pilot_reports

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SITE = "LCG.A.org"
PLACE = Location(site=SITE, ce="ce1", queue="long")


def _read(conn: Connection, now: datetime, *, site: str = SITE, most: int = 2) -> list[UsageRecord]:
    """All records of the day, in small pages."""
    found: list[UsageRecord] = []
    after: int | None = 0
    while after is not None:
        page = records.read_page(conn, site=site, since=now, until=now + 24 * HOUR, after=after, most=most)
        found += page.records
        after = page.last
    return found


def _work(conn: Connection, now: datetime) -> None:
    """Jobs that end in each way, and others: elsewhere, running, waiting."""
    begin, finish, later = accounted_jobs.begin, accounted_jobs.finish, now + HOUR
    job_ids = accounted_jobs.put(conn, now, 8)
    done, failed, released, lost, resumed, killed, *_ = begin(conn, job_ids, now, place=PLACE)
    conn.execute(update(attempts).where(attempts.c.lease == done).values(processors=4))
    finish(conn, [done], now + 2 * HOUR, PayloadResult(status="Done", cpu_seconds=20_000.5, cpu_power=10.0))
    finish(conn, [failed], later, PayloadResult(status="Failed", cpu_seconds=1e9))
    pilot_reports.release(conn, released, reason="slot ends", max_rescheduling=0, now=later)
    by_lease = dict(conn.execute(select(attempts.c.lease, attempts.c.job_id)).all())
    for lease in (lost, resumed):
        pilot_reports.heartbeat(conn, lease, lease_time=HOUR, now=now)
    silent = {"lhcb": now + MINUTE}
    conn.execute(
        update(attempts)
        .where(attempts.c.closed_at.is_(None), attempts.c.lease.not_in([lost, resumed]))
        .values(heartbeat_at=later)
    )
    expiry.mark_stalled(conn, silent_since=silent, now=later)
    assert pilot_reports.give_up(conn, "lhcb", stalled_since=later + MINUTE, now=later) == (
        sorted([by_lease[lost], by_lease[resumed]]),
        [],
    )
    pilot_reports.heartbeat(conn, resumed, lease_time=HOUR, now=now + 2 * HOUR)
    finish(conn, [resumed], now + 3 * HOUR, PayloadResult(status="Done", cpu_seconds=100.0))
    assert control.kill_jobs(conn, [by_lease[killed]], source="test", now=later)
    finish(conn, [killed], now + 2 * HOUR)
    elsewhere = accounted_jobs.put(conn, now, owner="bob")
    finish(conn, begin(conn, elsewhere, now), later)


def test_records_add_up_to_what_was_accounted(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _work(conn, now)
    accounted_jobs.count(engine, now + 4 * HOUR)
    with database.reading(engine) as conn:
        found = _read(conn, now)
        sums = [func.sum(accounted_use.c[name]) for name in usage.SUM_NAMES]
        accounted = conn.execute(select(*sums).where(accounted_use.c.site == SITE)).one()
        counted = records.count_accounted(conn, site=SITE, since=now, until=now + 24 * HOUR)
    assert len(found) == 6
    total = sum((each.use for each in found), Usage())
    assert total.attempts == counted == 7, "the resumed one counts twice"
    for name, number in zip(usage.SUM_NAMES, accounted, strict=True):
        if name != "jobs":
            assert getattr(total, name) == pytest.approx(float(number)), name


def test_a_record_says_who_used_what_and_when(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        leases = accounted_jobs.begin(conn, accounted_jobs.put(conn, now), now, place=PLACE)
        conn.execute(update(attempts).values(processors=4, peak_ram_mb=900))
        report = PayloadResult(status="Done", cpu_seconds=7200.0)
        accounted_jobs.finish(conn, leases, now + HOUR, report)
    with database.reading(engine) as conn:
        [found] = _read(conn, now)
    assert (found.vo, found.owner, found.ce, found.queue) == ("lhcb", "alice", "ce1", "long")
    assert (found.started_at, found.ended_at, found.epoch) == (now, now + HOUR, 1)
    assert (found.processors, found.peak_ram_mb) == (4, 900)
    assert (found.use.wall_seconds, found.use.cpu_seconds) == (3600, 7200)


def test_a_record_is_of_the_period_in_which_the_attempt_ended(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        leases = accounted_jobs.begin(conn, accounted_jobs.put(conn, now, 2), now - HOUR, place=PLACE)
        accounted_jobs.finish(conn, leases[:1], now)
        accounted_jobs.finish(conn, leases[1:], now + 24 * HOUR)
    with database.reading(engine) as conn:
        assert [each.use.wall_seconds for each in _read(conn, now)] == [3600]
        assert [each.use.wall_seconds for each in _read(conn, now + 24 * HOUR)] == [25 * 3600]
