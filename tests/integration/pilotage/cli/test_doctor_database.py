"""What `pilotage doctor` says of a PostgreSQL that loses what it accepted, and of one that waits for ever."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import psycopg
import pytest

from examples.servers.postgres import Postgres
from examples.servers.starting import wait_until
from pilotage.cli import doctor, settings
from pilotage.cli.commands import db
from pilotage.cli.doctor import Finding, Health
from taskqueue.db import clock, database, replica
from taskqueue.db.history import RAISE


def _found(url: str, home: Path, now: datetime, **others: object) -> dict[str, Finding]:
    chosen = settings.load({"home": home, "database_url": url, **others}, {})
    return {each.subject: each for each in doctor.check_database(chosen, now)}


@contextmanager
def _whole_server(server: Postgres, name: str, value: str) -> Iterator[None]:
    """A setting that the server takes over without a restart."""

    def is_now(wanted: str) -> bool:
        with psycopg.connect(host=str(server.directory), user="postgres", dbname="postgres") as connection:
            return connection.execute(f"SHOW {name}").fetchone() == (wanted,)  # type: ignore[call-overload]

    server.execute(f"ALTER SYSTEM SET {name} = {value}")
    server.execute("SELECT pg_reload_conf()")
    try:
        wait_until(lambda: is_now(value))
        yield
    finally:
        server.execute(f"ALTER SYSTEM RESET {name}")
        server.execute("SELECT pg_reload_conf()")
        wait_until(lambda: is_now("on"))


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_server_that_loses_what_it_accepted_is_refused(
    name: str, postgres: Postgres, postgres_url: str, tmp_path: Path, now: datetime
) -> None:
    assert name not in _found(postgres_url, tmp_path, now)
    with _whole_server(postgres, name, "off"):
        found = _found(postgres_url, tmp_path, now)[name]
    assert found.health is Health.BAD
    assert found.message.startswith(f"{name} is off: ")


def test_a_role_that_gives_up_durability_is_refused_too(
    postgres: Postgres, postgres_url: str, tmp_path: Path, now: datetime
) -> None:
    postgres.execute("CREATE ROLE hasty SUPERUSER LOGIN")
    postgres.execute("ALTER ROLE hasty SET synchronous_commit = off")
    try:
        found = _found(postgres_url.replace("postgres@", "hasty@"), tmp_path, now)
    finally:
        postgres.execute("DROP ROLE hasty")
    assert found["synchronous_commit"].health is Health.BAD


def test_a_connection_without_time_outs_is_told_how_to_get_them(
    postgres_url: str, tmp_path: Path, now: datetime
) -> None:
    assert not {"lock_timeout", "jit", "TimeZone"} & _found(postgres_url, tmp_path, now).keys()
    found = _found(f"{postgres_url}&options=-c%20statement_timeout%3D5s", tmp_path, now)
    assert "statement_timeout" not in found
    assert found["lock_timeout"].health is Health.WARNING
    assert found["lock_timeout"].message.endswith("ALTER ROLE postgres SET lock_timeout = '10s'")


def test_a_replica_that_is_late_or_away_is_no_fault_but_named(
    postgres_url: str, tmp_path: Path, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any server with the same tables will do; here it is the primary itself."""
    monkeypatch.setattr(replica, "MOST_LATE", 300.0)  # however slow the machine is

    def find(url: str) -> Finding:
        return _found(postgres_url, tmp_path, now, database_replica_url=url)["replica"]

    assert "replica" not in _found(postgres_url, tmp_path, now)
    found = find(postgres_url)
    assert found.health is Health.WARNING
    assert "is late, or no service runs; the primary is read instead" in found.message
    engine = database.connect(postgres_url)
    with database.writing(engine) as conn:
        conn.execute(RAISE, {"home": "h", "number": 1, "at": clock.read_time(conn, now)})
    engine.dispose()
    assert find(postgres_url).health is Health.GOOD
    found = find(f"postgresql:///nowhere?host={tmp_path}")
    assert found.health is Health.WARNING
    assert found.message.endswith("the primary is read instead")


def test_an_index_that_an_upgrade_did_not_come_to_is_named(
    database_url: str, tmp_path: Path, now: datetime, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _found(database_url, tmp_path, now)["schema"].health is Health.GOOD
    engine = database.connect(database_url)
    with database.writing(engine) as conn:
        conn.exec_driver_sql("DROP INDEX ix_descriptions_sandbox")
    engine.dispose()
    found = _found(database_url, tmp_path, now)["schema"]
    assert found.health is Health.WARNING
    assert "without ix_descriptions_sandbox: `pilotage db upgrade`" in found.message
    db.upgrade(
        database_url=database_url,
        database_direct_url=None,
        first_job_id=None,
        home=tmp_path,
        as_json=False,
    )
    assert capsys.readouterr().err.startswith("building the index ix_descriptions_sandbox")
    assert _found(database_url, tmp_path, now)["schema"].health is Health.GOOD
