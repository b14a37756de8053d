"""A host whose clock is wrong goes by the time of the database."""

import logging
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import Engine, select

from agents import leader, lost_jobs
from taskqueue.db import clock, database
from taskqueue.db.clock import DatabaseClock
from taskqueue.leases import uptime
from taskqueue.schema.tables import agent_leases, service_uptime
from tests.support.clocks import ManualClock
from tests.support.factories import queued_jobs

DAY = timedelta(days=1)
AHEAD, BEHIND = DAY, -DAY


def host(offset: timedelta) -> datetime:
    return clock.utc_now() + offset


def read(engine: Engine) -> datetime:
    with database.reading(engine) as conn:
        return clock.read_time(conn, clock.utc_now())


@pytest.mark.parametrize("offset", [AHEAD, BEHIND])
def test_the_clock_is_the_databases_whatever_that_of_the_host_shows(
    postgresql: Engine, offset: timedelta
) -> None:
    steady = ManualClock()
    before = read(postgresql)
    measured = DatabaseClock(postgresql, host=partial(host, offset), steady=steady)
    first = measured()
    assert before <= first <= read(postgresql)
    steady.now += 100
    assert measured() == first + timedelta(seconds=100)
    # Counted wrongly, as on a host that was suspended: the next reading corrects it.
    again = measured.read()
    assert measured() == again
    assert before <= again <= read(postgresql)


@pytest.mark.parametrize(
    ("offset", "problem"), [(AHEAD, "ahead of"), (BEHIND, "behind"), (timedelta(), None)]
)
def test_the_offset_of_the_host_is_measured_and_logged_once(
    postgresql: Engine, offset: timedelta, problem: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        measured = DatabaseClock(postgresql, host=partial(host, offset))
        measured.read()
    assert abs(measured.offset - offset) < DAY / 2
    found = clock.describe_offset(measured.offset)
    assert (found is None) is (problem is None)
    assert caplog.messages == ([] if found is None else [found])
    assert problem is None or problem in caplog.text


def test_a_host_that_stands_still_while_the_time_is_read_is_not_ahead(postgresql: Engine) -> None:
    times = iter((host(timedelta()), host(AHEAD)))
    measured = DatabaseClock(postgresql, host=lambda: next(times))
    assert (measured.offset, measured.problem) == (timedelta(), None)


def test_on_sqlite_the_clock_is_that_of_the_host(sqlite_url: str, now: datetime) -> None:
    engine = database.connect(sqlite_url)
    measured = DatabaseClock(engine, host=lambda: now)
    assert (measured(), measured.read(), measured.offset) == (now, now, timedelta())
    engine.dispose()


@pytest.mark.parametrize("offset", [AHEAD, BEHIND])
def test_an_agent_on_a_host_a_day_off_takes_no_jobs_and_keeps_nobody_out(
    postgresql: Engine, offset: timedelta
) -> None:
    right, wrong = read(postgresql), DatabaseClock(postgresql, host=partial(host, offset))
    with database.writing(postgresql) as conn:
        [job_id] = queued_jobs.put(conn, right)
        [claimed] = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, job_id)], right)
        uptime.record(conn, "serve", now=wrong())
    assert claimed.job_id == job_id
    cycle = partial(_look, postgresql)
    assert leader.run_once(cycle, name="lost-jobs", clock=wrong.read)
    with database.reading(postgresql) as conn:
        expires_at = conn.execute(select(agent_leases.c.expires_at)).scalar_one()
        assert conn.execute(select(service_uptime.c.until)).scalar_one() <= read(postgresql)
        assert queued_jobs.left(conn) == [], "the match stays"
    assert right < expires_at <= read(postgresql) + lost_jobs.leader.LEASE_TIME


def _look(engine: Engine, now: datetime) -> object:
    result = lost_jobs.cycle(engine, queued_jobs.grid(), now=now, holder="wrong")
    assert result is not None
    assert not result
    return result
