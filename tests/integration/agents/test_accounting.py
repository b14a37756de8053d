"""What happened is added up once, whoever is killed, comes late or does the same at the same time."""

import json
from collections import Counter
from datetime import datetime, timedelta
from itertools import count

import pytest
from sqlalchemy import Engine, select, update

from agents import accounting
from agents.leader import LeadershipLostError
from agents.retention import retention
from requirements.states import FINAL, JobStatus
from taskqueue import retention as removal
from taskqueue.accounting import log_reader, time_series
from taskqueue.accounting.log_reader import ConcurrentReadError
from taskqueue.accounting.time_series import StatusSeries
from taskqueue.db import database
from taskqueue.jobs import control, jobs, log
from taskqueue.retention import OldJobs
from taskqueue.schema.tables import log_readers
from tests.support import concurrency, crashes, databases
from tests.support.factories import accounted_jobs, queued_jobs, stored_rows

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
S = JobStatus


@pytest.fixture(params=databases.LAYOUTS)
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(databases.FIXTURES[request.param])
    return url


def _cycle(engine: Engine, now: datetime, holder: str = "test") -> None:
    assert accounting.cycle(engine, now=now, holder=holder) is not None


def _note_end(engine: Engine) -> None:
    with database.reading(engine) as conn:
        end = log.read_end(conn)
    with database.writing(engine) as conn:
        log_reader.note_end(conn, "flows", end)


def _current(engine: Engine) -> object:
    with database.reading(engine) as conn:
        return time_series.count_current(conn)


def _series(engine: Engine, now: datetime) -> StatusSeries:
    with database.reading(engine) as conn:
        return time_series.read_series(conn, since=now, until=now + 9 * MINUTE)


def _three_jobs(engine: Engine, now: datetime) -> None:
    """Three that come, two of them matched a minute later, of which one ends after another."""
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, now, 3)
        leases = accounted_jobs.begin(conn, job_ids[:2], now + MINUTE)
        accounted_jobs.finish(conn, leases[:1], now + 2 * MINUTE)


def _is_right(found: StatusSeries) -> bool:
    return (
        found.jobs[S.WAITING][:4] == [3, 1, 1, 1]
        and found.jobs[S.RUNNING][:4] == [0, 2, 1, 1]
        and found.came[S.MATCHED][:4] == [0, 2, 0, 0]
        and found.came[S.DONE][:4] == [0, 0, 1, 0]
    )


def test_jobs_by_status_and_matches_are_told_by_the_minute(engine: Engine, now: datetime) -> None:
    _three_jobs(engine, now)
    for _ in range(3):
        _cycle(engine, now + HOUR)
    assert _is_right(_series(engine, now))
    with database.reading(engine) as conn:
        assert time_series.count_current(conn) == {"lhcb": {S.WAITING: 1, S.RUNNING: 1}}
        assert time_series.count_current(conn, ["cms"]) == {}
        assert time_series.count_ended(conn) == {"lhcb": {S.DONE: 1}}
        of_others = time_series.read_series(conn, vos=["cms"], since=now, until=now)
        assert (of_others.jobs, of_others.came) == ({}, {})
        by_five = time_series.read_series(
            conn, vos=["lhcb"], since=now + MINUTE, until=now + HOUR, step=5 * MINUTE
        )
    assert (by_five.begins[0], by_five.came[S.MATCHED][0], by_five.jobs[S.WAITING]) == (now, 2, [1] * 13)


def test_a_series_of_the_past_says_what_was_then(engine: Engine, now: datetime) -> None:
    _three_jobs(engine, now)
    _cycle(engine, now + HOUR)
    with database.reading(engine) as conn:
        found = time_series.read_series(conn, since=now - MINUTE, until=now + MINUTE)
    assert found.jobs[S.WAITING] == [None, 3, 1], "a gap before the first change of any job"
    assert found.jobs[S.RUNNING] == [None, 0, 2]
    assert found.unknown == 1, "nor is it known that nothing came"


def test_an_agent_that_is_killed_anywhere_has_counted_nothing_twice_and_skipped_nothing(
    engine: Engine, now: datetime
) -> None:
    """It dies at one statement of a cycle after the other; what is left over is done by the next one."""
    _three_jobs(engine, now)
    for statement in count(step=1 if engine.dialect.name == "sqlite" else 5):
        later = now + (statement + 2) * HOUR
        job_ids = accounted_jobs.put(engine, later, 2)
        with crashes.killed_at(engine, statement):
            try:
                _cycle(engine, later, holder=f"victim {statement}")
            except crashes.KilledError:
                died = True
            else:
                died = False
        _cycle(engine, later + MINUTE, holder=f"heir {statement}")
        with database.writing(engine) as conn:
            found = time_series.read_series(conn, since=later, until=later)
            assert found.came[S.WAITING] == [2], f"killed at statement {statement}"
            assert found.jobs[S.WAITING] == [3], f"killed at statement {statement}"
            control.kill_jobs(conn, job_ids, source="test", now=later)
        _cycle(engine, later + 2 * MINUTE, holder=f"heir {statement}")
        if not died:
            break
    assert statement > 10, "it carries out more statements than that"
    assert _is_right(_series(engine, now))


def test_a_transaction_that_is_held_open_is_waited_for(postgresql: Engine, now: datetime) -> None:
    with database.writing(postgresql) as late:
        stored_rows.job_ids(late, now, 2)
        stored_rows.job_ids(postgresql, now, 3)
        _cycle(postgresql, now + MINUTE)
        assert _current(postgresql) == {}, "what is committed comes after what is not"
    for _ in range(2):
        _cycle(postgresql, now + MINUTE)
    assert _current(postgresql) == {"lhcb": {S.RECEIVED: 5}}


