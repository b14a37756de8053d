"""The schema that migrations make."""

import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

import taskqueue.schema.tables  # noqa: F401  # the metadata has those of the configuration only
from agents import sweep
from cs_config.versions.tables import metadata
from examples.servers.postgres import Postgres
from requirements.resource import Location
from requirements.states import JobStatus
from taskqueue import migrations
from taskqueue.db import database, missing_indexes
from taskqueue.leases.reports import PayloadResult
from tests.support import databases, earlier_release, wait
from tests.support.factories import pilot_reports, queued_jobs
from tests.support.factories.submitted_jobs import grid, job
from tests.support.servers.pgbouncer import Pgbouncer

#: Every table, index and constraint, in the database's own words. Views and triggers are those of migrations.
_SQLITE = """
SELECT type, name, tbl_name, sql FROM sqlite_master
WHERE name NOT LIKE '%alembic%' AND type IN ('table', 'index') ORDER BY 1, 2"""
_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
    pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0
    AND c.relname <> 'alembic_version'
ORDER BY c.relname, a.attnum"""
_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'public'::regnamespace AND conname NOT LIKE '%alembic%' ORDER BY 1, 2"""
_INDEXES = """
SELECT tablename, indexname, indexdef FROM pg_indexes
WHERE schemaname = 'public' AND tablename <> 'alembic_version' ORDER BY 1, 2"""
_STORAGE = """
SELECT relname, unnest(reloptions) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1, 2"""

#: The revision of the schema that the last release made.
_RELEASED = "0002"
_VERSIONS = Path(migrations.__file__).parent / "versions"


def _schema(engine: Engine) -> list[tuple[str, ...]]:
    postgresql = [_COLUMNS, _CONSTRAINTS, _INDEXES, _STORAGE]
    queries = [_SQLITE] if engine.dialect.name == "sqlite" else postgresql
    with database.reading(engine) as conn:
        rows = [row for query in queries for row in conn.execute(text(query))]
    return [tuple(_plain(str(value)) for value in row) for row in rows]


def _plain(definition: str) -> str:
    if definition.startswith("CREATE TABLE"):  # the order of columns and constraints does not matter
        head, _, body = definition.partition("(")
        return "\n".join([head.strip(), *sorted(_members(body.rstrip().removesuffix(")")))])
    return " ".join(definition.split())


def _members(body: str) -> Iterator[str]:
    """Columns and constraints: what stands between commas that are in no brackets."""
    member, depth = "", 0
    for character in body + ",":
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield " ".join(member.split())
            member = ""
        else:
            member += character


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    server: Postgres = request.getfixturevalue("postgres")
    server.execute("CREATE DATABASE empty")
    yield server.url("empty")
    server.execute("DROP DATABASE empty WITH (FORCE)")


def test_the_schema_made_by_upgrade_is_the_one_of_the_tables(
    empty_url: str, request: pytest.FixtureRequest
) -> None:
    new = database.connect(empty_url)
    with database.writing(new) as conn:
        metadata.create_all(conn)
    fixture = "sqlite_url" if new.dialect.name == "sqlite" else "postgres_url"
    upgraded = database.connect(request.getfixturevalue(fixture))
    assert _schema(upgraded) == _schema(new)
    new.dispose()
    upgraded.dispose()


@pytest.mark.parametrize("revision", [_RELEASED, "head"])
def test_migrations_make_the_schema_of_the_last_release_to_the_character_on_sqlite(
    revision: str, tmp_path: Path
) -> None:
    new, earlier = tmp_path / "new.db", tmp_path / "earlier.db"
    earlier_release.restore_sqlite(earlier)
    for file in (new, earlier):
        _migrate(f"sqlite:///{file}", revision)
    assert _dump_sqlite(new) == _dump_sqlite(earlier)


@pytest.mark.parametrize("revision", [_RELEASED, "head"])
def test_migrations_make_the_schema_of_the_last_release_to_the_character_on_postgresql(
    revision: str, postgres: Postgres
) -> None:
    names = ["made_anew", "made_by_the_last_release"]
    dumps: list[str] = []
    for name in names:
        postgres.execute(f"CREATE DATABASE {name}")
    earlier_release.restore_postgresql(postgres, names[1])
    for name in names:
        _migrate(postgres.url(name), revision)
        # PostgreSQL writes some conditions in other words after a dump: both have gone through one.
        postgres.dump(name, postgres.directory / name)
        postgres.restore(name, postgres.directory / name)
        dumps.append(postgres.dump_schema(name))
        postgres.execute(f"DROP DATABASE {name}")
    assert dumps[0] == dumps[1]


