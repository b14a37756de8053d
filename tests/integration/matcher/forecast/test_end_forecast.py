"""When a group of jobs is done: its last start, by task queue, and the median of its run times."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select, update

from matcher.forecast import end_forecast
from matcher.forecast.end_forecast import EndForecast
from requirements.requirement_class import RequirementClass
from requirements.states import JobStatus
from taskqueue import day_record, past_forecasts
from taskqueue.day_record import Seen, Series
from taskqueue.db import database
from taskqueue.jobs import groups
from taskqueue.jobs.search import JobSelector
from taskqueue.past_forecasts import NewForecast, StartInterval
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest
from taskqueue.schema.tables import start_forecasts, task_queues
from tests.support import databases
from tests.support.factories import queued_jobs, stored_rows
from tests.support.factories.queued_jobs import EVERYWHERE, LONG

GRID = queued_jobs.grid()
MINUTE = timedelta(minutes=1)
LONGER = RequirementClass(vo="lhcb", cpu_time=7200)
SCAN = JobSelector(values={"vo": frozenset({"lhcb"}), "job_group": frozenset({"scan"})})


def forecast(engine: Engine, now: datetime) -> EndForecast:
    with database.reading(engine) as conn:
        return end_forecast.forecast_end(conn, GRID, SCAN, now=now)


def put(
    conn: Connection, now: datetime, count: int, asked: RequirementClass = EVERYWHERE, **values: Any
) -> list[int]:
    """Jobs of the group."""
    return queued_jobs.put(conn, now, count, asked=asked, job_group="scan", **values)


def put_ended(conn: Connection, now: datetime, minutes: Iterable[int]) -> None:
    """Done jobs of the group that ran so long."""
    for each in minutes:
        [job_id] = stored_rows.job_ids(conn, now, 1)
        ran = {"started_at": now - each * MINUTE, "ended_at": now}
        stored_rows.force(conn, job_id, status=JobStatus.DONE.value, due_at=None, job_group="scan", **ran)


def put_running(conn: Connection, now: datetime, minutes: int, status: JobStatus = JobStatus.RUNNING) -> None:
    """A job of the group that has run so long."""
    [job_id] = stored_rows.job_ids(conn, now, 1)
    started = {"started_at": now - minutes * MINUTE, "job_group": "scan", "due_at": None}
    stored_rows.force(conn, job_id, status=status.value, **started)


def record(conn: Connection, now: datetime) -> None:
    """Each class started ten jobs, one in 10 minutes, the other in 20; all forecasts were right."""
    pilots.bind_queues(conn, [FirstRequest(stamp="p", vo="lhcb", queue=LONG)], now=now)
    classes = conn.execute(select(task_queues.c.class_id).order_by(task_queues.c.class_id)).scalars()
    for number, class_id in enumerate(classes, 1):
        at = now - number * 10 * MINUTE
        seen = Seen(series=Series.STARTS, subject=(str(class_id),), at=at, value=10)
        day_record.add_counts(conn, [seen])
    interval = StartInterval(least=60.0, most=60.0)
    ids = stored_rows.job_ids(conn, now, 40)
    made = [NewForecast(job_id=each, vo="lhcb", estimate=60.0, interval=interval) for each in ids]
    past_forecasts.store(conn, made, now=now)
    conn.execute(update(start_forecasts).values(waited=60.0))


def test_the_end_is_the_last_start_of_all_task_queues_and_the_median_run_time(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        put(conn, now, 12)
        put(conn, now, 20, LONGER)
        queued_jobs.put(conn, now, 5, asked=LONGER)  # of another group, handed out after them
        record(conn, now)
    found = forecast(engine, now)
    assert found.start is not None
    assert found.start.interval == StartInterval(least=2400.0, most=2400.0)  # twenty, one in two minutes
    assert found.text == (
        "The last of 32 waiting jobs: Starts probably in about 40 min (100 % of the last 40 such"
        " forecasts held). No forecast of the end:"
        " none of its jobs is done, so how long they run is not known."
    )
    with database.writing(engine) as conn:
        put_ended(conn, now, (10, 30, 999))
    found = forecast(engine, now)
    assert (found.end, found.run_time, found.done) == (StartInterval(least=4200.0, most=4200.0), 1800.0, 3)
    assert found.text.endswith(" Done probably in about 70 min: by 3 done jobs, half run 30 min or more.")


def test_the_user_s_priority_decides_which_job_is_the_last(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [first, *_] = queued_jobs.put(conn, now, 1, priority=0.5)
        put(conn, now, 3)
        stored_rows.force(conn, first, job_group="scan")
        last = groups.list_last_waiting(conn, SCAN, limit=9)
    assert [(each.job_id, each.count) for each in last.groups] == [(first, 4)]


def test_it_is_refused_with_the_job_whose_start_is_not_known(engine: Engine, now: datetime) -> None:
    assert forecast(engine, now).text == "No forecast of the end: no job of the group waits or runs."
    with database.writing(engine) as conn:
        [*_, last] = put(conn, now, 3)
        put_ended(conn, now, (10,))
    assert forecast(engine, now).text == (
        f"The last of 3 waiting jobs: No forecast of its start: job {last}: no pilot that fits came in the"
        " last hour. No forecast of the end: when its last job starts is not known."
    )
    with database.writing(engine) as conn:
        record(conn, now)
        [held] = stored_rows.job_ids(conn, now, 1)
        stored_rows.force(conn, held, status=JobStatus.CHECKING.value, job_group="scan")
    found = forecast(engine, now)
    assert found.waiting == 4
    assert found.start is not None
    assert found.start.refusal == f"job {held} is in no task queue yet"


def test_a_group_whose_jobs_have_all_started(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        for minutes in (50, 10):
            put_running(conn, now, minutes)
    assert forecast(engine, now).refusal.startswith("none of its jobs is done")
    with database.writing(engine) as conn:
        put_ended(conn, now, (30,))
    found = forecast(engine, now)
    assert found.text == (
        "Done probably in about 20 min: by 1 done job and 2 running, half run 30 min or more."
    )
    assert forecast(engine, now + 20 * MINUTE).refusal == (
        "too few of its jobs are done that ran longer than the last one has so far"
    )


def test_jobs_that_still_run_count_as_longer(engine: Engine, now: datetime) -> None:
    """Of ten three took 10, 20, 30 min, and the others are at it for 40; then come four of 50 and more."""
    with database.writing(engine) as conn:
        put(conn, now, 12)
        record(conn, now)
        put_ended(conn, now, (10, 20, 30))
        for _ in range(7):
            put_running(conn, now, 40)
    found = forecast(engine, now)
    assert (found.run_time, found.done, found.running) == (None, 3, 7)
    assert found.refusal == "most of its jobs still run, so how long they take is not known"
    with database.writing(engine) as conn:
        put_ended(conn, now, (50, 60, 70, 80))
    found = forecast(engine, now)
    assert (found.run_time, found.done, found.running) == (
        60 * 60.0,
        7,
        7,
    )  # 11 of 14, ¾, ⅔ of them run longer
    assert found.text.endswith("by 7 done jobs and 7 running, half run 60 min or more.")


def test_of_many_run_times_an_even_part_is_read(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many run, the share of those that are done stays."""
    monkeypatch.setattr(groups, "MAX_RUN_TIMES", 5)
    with database.writing(engine) as conn:
        for _ in range(6):
            put_ended(conn, now, (10,))
            put_running(conn, now, 20)
            put_running(conn, now, 20)
        run = groups.list_run_times(conn, SCAN, now=now)
    assert (sorted(run.times), run.done) == ([(600.0, True), *[(1200.0, False)] * 4], 6)


