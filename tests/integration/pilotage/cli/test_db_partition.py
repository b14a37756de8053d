"""`pilotage db partition`, and what commands show of the layout of the job log."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from pilotage.cli import doctor, settings
from pilotage.cli.commands import db
from pilotage.cli.doctor import Health
from pilotage.cli.errors import CommandRefused
from pilotage.service.problems.finding import Finding
from taskqueue.db import database, log_partitions
from tests.support.servers.pgbouncer import Pgbouncer


def _find(url: str, home: Path, now: datetime) -> Finding:
    chosen = settings.load({"home": home, "database_url": url}, {})
    [found] = [each for each in doctor.check_database(chosen, now) if each.subject == "job log"]
    return found


def test_the_command_and_the_checks_name_the_layout(
    postgres_url: str, tmp_path: Path, now: datetime, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _find(postgres_url, tmp_path, now).message == "in one table"
    layout = "in 8 partitions, 7 of them for the days to come"
    for _ in range(2):
        db.partition(database_url=postgres_url, database_direct_url=None, home=tmp_path, as_json=False)
        assert capsys.readouterr().out == f"job log: {layout}\n"
    found = _find(postgres_url, tmp_path, now)
    assert (found.health, found.message) == (Health.GOOD, layout)
    db.check(database_url=postgres_url, home=tmp_path, as_json=False)
    assert capsys.readouterr().out.endswith(f"is up to date; job log {layout}\n")
    db.check(database_url=postgres_url, home=tmp_path, as_json=True)
    assert json.loads(capsys.readouterr().out)["log_partitions"] == 8


def test_a_log_without_partitions_ahead_is_a_problem(
    partitioned_url: str, tmp_path: Path, now: datetime
) -> None:
    engine = database.connect(partitioned_url)
    with database.writing(engine) as conn:
        end = log_partitions.read_layout(conn).partitions[-1].end
        conn.execute(text("SELECT setval('job_log_log_id_seq', :n)"), {"n": end})
    engine.dispose()
    found = _find(partitioned_url, tmp_path, now)
    assert (found.health, found.message.split(":")[0]) == (Health.BAD, "no partition is left")


def test_a_conversion_that_was_killed_is_a_problem(postgres_url: str, tmp_path: Path, now: datetime) -> None:
    engine = database.connect(postgres_url)
    with engine.connect() as conn:
        log_partitions._bound_numbers(conn)
    engine.dispose()
    found = _find(postgres_url, tmp_path, now)
    assert (found.health, "if that was killed" in found.message) == (Health.WARNING, True)


def test_what_cannot_be_partitioned_is_refused(postgres_url: str, sqlite_url: str, tmp_path: Path) -> None:
    engine = database.connect(postgres_url)
    with database.writing(engine) as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    engine.dispose()
    for url, reason in ((sqlite_url, "only PostgreSQL"), (postgres_url, "db upgrade")):
        with pytest.raises(CommandRefused, match=reason):
            db.partition(database_url=url, database_direct_url=None, home=tmp_path, as_json=False)


@pytest.mark.debian("pgbouncer")
def test_a_pooler_needs_the_direct_address(pgbouncer: Pgbouncer, postgres_url: str, tmp_path: Path) -> None:
    pooled = pgbouncer.url(postgres_url)
    with pytest.raises(CommandRefused, match="database_direct_url"):
        db.partition(database_url=pooled, database_direct_url=None, home=tmp_path, as_json=False)
    db.partition(database_url=pooled, database_direct_url=postgres_url, home=tmp_path, as_json=False)