def test_downtimes_of_sqlite_are_kept_and_their_numbers_are_never_given_to_others(tmp_path: Path) -> None:
    file = tmp_path / "earlier.db"
    at = "'2030-01-01 00:00:00'"
    add = (
        "INSERT INTO downtimes (scope, site, place, begins, ends, severity, reason, author, at, source)"
        f" VALUES ('s', 's', 'S', {at}, {at}, 'OUTAGE', 'r', 'a', {at}, '') RETURNING downtime_id"
    )

    def run(statement: str) -> list[tuple[int]]:
        with closing(sqlite3.connect(file)) as conn, conn:
            return conn.execute(statement).fetchall()

    _migrate(f"sqlite:///{file}", "0019")
    assert [run(add), run(add), run(add)] == [[(1,)], [(2,)], [(3,)]]
    run("DELETE FROM downtimes WHERE downtime_id = 2")
    before = run("SELECT * FROM downtimes ORDER BY 1")
    _migrate(f"sqlite:///{file}", "head")
    assert run("SELECT * FROM downtimes ORDER BY 1") == before
    run("DELETE FROM downtimes")
    assert run(add) == [(4,)]


def _migrate(url: str, revision: str) -> None:
    engine = database.connect(url)
    with database.writing(engine) as conn:
        command.upgrade(database._configure_alembic(conn), revision)
    engine.dispose()


def _dump_sqlite(file: Path) -> list[tuple[str, ...]]:
    """The statements in the catalogue, of tables, indexes, triggers and views."""
    with sqlite3.connect(file) as conn:
        rows = conn.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    conn.close()
    return rows


def test_an_empty_database_has_no_revision_and_then_the_newest(empty_url: str) -> None:
    engine = database.connect(empty_url)
    before = database.schema_state(engine)
    database.upgrade(empty_url)
    after = database.schema_state(engine)
    engine.dispose()
    assert (before.current, before.is_current) == (None, False)
    assert (after.current, after.is_current) == (before.head, True)


def test_the_name_of_a_migration_begins_with_its_revision() -> None:
    found = ScriptDirectory.from_config(database._configure_alembic()).walk_revisions()
    assert database._list_revisions() == tuple(each.revision for each in found)


def test_upgrading_again_changes_nothing(database_url: str) -> None:
    engine = database.connect(database_url)
    before = _schema(engine)
    database.upgrade(database_url)
    assert _schema(engine) == before
    engine.dispose()


def test_many_that_upgrade_at_once_all_succeed(empty_url: str) -> None:
    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(database.upgrade, [empty_url] * 6)) == [False] * 5 + [True]
    engine = database.connect(empty_url)
    assert database.schema_state(engine).is_current
    engine.dispose()


def test_an_upgrade_that_fails_leaves_nothing_behind(empty_url: str) -> None:
    engine = database.connect(empty_url)
    databases.execute(engine, text("CREATE TABLE pool_queues (in_the_way INTEGER)"))
    with pytest.raises(Exception, match="pool_queues"):
        database.upgrade(empty_url)
    state = database.schema_state(engine)
    databases.execute(engine, text("DROP TABLE pool_queues"))
    database.upgrade(empty_url)
    engine.dispose()
    assert state.current is None


