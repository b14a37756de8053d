"""Partitions of the job log come and go, and no row goes before its time."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from itertools import count

import pytest
from sqlalchemy import Engine, func, insert, select, text, update

from agents import leader
from agents.retention import log_partitions, retention
from agents.retention.log_partitions import LogAges
from requirements.states import JobStatus
from taskqueue import retention as removal
from taskqueue.db import database
from taskqueue.db import log_partitions as layouts
from taskqueue.db.log_partitions import AHEAD, REST
from taskqueue.errors import JobNotFound
from taskqueue.jobs import jobs, log
from taskqueue.jobs.log import LogFeed
from taskqueue.retention import OldJobs
from taskqueue.schema.tables import job_log, job_waits, log_readers
from tests.support import crashes, databases
from tests.support.factories import queued_jobs, stored_rows, submitted_jobs

DAY = timedelta(days=1)
OLD = 40 * DAY


@pytest.fixture
def partitioned(partitioned_url: str) -> Iterator[Engine]:
    engine = database.connect(partitioned_url)
    yield engine
    engine.dispose()


def _put(engine: Engine, at: datetime, status: JobStatus = JobStatus.DONE) -> int:
    """A job that came at a time, and was put into that status at once."""
    job_id = stored_rows.job_in(engine, at, status)
    stored_rows.force(engine, job_id, updated_at=at)
    return job_id


def _remove_job(engine: Engine, job_id: int) -> None:
    stored_rows.remove(engine, [job_id])


def _go_to(engine: Engine, partition: int) -> None:
    """Further rows are in that partition."""
    with database.writing(engine) as conn:
        start = layouts.read_layout(conn).partitions[partition].start
        conn.execute(text("SELECT setval('job_log_log_id_seq', :n)"), {"n": start + 10})


def _names(engine: Engine) -> list[str]:
    with database.reading(engine) as conn:
        return [each.name for each in layouts.read_layout(conn).partitions]


def _jobs_in(engine: Engine, table: str = "job_log") -> list[int]:
    return databases.scalars(engine, text(f"SELECT job_id FROM {table} ORDER BY log_id"))


def _clear(
    engine: Engine,
    now: datetime,
    *,
    kept: timedelta = 30 * DAY,
    readers: Collection[str] = (),
    last: datetime | None = None,
) -> dict[str, int] | None:
    """What went, of logs that every VO keeps so long; None: locks were held."""
    ages = LogAges(find_cutoff=lambda _: now - kept, ages={kept}, readers=readers)
    with leader.lead(engine, retention.NAME, holder="me", now=now) as leadership:
        assert leadership is not None
        removed = log_partitions.clear(leadership, ages, last=last)
    return None if removed is None else {kind: number for kind, number in removed.items() if number}


def _history(engine: Engine, now: datetime) -> tuple[int, int, int]:
    """In the second partition a job that is gone and one that runs for 40 days; a new one in the third."""
    _go_to(engine, 1)
    gone = _put(engine, now - OLD)
    _remove_job(engine, gone)
    running = _put(engine, now - OLD, JobStatus.RUNNING)
    _go_to(engine, 2)
    return gone, running, _put(engine, now)


def test_an_old_partition_goes_and_rows_of_jobs_that_live_move_to_the_rest(
    partitioned: Engine, now: datetime
) -> None:
    gone, running, new = _history(partitioned, now)
    before = _names(partitioned)
    assert _jobs_in(partitioned, before[1]) == [gone, running]
    # The first partition is empty, and over as well.
    assert _clear(partitioned, now) == {"partitions of the job log": 2}
    assert _names(partitioned) == before[2:]
    assert (_jobs_in(partitioned), _jobs_in(partitioned, REST)) == ([running, new], [running])
    assert [each.to_status for each in submitted_jobs.log_of(partitioned, running)] == [JobStatus.RECEIVED]
    assert _clear(partitioned, now) == {}
    _remove_job(partitioned, running)
    assert _clear(partitioned, now) == {"log rows": 1}
    assert _jobs_in(partitioned) == [new]


def test_a_young_partition_stays(partitioned: Engine, now: datetime) -> None:
    _history(partitioned, now)
    before = _names(partitioned)
    assert _clear(partitioned, now, kept=41 * DAY) == {"partitions of the job log": 1}
    assert _names(partitioned) == before[1:]


def test_what_a_reader_has_not_counted_stays(partitioned: Engine, now: datetime) -> None:
    _history(partitioned, now)
    before = _names(partitioned)
    databases.execute(
        partitioned, insert(log_readers).values(name="slow", counted=20, noted=20, under_way="[]")
    )
    assert _clear(partitioned, now, readers={"slow"}) == {}
    assert _names(partitioned) == before
    databases.execute(partitioned, update(log_readers).values(counted=2**40))
    assert _clear(partitioned, now, readers={"slow"}) == {"partitions of the job log": 2}


def test_the_wait_times_of_jobs_are_stored_before_their_log_goes(partitioned: Engine, now: datetime) -> None:
    _go_to(partitioned, 1)
    job_id = _put(partitioned, now - OLD)
    stored_rows.force(partitioned, job_id, updated_at=now - OLD + timedelta(minutes=5))
    _go_to(partitioned, 2)
    _put(partitioned, now)
    assert _clear(partitioned, now) == {"partitions of the job log": 2}
    with database.reading(partitioned) as conn:
        waited = conn.execute(select(job_waits.c.seconds).where(job_waits.c.job_id == job_id)).scalars().all()
        assert (log.read_log(conn, job_id), waited) == ([], [300])
        assert jobs.get_job(conn, job_id)


def test_where_too_much_is_kept_old_rows_go_one_by_one_a_week_later(
    partitioned: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_partitions, "_MOST_MOVED", 0)
    gone, running, new = _history(partitioned, now)
    assert _clear(partitioned, now, kept=35 * DAY) == {"partitions of the job log": 1}
    assert _jobs_in(partitioned) == [gone, running, new]
    assert _clear(partitioned, now, kept=33 * DAY, last=now - 2 * DAY) == {"log rows": 1}
    assert _jobs_in(partitioned) == [running, new]
    # Not read again every day.
    _remove_job(partitioned, running)
    monkeypatch.setattr(log_partitions, "_find_kept", lambda *_: None)
    assert _clear(partitioned, now, kept=30 * DAY, last=now - DAY) == {}


def test_locks_are_not_waited_for(partitioned: Engine, partitioned_url: str, now: datetime) -> None:
    _, running, new = _history(partitioned, now)
    reader = database.connect(partitioned_url)
    with reader.connect() as conn:
        conn.execute(select(func.count()).select_from(job_log)).all()
        assert _clear(partitioned, now) is None
        assert len(_jobs_in(partitioned)) == 3
    reader.dispose()
    assert _clear(partitioned, now) == {"partitions of the job log": 2}
    assert _jobs_in(partitioned) == [running, new]


def test_a_process_that_is_killed_anywhere_loses_no_row(partitioned: Engine, now: datetime) -> None:
    [_, running, new] = _history(partitioned, now)
    for statement in count():
        try:
            with crashes.killed_at(partitioned, statement):
                _clear(partitioned, now)
        except crashes.KilledError:
            assert {running, new} <= set(_jobs_in(partitioned))
        else:
            break
    assert statement > 10
    assert _jobs_in(partitioned) == [running, new]


def test_the_agent_makes_partitions_and_removes_old_ones(partitioned: Engine, now: datetime) -> None:
    config = queued_jobs.grid()
    _go_to(partitioned, 1)
    old = _put(partitioned, now - OLD)
    _go_to(partitioned, 4)
    new = _put(partitioned, now)
    before = _names(partitioned)
    memory = retention.RetentionState()
    for later in (timedelta(), timedelta(minutes=10), DAY):
        # The log is counted up to the end that the cycle before has seen.
        result = retention.cycle(partitioned, config, now=now + later, holder="me", memory=memory)
        assert result is not None
        assert not result.broken
    after = _names(partitioned)
    assert after[: len(before) - 4] == before[4:]
    with database.reading(partitioned) as conn:
        assert layouts.read_layout(conn).ahead == AHEAD
        with pytest.raises(JobNotFound):
            jobs.get_job(conn, old)
    assert _jobs_in(partitioned) == [new]


def test_the_agent_removes_what_a_killed_conversion_left(postgresql: Engine, now: datetime) -> None:
    with postgresql.connect() as conn, layouts._converting_alone(conn):
        layouts._bound_numbers(conn)
    assert databases.scalar(postgresql, layouts.BOUND)
    assert retention.cycle(postgresql, queued_jobs.grid(), now=now, holder="me") is not None
    with database.reading(postgresql) as conn:
        assert conn.execute(layouts.BOUND).scalar_one_or_none() is None


def test_the_feed_skips_rows_of_jobs_that_are_gone(partitioned: Engine, now: datetime) -> None:
    _go_to(partitioned, 1)
    job_ids = [_put(partitioned, now) for _ in range(5)]
    for job_id in job_ids[:3]:
        _remove_job(partitioned, job_id)
    feed, after, found = LogFeed(partitioned), 0, list[object]()
    upto = feed.read_present(seconds=300)
    assert upto is not None
    pages = 0
    while True:
        page = feed.read_page(after, upto=upto, most=2)
        found += [each.fields["job_id"] for each in page.changes]
        after, pages = page.upto, pages + 1
        if not page.more:
            break
    assert (found, pages) == (job_ids[3:], 3)


def test_jobs_go_at_their_time_and_their_log_later(partitioned: Engine, now: datetime) -> None:
    _go_to(partitioned, 1)
    job_id = _put(partitioned, now - OLD)
    old = OldJobs(job_ids=[job_id], before={"lhcb": now}, readers=())
    with database.writing(partitioned) as conn:
        assert removal.remove_logs(conn, old) == 0
        assert removal.remove_jobs(conn, old) == 1
    assert _jobs_in(partitioned) == [job_id]
