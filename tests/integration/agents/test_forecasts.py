"""Forecasts of starts: refused where nothing was seen, corrected by the record of those before."""

from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine, func, select

from agents import forecasts
from agents.forecasts import ForecastsResult
from cs_config.tree.address import QueueAddress
from matcher.forecast import start_forecast, start_interval
from matcher.forecast.start_forecast import StartForecast
from taskqueue import day_record, past_forecasts
from taskqueue.day_record import Seen, Series
from taskqueue.db import database
from taskqueue.past_forecasts import NewForecast, StartInterval
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest
from taskqueue.schema.tables import jobs, start_forecasts, task_queues, waiting_jobs
from taskqueue.sites import closures
from taskqueue.task_queues import listing
from taskqueue.task_queues.listing import PlaceInClass
from tests.support import databases
from tests.support.factories import queued_jobs, stored_rows
from tests.support.factories.queued_jobs import ELSEWHERE, EVERYWHERE, LONG

GRID = queued_jobs.grid()
MINUTE = timedelta(minutes=1)


def forecast(engine: Engine, job_id: int, now: datetime) -> StartForecast:
    with database.reading(engine) as conn:
        task_queue_id = queued_jobs.task_queue_of(conn, job_id)
        return start_forecast.forecast_start(conn, GRID, job_id=job_id, task_queue_id=task_queue_id, now=now)


def run_agent(engine: Engine, now: datetime) -> ForecastsResult:
    result = forecasts.cycle(engine, GRID, now=now, holder="me", random=Random(str(now)))
    assert result is not None
    return result


def ask(engine: Engine, now: datetime, *, at: QueueAddress = LONG) -> None:
    """A pilot requests work."""
    with database.writing(engine) as conn:
        pilots.bind_queues(conn, [FirstRequest(stamp=str(at), vo="lhcb", queue=at)], now=now)


def start(engine: Engine, now: datetime, count: int = 1) -> None:
    """Pilots take jobs, which the reader of the job log counts."""
    with database.writing(engine) as conn:
        found = conn.execute(select(task_queues.c.task_queue_id, task_queues.c.class_id)).all()
        taken = queued_jobs.claim(conn, [row.task_queue_id for row in found], now, count=count)
        seen = Seen(series=Series.STARTS, subject=(str(found[0].class_id),), at=now, value=len(taken))
        day_record.add_counts(conn, [seen])


def test_a_forecast_is_refused_where_nothing_was_seen_from_which_it_follows(
    engine: Engine, now: datetime
) -> None:
    [*_, last] = queued_jobs.put(engine, now, 20)
    assert forecast(engine, last, now).refusal == "no pilot that fits came in the last hour"
    ask(engine, now)
    assert forecast(engine, last, now).refusal == "no job like it started in the last 24 hours"
    start(engine, now, 2)
    found = forecast(engine, last, now + MINUTE)
    assert found.estimate == 18 / 2 * 60  # its place, by two starts in the minute
    assert found.refusal == (
        "it is made once the jobs of 30 earlier forecasts of lhcb have started, 0 have so far"
    )
    assert forecast(engine, last, now + timedelta(hours=2)).refusal == (
        "no pilot that fits came in the last hour"
    )


def test_a_class_whose_last_start_was_a_day_ago_has_no_forecast(engine: Engine, now: datetime) -> None:
    [*_, last] = queued_jobs.put(engine, now, 20)
    at = now.replace(second=0, microsecond=0)
    start(engine, at)
    later = at + timedelta(days=1, seconds=20)  # the record has the whole minute
    ask(engine, later)
    assert forecast(engine, last, later).refusal == "no job like it started in the last 24 hours"