def test_an_upgrade_that_meets_a_deadlock_is_carried_out_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes at work lock tables in another order than migrations."""
    tries: list[int] = []
    locked = threading.Event()
    rival = database.connect(postgres_url)

    def work() -> None:
        with rival.connect() as conn, conn.begin():
            conn.execute(text("SET LOCAL deadlock_timeout = '1h'"))  # so that the upgrade is rolled back
            conn.execute(text("LOCK TABLE attempts IN ACCESS SHARE MODE"))
            locked.set()
            conn.execute(text("LOCK TABLE jobs IN ACCESS SHARE MODE"))

    def migrate(config: Config, _head: str) -> None:
        conn: Connection = config.attributes["connection"]
        conn.execute(text("ALTER TABLE jobs ADD COLUMN later INTEGER"))
        if not tries:
            threads.submit(work)
            assert locked.wait(300)
        tries.append(1)
        conn.execute(text("ALTER TABLE attempts ADD COLUMN later INTEGER"))

    monkeypatch.setattr(command, "upgrade", migrate)
    with ThreadPoolExecutor(1) as threads:
        database.upgrade(postgres_url)
    assert len(tries) == 2
    columns = [_schema(rival).count(("jobs", "later", "integer", "False", "", "None"))]
    rival.dispose()
    assert columns == [1]


def test_jobs_that_a_first_release_left_run_to_their_end_after_the_upgrade(
    empty_url: str, now: datetime
) -> None:
    engine = database.connect(empty_url)
    with database.writing(engine) as conn:
        command.upgrade(database._configure_alembic(conn), "0001")
        for statement in _LEFT_BEHIND:
            conn.execute(text(statement), {"now": now.replace(tzinfo=None) if _is_sqlite(conn) else now})
    engine.dispose()
    database.upgrade(empty_url)
    assert sweep.cycle(engine, grid(), now=now + timedelta(minutes=1), holder="me") == sweep.SweepResult(
        waiting=1
    )
    with database.writing(engine) as conn:
        ids = conn.scalars(text("SELECT task_queue_id FROM task_queues")).all()
        claimed = queued_jobs.claim(
            conn, ids, now, count=5, place=Location(site="A.B.ch", ce="ce", queue="big")
        )
        assert sorted(each.job_id for each in claimed) == [1, 2]
        for lease in (*(each.lease for each in claimed), "old-lease"):
            pilot_reports.start(conn, lease, lease_time=timedelta(minutes=5), now=now)
            pilot_reports.finish(conn, lease, PayloadResult(status="Done", exit_code=0), now=now)
    assert [job(engine, each).status for each in (1, 2, 3)] == [JobStatus.DONE] * 3
    engine.dispose()


#: What migrations add to tables that may have many rows.
_LATER_INDEXES = [
    *("ix_descriptions_relax_after", "ix_descriptions_sandbox"),
    *("ix_pilots_not_asked", "ix_pilots_site_asked_at"),
]
_DESCRIPTION = "INSERT INTO descriptions (source, body, sandbox) VALUES ('', '{}', 'd')"
_PILOT = """
INSERT INTO pilots (stamp, vo, status, status_reason, site, ce, queue, submitted_by, jobs, created_at,
    updated_at)