def test_it_is_not_said_that_none_is_done_because_none_is_in_the_part(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_RUN_TIMES", 5)
    with database.writing(engine) as conn:
        for _ in range(8):
            put_running(conn, now, 20)
    assert forecast(engine, now).refusal.startswith("none of its jobs is done")
    with database.writing(engine) as conn:
        put_ended(conn, now, (10,))
        put_running(conn, now, 20)
    found = forecast(engine, now)
    assert (found.done, found.running) == (0, 5)
    assert found.refusal == "next to none of its jobs is done, so how long they run is not known"


def test_stalled_jobs_do_not_count_as_running_ones(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        put_ended(conn, now, (10,))
        put_running(conn, now, 20)
        put_running(conn, now, 60, status=JobStatus.STALLED)
    found = forecast(engine, now)
    assert (found.done, found.running, found.run_time) == (1, 1, 600.0)


def test_its_cost_does_not_grow_with_the_jobs(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = databases.record_statements(engine)
    numbers = []
    with database.writing(engine) as conn:
        put(conn, now, 2)
        put(conn, now, 2, LONGER)
        record(conn, now)
    for _ in range(2):
        statements.clear()
        assert forecast(engine, now).start
        numbers.append(len(statements))
        with database.writing(engine) as conn:
            put(conn, now, 50)
    assert numbers[0] == numbers[1]
    monkeypatch.setattr(end_forecast, "MOST_TASK_QUEUES", 1)
    found = forecast(engine, now)
    assert found.start is not None
    assert found.start.refusal == "its jobs wait in more than 1 task queues"
    monkeypatch.setattr(groups, "MAX_OF_STATUS", 3)
    assert forecast(engine, now).text.endswith("Of each status only the newest 3 jobs were looked at.")