def test_a_start_after_more_than_a_year_is_not_foretold(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    [*_, last] = queued_jobs.put(engine, now, 20)
    start(engine, now)
    ask(engine, now + timedelta(hours=23))
    find_place = listing.find_place

    def find_last(*given: Any) -> PlaceInClass | None:
        place = find_place(*given)
        return place and replace(place, before=3e6)

    monkeypatch.setattr(listing, "find_place", find_last)
    found = forecast(engine, last, now + timedelta(hours=23))
    assert found.refusal == "at the rate of the last 24 hours it would wait for more than a year"


def test_an_interval_without_ends_is_not_told(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, 200)
        made = [NewForecast(job_id=each, vo="lhcb", estimate=6e5, interval=None) for each in ids]
        past_forecasts.store(conn, made, now=now)
    start(engine, now, 40)
    ask(engine, now)
    run_agent(engine, now)
    found = forecast(engine, ids[-1], now + MINUTE)
    assert found.refusal == "too many jobs of earlier forecasts of lhcb still wait"
    assert found.estimate is not None


def test_a_forecast_says_what_is_closed(engine: Engine, now: datetime) -> None:
    [job_id, *_] = queued_jobs.put(engine, now, 9)
    ask(engine, now)
    start(engine, now)
    before = forecast(engine, job_id + 4, now + MINUTE).estimate
    for site, ended in (
        (LONG.site, "those of its queues at which pilots asked"),
        (ELSEWHERE.site, "all queues"),
    ):
        stored_rows.ban(engine, now, site, reason="fire")
        assert forecast(engine, job_id + 4, now + MINUTE).refusal.startswith(ended)
    with database.writing(engine) as conn:
        closures.lift_ban(conn, LONG.site)
    ask(engine, now, at=ELSEWHERE)  # half of the pilots ask where it is closed
    after = forecast(engine, job_id + 4, now + MINUTE).estimate
    assert before is not None
    assert after == 2 * before


def test_jobs_of_others_in_the_class_take_their_turns(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [*_, own] = queued_jobs.put(conn, now, 10)
        queued_jobs.put(conn, now, 3, owner="bob")
        queued_jobs.put(conn, now, 90, owner="eve")
    ask(engine, now)
    start(engine, now, 0)
    with database.writing(engine) as conn:
        class_id = conn.execute(select(task_queues.c.class_id)).scalars().first()
        seen = Seen(series=Series.STARTS, subject=(str(class_id),), at=now, value=1)
        day_record.add_counts(conn, [seen])
    assert forecast(engine, own, now + MINUTE).estimate == (9 + 3 + 10 + 1) * 60


def test_the_place_of_a_new_job_is_that_which_it_then_has(engine: Engine, now: datetime) -> None:
    def find_new(owner: str, priority: float = 1.0) -> PlaceInClass | None:
        with database.reading(engine) as conn:
            return listing.find_place_of_new(
                conn, EVERYWHERE, owner=owner, owner_group="lhcb_user", priority=priority
            )

    assert find_new("alice") is None
    with database.writing(engine) as conn:
        queued_jobs.put(conn, now, 10)
        queued_jobs.put(conn, now, 3, owner="bob")
        queued_jobs.put(conn, now, 90, owner="eve")
    for owner, priority, before in (
        ("alice", 1.0, 24),
        ("alice", 2.0, 2),
        ("eve", 1.0, 103),
        ("zoe", 1.0, 3),
    ):
        foreseen = find_new(owner, priority)
        with database.writing(engine) as conn:
            [job_id] = queued_jobs.put(conn, now, 1, owner=owner, priority=priority)
            place = listing.find_place(conn, job_id)
            conn.execute(waiting_jobs.delete().where(waiting_jobs.c.job_id == job_id))
        assert foreseen == place
        assert foreseen is not None
        assert foreseen.before == before


def test_the_record_of_past_forecasts_makes_the_interval(engine: Engine, now: datetime) -> None:
    [*_, last] = queued_jobs.put(engine, now, 200)
    made = settled = 0
    for minute in range(100):
        at = now + minute * MINUTE
        ask(engine, at)
        start(engine, at)
        result = run_agent(engine, at + MINUTE / 2)
        made, settled = made + result.made, settled + result.settled
        if minute == 80:
            start(engine, at, 99)  # a burst: those that were forecast start sooner
    at = now + 100 * MINUTE
    assert run_agent(engine, at).settled + settled > start_interval.LEAST
    found = forecast(engine, last, at)
    assert found.interval is not None
    assert 0 < found.record.held <= found.record.of <= made
    percent = 100 * found.record.held / found.record.of
    assert found.text.endswith(f"({percent:.0f} % of the last {found.record.of} such forecasts held).")


def test_jobs_that_no_longer_wait_and_the_oldest_forecasts_go(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_forecasts, "MOST", 3)
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, 9)
        interval = StartInterval(least=1.0, most=None)
        made = [NewForecast(job_id=each, vo="lhcb", estimate=60.0, interval=interval) for each in ids]
        past_forecasts.store(conn, made, now=now)
        conn.execute(waiting_jobs.delete().where(waiting_jobs.c.job_id == ids[-1]))  # such as killed
    start(engine, now + MINUTE, 4)
    for _ in range(2):  # nothing is settled twice
        with database.writing(engine) as conn:
            past_forecasts.settle(conn)
        with database.reading(engine) as conn:
            past = past_forecasts.list_past(conn, "lhcb", now=now + 3 * MINUTE)
        assert [(each.has_started, each.waited) for each in past] == [(True, 60.0)] * 3 + [(False, 180.0)] * 3
    assert run_agent(engine, now + 3 * MINUTE).made == 0  # the sample is full
    with database.writing(engine) as conn:
        conn.execute(waiting_jobs.delete())
        conn.execute(jobs.delete().where(jobs.c.job_id == ids[-1]))
        past_forecasts.settle(conn)
    assert databases.count(engine, start_forecasts) == 3


def test_jobs_that_wait_for_weeks_do_not_stay_the_whole_sample(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_forecasts, "MOST", 12)
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, 60)
        made = [NewForecast(job_id=each, vo="lhcb", estimate=60.0, interval=None) for each in ids[-12:]]
        past_forecasts.store(conn, made, now=now)
    ask(engine, now)
    start(engine, now, 2)
    new = 0
    for minute in range(1, 50):
        at = now + minute * MINUTE
        new += run_agent(engine, at).made
        with database.reading(engine) as conn:
            assert past_forecasts.count_open(conn) == {"lhcb": 12}
            past = past_forecasts.list_past(conn, "lhcb", now=at)
            given_up = conn.execute(select(func.count()).where(start_forecasts.c.given_up)).scalar_one()
        assert given_up == new
    assert 1 <= new <= 12
    assert len(past) == 12 + new
    assert not [each for each in past if each.has_started]
