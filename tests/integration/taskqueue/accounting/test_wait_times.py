"""For what jobs had waited is kept when they have ended, and summed."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine

from agents import wait_times
from requirements.job_fields import VO
from requirements.states import JobStatus
from taskqueue import retention
from taskqueue.accounting import wait_times as jobs_wait_times
from taskqueue.db import database
from taskqueue.jobs import control, jobs, log, search
from taskqueue.jobs.log import LogEntry
from taskqueue.jobs.search import JobSelector
from taskqueue.retention import OldJobs
from tests.support import databases, wait
from tests.support.factories import queued_jobs, stored_rows

MINUTE = timedelta(minutes=1)


def _ended(conn: Connection, now: datetime, *, waited: timedelta) -> int:
    """A job that was with the optimizers for a minute, then waited, and was killed; its id."""
    [job_id] = queued_jobs.put(conn, now)
    entry = LogEntry(
        job_id=job_id,
        at=now + MINUTE,
        from_status=JobStatus.RECEIVED,
        to_status=JobStatus.WAITING,
        minor_status="Pilot Agent Submission",
        source="test",
    )
    log.append(conn, [entry])
    assert control.kill_jobs(conn, [job_id], source="test", now=now + MINUTE + waited)
    return job_id


def _cycle(engine: Engine, now: datetime, memory: wait_times.WaitTimesState) -> int:
    result = wait_times.cycle(engine, now=now, holder="test", memory=memory)
    assert result is not None
    return result.booked


def test_the_time_waited_is_written_down_once_when_a_job_has_ended(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first = _ended(conn, now, waited=5 * MINUTE)
        [waits_still] = queued_jobs.put(conn, now)
    memory, later = wait_times.WaitTimesState(), now + timedelta(hours=1)
    assert [_cycle(engine, later, memory) for _ in range(2)] == [1, 0]
    with database.writing(engine) as conn:
        assert jobs_wait_times.read_waits(conn, first) == {"a pilot": 300, "optimizers": 60}
        assert jobs_wait_times.read_waits(conn, waits_still) == {}
        _ended(conn, later, waited=MINUTE)
    assert _cycle(engine, later + timedelta(hours=1), memory) == 1
    assert _cycle(engine, later + timedelta(hours=1), wait_times.WaitTimesState()) == 0


def test_the_time_waited_is_written_down_also_after_the_clock_was_set_back(
    engine: Engine, now: datetime
) -> None:
    memory = wait_times.WaitTimesState()
    assert _cycle(engine, now + timedelta(days=1), memory) == 0
    with database.writing(engine) as conn:
        _ended(conn, now, waited=5 * MINUTE)
    assert [_cycle(engine, now + 10 * MINUTE, memory) for _ in range(2)] == [1, 0]


def test_the_time_waited_outlives_the_log_but_not_the_job(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = _ended(conn, now, waited=5 * MINUTE)
    before = now + timedelta(days=1)
    old = OldJobs(job_ids=[job_id], before={"lhcb": before}, readers=())
    with database.writing(engine) as conn:
        assert retention.remove_logs(conn, old) == 1
        assert log.read_log(conn, job_id) == []
        assert jobs_wait_times.read_waits(conn, job_id) == {"a pilot": 300, "optimizers": 60}
    assert _cycle(engine, before, wait_times.WaitTimesState()) == 0
    with database.writing(engine) as conn:
        assert retention.remove_jobs(conn, old) == 1
        assert jobs_wait_times.read_waits(conn, job_id) == {}


def test_the_time_waited_is_summed_by_what_jobs_are_counted_by(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = [_ended(conn, now, waited=minutes * MINUTE) for minutes in (1, 2)]
        task_queue = str(queued_jobs.task_queue_of(conn, ids[0]))
    _cycle(engine, now + timedelta(hours=1), wait_times.WaitTimesState())
    everything = JobSelector().where(VO, {"lhcb"})
    with database.reading(engine) as conn:
        assert search.sum_waits(conn, ["status"], everything) == {
            ("Killed",): {"a pilot": 180, "optimizers": 120}
        }
        [(values, spent)] = search.sum_waits(conn, ["task_queue"], everything).items()
        assert (str(values[0]), spent["a pilot"]) == (task_queue, 180)
        assert search.sum_waits(conn, ["status"], JobSelector().where(VO, {"cms"})) == {}


def test_a_job_that_ended_again_is_counted_anew(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = _ended(conn, now, waited=MINUTE)
        stored_rows.force(conn, job_id, status=JobStatus.FAILED.value)
    _cycle(engine, now + timedelta(hours=1), wait_times.WaitTimesState())
    with database.writing(engine) as conn:
        assert control.reschedule_jobs(
            conn, [job_id], source="test", now=now + timedelta(hours=1), maximum=3
        ) == [job_id]
        assert jobs.get_job(conn, job_id).status == JobStatus.RESCHEDULED
        assert control.kill_jobs(conn, [job_id], source="test", now=now + timedelta(hours=2))
    assert _cycle(engine, now + timedelta(hours=3), wait_times.WaitTimesState()) == 1
    with database.reading(engine) as conn:
        assert jobs_wait_times.read_waits(conn, job_id) == {"optimizers": 3660, "a pilot": 60}


def test_two_agents_may_store_the_time_waited_of_one_job_at_once(postgresql: Engine, now: datetime) -> None:
    with database.writing(postgresql) as conn:
        job_ids = [_ended(conn, now, waited=each * MINUTE) for each in (1, 5)]

    def store() -> int:
        with database.writing(postgresql) as conn:
            return jobs_wait_times.store_waits(conn, job_ids)

    with ThreadPoolExecutor(1) as pool, postgresql.connect() as first:
        assert jobs_wait_times.store_waits(first, job_ids) == 2
        second = pool.submit(store)
        wait.until(lambda: second.done() or databases.count_lock_waits(postgresql) > 0)
        first.commit()
        second.result()
    with database.reading(postgresql) as conn:
        assert jobs_wait_times.read_waits(conn, job_ids[1]) == {"a pilot": 300, "optimizers": 60}
