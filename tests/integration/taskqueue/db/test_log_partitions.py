"""The job log is put into partitions while others write it, and the process that does it may be killed."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import count
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, inspect, select, text
from sqlalchemy.exc import DBAPIError

from examples.servers.postgres import Postgres
from requirements.states import JobStatus
from taskqueue.db import database, incarnation, log_partitions
from taskqueue.db.log_partitions import AHEAD, REST, NotPartitioned
from taskqueue.jobs import log
from taskqueue.jobs.log import LogEntry
from taskqueue.schema.tables import job_log, jobs
from tests.support import concurrency, databases, large_database
from tests.support.factories import stored_rows, submitted_jobs


def _entry(job_id: int, now: datetime) -> LogEntry:
    return LogEntry(job_id=job_id, at=now, from_status=None, to_status=JobStatus.RECEIVED, source="test")


def _put(engine: Engine, now: datetime, number: int = 1) -> list[int]:
    return stored_rows.job_ids(engine, now, number)


def _numbers(engine: Engine, table: str = "job_log") -> list[int]:
    return databases.scalars(engine, text(f"SELECT log_id FROM {table} ORDER BY log_id"))


def _layout(engine: Engine) -> log_partitions.LogLayout:
    with database.reading(engine) as conn:
        return log_partitions.read_layout(conn)


def _has_bound(engine: Engine) -> bool:
    with database.reading(engine) as conn:
        return conn.execute(log_partitions.BOUND).scalar_one_or_none() is not None


def test_the_table_becomes_the_first_partition_with_its_rows(postgresql: Engine, now: datetime) -> None:
    _put(postgresql, now, 3)
    before = _numbers(postgresql)
    assert not _layout(postgresql)
    layout = log_partitions.convert(postgresql)
    assert layout == _layout(postgresql)
    assert (len(layout.partitions), layout.ahead, layout.is_full) == (1 + AHEAD, AHEAD, False)
    _put(postgresql, now, 3)
    after = _numbers(postgresql)
    assert after == _numbers(postgresql, layout.partitions[0].name)
    assert (after[:3], len(after)) == (before, 6)
    assert log_partitions.convert(postgresql) == layout
    with database.writing(postgresql) as conn:
        assert log_partitions.make_ahead(conn) == 0


def test_both_layouts_have_the_same_columns_keys_and_indexes(postgresql: Engine) -> None:
    def describe() -> list[Any]:
        found = inspect(postgresql)
        columns = [{**each, "type": repr(each["type"])} for each in found.get_columns("job_log")]
        indexes = [(each["name"], each["column_names"]) for each in found.get_indexes("job_log")]
        return [columns, found.get_pk_constraint("job_log")["constrained_columns"], indexes]

    before = describe()
    layout = log_partitions.convert(postgresql)
    assert describe() == before
    for each in (*layout.partitions, log_partitions.LogPartition(name=REST, start=0, end=0)):
        with database.reading(postgresql) as conn:
            options = conn.execute(
                text("SELECT reloptions FROM pg_class WHERE relname = :name"), {"name": each.name}
            ).scalar_one()
            indexed = conn.execute(
                text("SELECT count(*) FROM pg_indexes WHERE tablename = :name"), {"name": each.name}
            ).scalar_one()
        assert sorted(options) == sorted(f"{k}={v}" for k, v in job_log.kwargs["postgresql_with"].items())
        assert indexed == 2
    keys = inspect(postgresql)
    assert keys.get_foreign_keys("job_log") == []
    assert len(keys.get_foreign_keys(layout.partitions[0].name)) == 1


def test_rights_of_others_on_the_log_stay(postgresql: Engine) -> None:
    with database.writing(postgresql) as conn:
        conn.execute(text("DROP ROLE IF EXISTS reporter"))
        conn.execute(text("CREATE ROLE reporter"))
        conn.execute(text("GRANT SELECT ON job_log TO reporter"))
        conn.execute(text("ALTER TABLE job_log OWNER TO pg_database_owner"))
    layout = log_partitions.convert(postgresql)
    with database.reading(postgresql) as conn:
        owned = text("SELECT count(*) FROM pg_tables WHERE tableowner = 'pg_database_owner'")
        assert conn.execute(owned).scalar_one() == len(layout.partitions) + 2
    with database.writing(postgresql) as conn:
        assert conn.execute(text("SELECT has_table_privilege('reporter', 'job_log', 'SELECT')")).scalar_one()
        conn.execute(text("DROP OWNED BY reporter"))
        conn.execute(text("DROP ROLE reporter"))


def test_views_and_triggers_that_would_stay_with_the_first_partition_are_refused(postgresql: Engine) -> None:
    with database.writing(postgresql) as conn:
        conn.execute(text("CREATE VIEW of_ours AS SELECT job_id FROM job_log"))
        function = "suppress_redundant_updates_trigger()"
        conn.execute(
            text(f"CREATE TRIGGER own BEFORE UPDATE ON job_log FOR EACH ROW EXECUTE FUNCTION {function}")
        )
    with pytest.raises(NotPartitioned, match="of_ours, own"):
        log_partitions.convert(postgresql)
    assert (_layout(postgresql).partitions, _has_bound(postgresql)) == ((), False)


def test_sqlite_has_no_partitions(sqlite_url: str) -> None:
    engine = database.connect(sqlite_url)
    with pytest.raises(NotPartitioned, match="only PostgreSQL"):
        log_partitions.convert(engine)
    assert _layout(engine).describe() == "in one table"
    engine.dispose()


def test_only_one_process_converts_at_a_time(postgresql: Engine, postgres_url: str) -> None:
    other = database.connect(postgres_url)
    with (
        postgresql.connect() as conn,
        log_partitions._converting_alone(conn),
        pytest.raises(NotPartitioned, match="another process"),
    ):
        log_partitions.convert(other)
    assert log_partitions.convert(other)
    other.dispose()


def test_what_a_killed_conversion_left_is_not_removed_while_another_is_under_way(
    postgresql: Engine, postgres_url: str
) -> None:
    other = database.connect(postgres_url)
    with postgresql.connect() as conn, log_partitions._converting_alone(conn):
        log_partitions._bound_numbers(conn)
        with database.writing(other) as rival:
            assert not log_partitions.remove_bound(rival)
        assert _has_bound(other)
    with database.writing(other) as rival:
        assert log_partitions.remove_bound(rival)
        assert not log_partitions.remove_bound(rival)
    assert not _has_bound(other)
    other.dispose()


@contextmanager
def _losing_its_session_at(engine: Engine, postgres: Postgres, statement: int) -> Iterator[Event]:
    """The server ends the session before a statement, as if the process were killed there."""
    left, is_lost = count(statement, -1), Event()

    def lose(_conn: Any, cursor: Any, *_: Any) -> None:
        if next(left) == 0:
            is_lost.set()
            pid = cursor.connection.info.backend_pid
            postgres.execute(f"SELECT pg_terminate_backend({pid}, 300000)")

    event.listen(engine, "before_cursor_execute", lose)
    try:
        yield is_lost
    finally:
        event.remove(engine, "before_cursor_execute", lose)


def test_a_conversion_that_is_killed_anywhere_loses_nothing_and_can_be_repeated(
    postgres: Postgres, now: datetime
) -> None:
    bounds = 0
    for statement in count(step=3):  # what is killed within a transaction is rolled back
        with postgres.fresh() as url:
            engine, service = database.connect(url), database.connect(url)
            _put(service, now, 2)
            with _losing_its_session_at(engine, postgres, statement) as is_lost, suppress(DBAPIError):
                log_partitions.convert(engine)
            bounds += _has_bound(service)
            _put(service, now, 2)
            assert len(_numbers(service)) == 4
            layout = log_partitions.convert(engine)
            _put(service, now, 2)
            assert (len(_numbers(service)), layout.ahead) == (6, AHEAD)
            assert not _has_bound(service)
            engine.dispose()
            service.dispose()
        if not is_lost.is_set():
            break
    assert statement > 20
    assert bounds > 1  # the point is met where the bound is left behind


def test_others_write_and_read_while_the_log_is_converted(postgresql: Engine, now: datetime) -> None:
    [job_id] = _put(postgresql, now)
    is_over = Event()

    def work(number: int) -> int:
        if number == 0:
            log_partitions.convert(postgresql)
            is_over.set()
            return 0
        written = 0
        while not is_over.is_set() or not written:
            with database.writing(postgresql) as conn:
                log.append(conn, [_entry(job_id, now)] * 3)
                written += 3
            assert len(submitted_jobs.log_of(postgresql, job_id)) >= written
        return written

    written = sum(concurrency.at_once(4, work))
    assert len(_numbers(postgresql)) == written + 1
    assert _layout(postgresql)


def test_a_service_goes_on_beside_a_conversion(postgresql: Engine, postgres_url: str, tmp_path: Any) -> None:
    converter = database.connect(postgres_url)
    with large_database.service_on(postgresql, tmp_path) as service:
        before = large_database.live(service, 8)  # its statements are prepared by then
        running = large_database.live(service, 1, finish=False)
        assert log_partitions.convert(converter)
        assert large_database.run_one(service)
        after = large_database.live(service, 8)
        large_database.look(service, before[0])
        large_database.agents(service)
        job_ids = (*before, *running, *after)
        shown = [service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] for job_id in job_ids]
    converter.dispose()
    assert shown == ["Done"] * 17


def test_a_lock_that_is_not_to_be_had_leaves_the_log_as_it_was(
    postgresql: Engine, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_partitions, "_TRIES", 2)
    monkeypatch.setattr(log_partitions, "_PAUSE", 0.0)
    reader = database.connect(postgres_url)
    with reader.connect() as conn:
        conn.execute(text("SELECT * FROM job_log")).all()
        with pytest.raises(NotPartitioned, match="held locks"):
            log_partitions.convert(postgresql)
    reader.dispose()
    assert (_layout(postgresql).partitions, _has_bound(postgresql)) == ((), False)


def test_a_bound_that_the_numbers_came_too_near_to_is_replaced(
    postgresql: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap, bounds = log_partitions._swap, []

    def swap_later(conn: Any, bound: int) -> bool:
        if not bounds:
            with conn.begin():
                conn.execute(text("SELECT setval('job_log_log_id_seq', :n)"), {"n": bound - 10})
        bounds.append(bound)
        return swap(conn, bound)

    monkeypatch.setattr(log_partitions, "_swap", swap_later)
    layout = log_partitions.convert(postgresql)
    assert len(bounds) == 2
    assert layout.partitions[0].end == bounds[1] > bounds[0]


def test_new_rows_go_to_the_rest_until_there_are_partitions_again(postgresql: Engine, now: datetime) -> None:
    end = log_partitions.convert(postgresql).partitions[-1].end
    databases.execute(postgresql, text("SELECT setval('job_log_log_id_seq', :n)"), {"n": end + 5})
    assert _layout(postgresql).is_full
    _put(postgresql, now, 2)
    assert _numbers(postgresql, REST) == [end + 6, end + 7]
    with database.writing(postgresql) as conn:
        assert log_partitions.make_ahead(conn) == AHEAD
    layout = _layout(postgresql)
    assert (layout.ahead, layout.is_full) == (AHEAD, False)
    databases.execute(
        postgresql,
        text("SELECT setval('job_log_log_id_seq', :n)"),
        {"n": layout.partitions[-AHEAD].start + 1},
    )
    _put(postgresql, now)
    assert len(_numbers(postgresql, REST)) == 2
    assert len(_numbers(postgresql)) == 3


def test_a_partition_holds_about_a_day(postgresql: Engine, now: datetime) -> None:
    [job_id] = _put(postgresql, now)
    log_partitions.convert(postgresql)
    with database.writing(postgresql) as conn:
        conn.execute(text("SELECT setval('job_log_log_id_seq', 900000)"))
        log.append(conn, [_entry(job_id, now + timedelta(hours=6))])
        conn.execute(text("SELECT setval('job_log_log_id_seq', 6000000)"))
    with database.writing(postgresql) as conn:
        assert log_partitions.make_ahead(conn) > 0
    [*_, last] = _layout(postgresql).partitions
    assert last.end - last.start == 4_000_000


def test_jobs_of_the_next_release_and_a_recovery_live_on_partitions(
    partitioned_url: str, tmp_path: Any, now: datetime
) -> None:
    engine = database.connect(partitioned_url)
    databases.execute(engine, text("ALTER TABLE job_log ADD COLUMN later_count INTEGER NOT NULL DEFAULT 0"))
    with large_database.service_on(engine, tmp_path) as service:
        job_ids = large_database.live(service, 3)
        large_database.look(service, job_ids[0])
        large_database.agents(service)
    with database.writing(engine) as conn:
        assert incarnation.recover(conn, now=now).left_out >= 1_000_000
        assert conn.execute(select(func.count()).select_from(jobs)).scalar_one() == 3
    database.upgrade(partitioned_url)
    assert _layout(engine)
    engine.dispose()


def test_a_backup_keeps_the_partitions(postgres: Postgres, now: datetime) -> None:
    postgres.execute("CREATE DATABASE kept")
    url = postgres.url("kept")
    database.upgrade(url)
    engine = database.connect(url)
    _put(engine, now, 2)
    layout = log_partitions.convert(engine)
    engine.dispose()
    file = postgres.directory / "kept.dump"
    postgres.dump("kept", file)
    postgres.restore("kept", file)
    engine = database.connect(url)
    assert (_layout(engine), len(_numbers(engine))) == (layout, 2)
    _put(engine, now)
    with database.writing(engine) as conn:
        assert log_partitions.make_ahead(conn) == 0
    engine.dispose()
    postgres.execute("DROP DATABASE kept WITH (FORCE)")


def test_statements_on_a_span_of_the_log_read_its_partition_alone(
    partitioned_url: str, now: datetime
) -> None:
    engine = database.connect(partitioned_url)
    layout = _layout(engine)
    [plan] = databases.scalars(
        engine,
        text(
            "EXPLAIN (FORMAT JSON) SELECT * FROM job_log WHERE log_id > 5 AND log_id <= 900 "
            "ORDER BY log_id LIMIT 10"
        ),
    )
    engine.dispose()
    used = [each.name for each in layout.partitions if each.name in str(plan)]
    assert used == [layout.partitions[0].name]
