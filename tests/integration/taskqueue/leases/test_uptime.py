"""Silence of pilots counts only while the service was up, by what its processes record."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, select, update

from agents import lost_jobs
from agents.lost_jobs import LostResult
from agents.retention import retention
from requirements.states import JobStatus
from taskqueue.db import clock, database
from taskqueue.jobs import jobs, optimizer_queue
from taskqueue.jobs.jobs import Job
from taskqueue.leases import attempts, expiry, uptime
from taskqueue.leases.expiry import OpenPass
from taskqueue.pilots import pilots
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.schema.tables import service_uptime, watched_times
from tests.support import databases
from tests.support.factories import pilot_reports, queued_jobs, stored_rows

MINUTE = timedelta(minutes=1)
LEASE = timedelta(minutes=30)
FAR = timedelta(days=1)


@pytest.fixture
def running(engine: Engine, now: datetime) -> list[int]:
    """Jobs that run at pilots whose last word is of now."""
    with database.writing(engine) as conn:
        job_ids = queued_jobs.put(conn, now, 5)
        for each in queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, job_ids[0])], now, count=5):
            pilot_reports.start(conn, each.lease, lease_time=LEASE, now=now)
    return job_ids


def look(engine: Engine, now: datetime) -> LostResult:
    result = lost_jobs.cycle(engine, queued_jobs.grid(), now=now, holder="me")
    assert result is not None
    return result


def job(engine: Engine, job_id: int) -> Job:
    with database.reading(engine) as conn:
        return jobs.get_job(conn, job_id)


def closed(engine: Engine, job_id: int) -> str | None:
    with database.reading(engine) as conn:
        found = attempts.get_latest(conn, job_id)
    assert found is not None
    return found.closed_as


def test_while_the_service_is_away_for_an_hour_no_job_is_taken_from_its_pilot(
    engine: Engine, now: datetime, running: list[int]
) -> None:
    stored_rows.service_up(engine, now - FAR, now + MINUTE)
    back = now + 61 * MINUTE
    for minute in range(61):
        assert not look(engine, now + minute * MINUTE)
    stored_rows.service_up(engine, back, back + FAR, "started again")
    assert not look(engine, back + 28 * MINUTE), "its pilots have time to report"
    assert look(engine, back + 30 * MINUTE) == LostResult(stalled=5)
    assert {job(engine, each).reschedules for each in running} == {0}


@pytest.fixture
def _database_has_the_time_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "read_time", lambda _, now: now)


@pytest.mark.usefixtures("_database_has_the_time_of_the_agent")
def test_silence_counts_at_once_when_the_clock_was_ahead_and_is_set_back(
    engine: Engine, now: datetime, running: list[int]
) -> None:
    """Of jobs that were started, only assigned, and stalled while it was ahead."""
    stored_rows.service_up(engine, now - FAR, now - 12 * 60 * MINUTE, "ahead")
    right = now - 12 * 60 * MINUTE
    with database.writing(engine) as conn:
        [stalled, *started] = running
        [assigned] = queued_jobs.put(conn, now, 1)
        queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, assigned)], now, count=1)
        expiry.mark_stalled(conn, silent_since={"lhcb": now + MINUTE}, now=now, most=1)
        assert jobs.get_job(conn, stalled).status == JobStatus.STALLED
    assert not look(engine, right), "their pilots have time to report"
    stored_rows.service_up(engine, right, right + FAR, "set back")
    assert not look(engine, right + 4 * MINUTE)
    assert look(engine, right + 6 * MINUTE) == LostResult(waiting=1)
    assert look(engine, right + 31 * MINUTE) == LostResult(stalled=4)
    assert look(engine, right + 400 * MINUTE) == LostResult(rescheduled=5)
    assert {job(engine, each).status for each in (stalled, *started)} == {JobStatus.RESCHEDULED}


@pytest.mark.usefixtures("_database_has_the_time_of_the_agent")
def test_a_pilot_that_reports_after_the_clock_was_set_back_keeps_its_job(
    engine: Engine, now: datetime, running: list[int]
) -> None:
    right = now - 12 * 60 * MINUTE
    stored_rows.service_up(engine, right - FAR, right + FAR)
    assert not look(engine, right)
    with database.writing(engine) as conn:
        attempt = attempts.get_latest(conn, running[0])
        assert attempt is not None
        pilot_reports.heartbeat(conn, attempt.lease, lease_time=LEASE, now=right + 29 * MINUTE)
    assert look(engine, right + 31 * MINUTE) == LostResult(stalled=4)
    assert job(engine, running[0]).status == JobStatus.RUNNING


def test_open_attempts_are_read_once_and_changed_only_where_they_are_silent_or_ahead(
    engine: Engine, now: datetime, running: list[int]
) -> None:
    stored_rows.service_up(engine, now - FAR, now + FAR)
    seen = databases.record_statements(engine)
    assert not look(engine, now + MINUTE)
    assert not [each for each in seen if each.startswith("UPDATE attempts")]
    over = OpenPass()
    with database.writing(engine) as conn:
        found = [
            (
                expiry.mark_stalled(conn, silent_since={"lhcb": now + MINUTE}, now=now, most=2, over=over),
                over.after,
            )
            for _ in range(4)
        ]
    assert found == [
        (running[:2], running[1]),
        (running[2:4], running[3]),
        (running[4:], running[4]),
        ([], running[4]),
    ]


@pytest.mark.usefixtures("_database_has_the_time_of_the_agent")
def test_jobs_that_were_put_off_while_the_clock_was_ahead_are_due_when_it_is_set_back(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        ahead, held = queued_jobs.put(conn, now, 2)
        for job_id, changed in ((ahead, now + FAR), (held, now)):
            values = {"status": JobStatus.CHECKING.value, "due_at": now + 2 * FAR, "updated_at": changed}
            conn.execute(update(jobs_table).where(jobs_table.c.job_id == job_id).values(values))
    look(engine, now)
    with database.reading(engine) as conn:
        assert optimizer_queue.list_due(conn, now=now, most=5) == [ahead]
        assert sorted(optimizer_queue.list_due(conn, now=now + 2 * FAR, most=5)) == [ahead, held]


def test_an_agent_that_was_suspended_sets_back_no_reports(postgresql: Engine, now: datetime) -> None:
    with database.writing(postgresql) as conn:
        [job_id] = queued_jobs.put(conn, now, 1)
        [match] = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, job_id)], now, count=1)
        pilot_reports.start(conn, match.lease, lease_time=LEASE, now=now)
        expiry.mark_stalled(conn, silent_since={}, now=now - FAR)
        attempt = attempts.get_latest(conn, job_id)
    assert attempt is not None
    assert attempt.heartbeat_at == now


def test_the_grace_time_of_stalled_jobs_counts_in_the_same_way(
    engine: Engine, now: datetime, running: list[int]
) -> None:
    stored_rows.service_up(engine, now - FAR, now + 32 * MINUTE)
    assert look(engine, now + 31 * MINUTE) == LostResult(stalled=5)
    back = now + 400 * MINUTE
    assert not look(engine, back)
    stored_rows.service_up(engine, back, back + FAR, "started again")
    assert not look(engine, back + 28 * MINUTE)
    assert look(engine, back + 30 * MINUTE) == LostResult(rescheduled=5)
    assert {job(engine, each).status for each in running} == {JobStatus.RESCHEDULED}


def test_a_service_that_was_never_up_has_heard_of_no_silence(
    engine: Engine, now: datetime, running: list[int]
) -> None:
    assert not look(engine, now + FAR)
    assert {job(engine, each).status for each in running} == {JobStatus.RUNNING}


def test_a_match_whose_pilot_could_not_report_its_start_stays(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, job_id)], now)
    stored_rows.service_up(engine, now - FAR, now + MINUTE)
    back = now + 61 * MINUTE
    assert not look(engine, back)
    stored_rows.service_up(engine, back, back + FAR, "started again")
    assert not look(engine, back + 3 * MINUTE)
    assert look(engine, back + 5 * MINUTE) == LostResult(waiting=1)


def test_a_killed_job_can_still_deliver_after_the_service_was_away(
    engine: Engine, now: datetime, running: list[int]
) -> None:
    stored_rows.kill(engine, now, running[0])
    stored_rows.service_up(engine, now - FAR, now + MINUTE)
    back = now + 61 * MINUTE
    assert not look(engine, back)
    assert closed(engine, running[0]) is None
    stored_rows.service_up(engine, back, back + 10 * MINUTE, "started again")
    assert look(engine, back + 10 * MINUTE) == LostResult(closed=1)


def spans(engine: Engine, process: str) -> list[tuple[datetime, datetime]]:
    query = select(service_uptime.c.since, service_uptime.c.until).order_by(service_uptime.c.since)
    with database.reading(engine) as conn:
        return [
            (row.since, row.until) for row in conn.execute(query.where(service_uptime.c.process == process))
        ]


def test_a_process_extends_its_interval_and_begins_another_after_a_pause(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "read_time", lambda _, now: now)
    second = timedelta(seconds=1)
    for seconds, process in ((0, "one"), (3, "other"), (5, "one"), (10, "one"), (100, "one"), (105, "one")):
        with database.writing(engine) as conn:
            uptime.record(conn, process, now=now + seconds * second)
    assert spans(engine, "one") == [(now, now + 10 * second), (now + 100 * second, now + 105 * second)]
    assert spans(engine, "other") == [(now + 3 * second, now + 3 * second)]


def test_a_clock_that_is_set_back_costs_no_uptime_from_then_on(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "read_time", lambda _, now: now)
    second = timedelta(seconds=1)
    for seconds in (0, 3600, 3605, 60, 65, 70):
        with database.writing(engine) as conn:
            uptime.record(conn, "one", now=now + seconds * second)
    with database.reading(engine) as conn:
        up = uptime.read(conn)
    assert up.go_back(now + 70 * second, seconds=10) == now + 60 * second


def test_retention_keeps_the_uptime_that_silence_is_measured_by(engine: Engine, now: datetime) -> None:
    queued_jobs.put(engine, now)
    long_ago = now - 100 * FAR
    stored_rows.service_up(engine, long_ago - FAR, long_ago, "oldest")
    stored_rows.service_up(engine, long_ago + FAR, long_ago + FAR + 20 * MINUTE, "old")
    stored_rows.service_up(engine, now - pilots.LOST_AFTER + 10 * MINUTE, now, "new")
    stored_rows.service_up(engine, now - 29 * FAR, now - 29 * FAR + 5 * MINUTE, "recent")
    stored_rows.watched(engine, long_ago, long_ago + FAR)
    stored_rows.watched(engine, now - 29 * FAR, now - 28 * FAR)
    result = retention.cycle(engine, queued_jobs.grid(), now=now, holder="me")
    assert result is not None
    assert result.removed["uptime"] == 1, "of the four days of lost pilots the old one has ten minutes"
    assert databases.count(engine, service_uptime) == 3
    assert databases.count(engine, watched_times) == 1