def test_a_transaction_younger_than_all_that_ended_is_waited_for(postgresql: Engine, now: datetime) -> None:
    """It has the number of no transaction that a snapshot names: a snapshot ends at the last that ended."""
    with database.writing(postgresql) as older, database.writing(postgresql) as late:
        older.execute(log.XID)
        stored_rows.job_ids(late, now, 2)
        stored_rows.job_ids(older, now, 3)
        older.commit()
        with database.reading(postgresql) as conn:
            end = log.read_end(conn)
        with database.reading(postgresql) as conn:
            assert not log.is_complete(conn, end)
    with database.reading(postgresql) as conn:
        assert log.is_complete(conn, end)


def test_a_transaction_that_begins_later_is_not_waited_for(postgresql: Engine, now: datetime) -> None:
    stored_rows.job_ids(postgresql, now, 3)
    _note_end(postgresql)
    with database.writing(postgresql) as late:
        stored_rows.job_ids(late, now, 2)
        _cycle(postgresql, now + MINUTE)
        assert _current(postgresql) == {"lhcb": {S.RECEIVED: 3}}
    for _ in range(2):
        _cycle(postgresql, now + MINUTE)
    assert _current(postgresql) == {"lhcb": {S.RECEIVED: 5}}


def test_several_that_read_at_once_count_once(engine: Engine, now: datetime) -> None:
    job_ids = accounted_jobs.put(engine, now, 40)

    def read(number: int) -> int:
        try:
            # Two of them think that they are one.
            return accounting.cycle(engine, now=now + number * HOUR, holder=f"test {number // 2}") is not None
        except (ConcurrentReadError, LeadershipLostError):
            return 0

    concurrency.at_once(4, read)
    _cycle(engine, now + 9 * HOUR, holder="last")
    assert _current(engine) == {"lhcb": {S.WAITING: len(job_ids)}}


def test_another_server_s_transactions_are_not_waited_for(postgresql: Engine, now: datetime) -> None:
    """A dump is restored whose reader had noted what was under way on the old server."""
    accounted_jobs.put(postgresql, now, 2)
    _note_end(postgresql)
    with database.writing(postgresql) as conn:
        [noted] = conn.execute(select(log_readers.c.under_way)).scalars()
        incarnation, _, tables, _ = json.loads(noted)
        elsewhere = json.dumps([incarnation, "another server", tables, 10**12])
        conn.execute(update(log_readers).values(under_way=elsewhere))
    _cycle(postgresql, now + MINUTE)
    assert _current(postgresql) == {"lhcb": {S.WAITING: 2}}


@databases.ONE_TABLE
def test_what_is_not_counted_is_not_removed(engine: Engine, now: datetime) -> None:
    _note_end(engine)
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, now, 2)
        control.kill_jobs(conn, job_ids, source="test", now=now)
        old = OldJobs(job_ids=job_ids, before={"lhcb": now + HOUR}, readers=accounting.READERS)
        assert removal.remove_jobs(conn, old) == 0
        assert removal.remove_logs(conn, old) == 0
    _cycle(engine, now + HOUR)
    with database.writing(engine) as conn:
        assert removal.remove_logs(conn, old) == 2
        assert removal.remove_jobs(conn, old) == 2
    _cycle(engine, now + 2 * HOUR)
    assert _series(engine, now).came[S.KILLED][0] == 2


def test_a_reader_of_a_plugin_that_was_left_out_holds_nothing_back(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, now, 1)
        log_reader.note_end(conn, "tides", log.read_end(conn))
        control.kill_jobs(conn, job_ids, source="test", now=now)
    _cycle(engine, now + HOUR)

    def remove(readers: frozenset[str]) -> int:
        with database.writing(engine) as conn:
            old = OldJobs(job_ids=job_ids, before={"lhcb": now + HOUR}, readers=readers)
            return removal.remove_jobs(conn, old)

    assert [remove(accounting.READERS | {"tides"}), remove(accounting.READERS)] == [0, 1]


def test_retention_counts_itself_where_nobody_does(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, now)
        control.kill_jobs(conn, job_ids, source="test", now=now)
    result = retention.cycle(engine, queued_jobs.grid(), now=now + timedelta(days=400), holder="test")
    assert result is not None
    assert result.removed["jobs"] == 1
    assert _series(engine, now).came[S.KILLED][0] == 1


@pytest.mark.parametrize("seed", range(3))
def test_the_stocks_are_what_a_count_of_all_jobs_says(engine: Engine, now: datetime, seed: int) -> None:
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, now, 12)
        leases = accounted_jobs.begin(conn, job_ids[: 6 + seed], now)
        accounted_jobs.finish(conn, leases[: 2 + seed], now)
        control.kill_jobs(conn, job_ids[-2:] + job_ids[:1], source="test", now=now)
    _note_end(engine)
    _cycle(engine, now + HOUR)
    with database.writing(engine) as conn:
        taken_back = control.reschedule_jobs(conn, job_ids[::2], source="test", now=now, maximum=3)
        assert taken_back
    _cycle(engine, now + 2 * HOUR)
    with database.reading(engine) as conn:
        counted = Counter(jobs.get_job(conn, job_id).status for job_id in job_ids)
        living = {status: jobs_ for status, jobs_ in counted.items() if status not in FINAL}
        assert time_series.count_current(conn)["lhcb"] == living
        assert len(living) > 1