VALUES ('a', 'lhcb', 'Done', '', 'A.B.ch', 'ce', 'big', '', 0, now(), now())"""


@pytest.fixture
def with_rows(postgres: Postgres) -> Iterator[Engine]:
    """A database of PostgreSQL that the first release made and used, with migrated tables."""
    postgres.execute("CREATE DATABASE with_rows")
    url = postgres.url("with_rows")
    _migrate(url, "0001")
    engine = database.connect(url)
    with database.writing(engine) as conn:
        conn.exec_driver_sql(_DESCRIPTION)
        conn.exec_driver_sql(_PILOT)
    _migrate(url, "head")
    yield engine
    engine.dispose()
    postgres.execute("DROP DATABASE with_rows WITH (FORCE)")


def _list_missing(engine: Engine) -> list[str]:
    with database.reading(engine) as conn:
        return [str(each.name) for each in missing_indexes.find_missing(conn)]


def _url(engine: Engine) -> str:
    return engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


def test_an_index_of_a_table_with_rows_is_built_after_the_migrations(with_rows: Engine) -> None:
    assert _list_missing(with_rows) == _LATER_INDEXES
    reports: list[str] = []
    database.upgrade(_url(with_rows), reports.append)
    assert _list_missing(with_rows) == []
    assert reports == [
        f"building the index {name}, beside what writes to {name.split('_')[1]}" for name in _LATER_INDEXES
    ]
    database.upgrade(_url(with_rows), reports.append)
    assert len(reports) == len(_LATER_INDEXES), "there is nothing left to build"


def test_nobody_who_writes_waits_while_an_index_is_built(with_rows: Engine) -> None:
    """It waits for a transaction that wrote before; another one that begins then does not wait for it."""
    add = text(_DESCRIPTION)
    with ThreadPoolExecutor(1) as threads:
        with with_rows.connect() as earlier, earlier.begin():
            earlier.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            earlier.execute(add)
            upgrading = threads.submit(database.upgrade, _url(with_rows))
            wait.until(lambda: databases.count_lock_waits(with_rows) == 1)
            with database.writing(with_rows) as conn:
                conn.execute(add)
            assert not upgrading.done()
        upgrading.result(300)
    assert _list_missing(with_rows) == []


def test_an_index_whose_build_was_ended_is_built_again(with_rows: Engine) -> None:
    database.upgrade(_url(with_rows))
    with database.writing(with_rows) as conn:  # as PostgreSQL leaves it
        conn.exec_driver_sql(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_descriptions_sandbox'::regclass"
        )
    assert _list_missing(with_rows) == ["ix_descriptions_sandbox"]
    database.upgrade(_url(with_rows))
    assert _list_missing(with_rows) == []


def test_many_that_build_indexes_at_once_all_succeed(with_rows: Engine) -> None:
    reports: list[str] = []
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: database.upgrade(_url(with_rows), reports.append), range(6)))
    assert _list_missing(with_rows) == []
    built = [each for each in reports if each.startswith("building")]  # others say that they wait
    assert len(built) == len(_LATER_INDEXES), "each is built once"


@pytest.mark.debian("pgbouncer")
def test_indexes_are_built_through_a_pooler(with_rows: Engine, pgbouncer: Pgbouncer) -> None:
    database.upgrade(pgbouncer.url(_url(with_rows)))
    assert _list_missing(with_rows) == []


@pytest.mark.parametrize(
    "file", sorted(each.name for each in _VERSIONS.glob("*.py") if each.name[:4] > _RELEASED)
)
def test_a_migration_creates_indexes_of_its_own_tables_only(file: str) -> None:
    """Those of others by `existing_tables.add_index`, which keeps no writer away."""
    source = (_VERSIONS / file).read_text()
    made = re.findall(r'op\.create_table\(\s*"(\w+)"', source)
    indexed = re.findall(r'op\.create_index\(\s*(?:op\.f\()?"\w+"\)?,\s*"(\w+)"', source)
    assert len(indexed) == source.count("create_index(")
    assert set(indexed) <= set(made)


def _is_sqlite(conn: Connection) -> bool:
    return conn.dialect.name == "sqlite"


def _job(job_id: int, status: str, *, due: str = "NULL", task_queue: str = "NULL", epoch: int = 0) -> str:
    return f"""
INSERT INTO jobs (job_id, vo, owner, owner_group, status, minor_status, application_status, job_name,
    job_type, job_group, priority, description_id, due_at, task_queue_id, site, epoch, reschedules,
    submitted_at, updated_at)
VALUES ({job_id}, 'lhcb', 'ann', 'lhcb_user', '{status}', '', '', '', '', '', 1, 1, {due}, {task_queue},
    'ANY',
    {epoch}, 0, :now, :now)"""


#: A job that nobody looked at yet, one that waits, and one that a pilot has.
_LEFT_BEHIND = [
    """INSERT INTO descriptions (description_id, source, body) VALUES (1, '', '{"Executable": "a.sh"}')""",
    """
INSERT INTO requirement_classes (class_id, digest, vo, definition)
VALUES (1, 'd', 'lhcb', '{"cpu_time": 86400, "vo": "lhcb"}')""",
    """
INSERT INTO task_queues (task_queue_id, class_id, vo, owner, owner_group, priority, occupied, changed_at)
VALUES (1000, 1, 'lhcb', 'ann', 'lhcb_user', 1, TRUE, :now)""",
    _job(1, "Received", due=":now"),
    _job(2, "Waiting", task_queue="1000"),
    _job(3, "Matched", task_queue="1000", epoch=1),
    "INSERT INTO waiting_jobs (job_id, task_queue_id, priority) VALUES (2, 1000, 1)",
    """
INSERT INTO attempts (job_id, epoch, lease, holder, vo, site, ce, queue, opened_at, lease_expires_at,
    progress,
    output_tail)
VALUES (3, 1, 'old-lease', 'pilot', 'lhcb', 'A.B.ch', 'ce', 'big', :now, :now, '', '')""",
]
