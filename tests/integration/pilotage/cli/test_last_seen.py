"""What a host notes of how far a database has come: a loss is reported, and nothing else is."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine

from pilotage.cli import engine as cli_engine
from pilotage.cli import settings
from pilotage.cli.engine import LastSeen
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Settings
from taskqueue.db import database, incarnation
from taskqueue.db.incarnation import InstallationState
from tests import databases, waiting

Overtaken = Callable[[Connection], InstallationState]
READ = incarnation.read_state


@pytest.fixture
def chosen(engine: Engine, tmp_path: Path) -> Settings:
    return _settings(tmp_path, engine.url.render_as_string(hide_password=False))


@pytest.fixture
def overtaken(engine: Engine, chosen: Settings, now: datetime) -> Overtaken:
    """Reads the standing; another process of this home commits and notes its own before we are done."""

    def read(conn: Connection) -> InstallationState:
        found = READ(conn)
        cli_engine.write_last_seen(chosen, _grow(engine, now))
        return found

    return read


def _settings(home: Path, url: str) -> Settings:
    return settings.load({"home": home, "database_url": url}, {})


def _grow(engine: Engine, now: datetime) -> InstallationState:
    with database.writing(engine) as conn:
        waiting.put(conn, now)
    with database.reading(engine) as conn:
        return READ(conn)


@databases.BOTH
def test_what_another_process_notes_while_we_look_is_no_loss(
    engine: Engine,
    chosen: Settings,
    overtaken: Overtaken,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _grow(engine, now)
    monkeypatch.setattr(incarnation, "read_state", overtaken)
    seen = LastSeen(engine, chosen)
    with caplog.at_level(logging.ERROR):
        seen.look(now)
    assert caplog.messages == []
    with database.reading(engine) as conn:
        assert cli_engine.read_last_seen(chosen) == READ(conn), "it is not lowered by who looked earlier"


@databases.BOTH
def test_a_loss_is_reported_and_stays_noted(engine: Engine, chosen: Settings, now: datetime) -> None:
    standing = _grow(engine, now)
    ahead = replace(standing, log_id=standing.log_id + 1)
    cli_engine.write_last_seen(chosen, ahead)
    with pytest.raises(CommandRefused, match=f"its log ends at {standing.log_id} .*, but {ahead.log_id} "):
        LastSeen(engine, chosen)
    assert cli_engine.read_last_seen(chosen) == ahead


@databases.BOTH
def test_a_new_database_at_the_same_address_has_lost_nothing(
    engine: Engine, chosen: Settings, now: datetime
) -> None:
    cli_engine.write_last_seen(chosen, InstallationState(incarnation=1, log_id=1000))
    seen = LastSeen(engine, chosen)
    standing = _grow(engine, now)
    seen.look(now)
    assert cli_engine.read_last_seen(chosen) == standing


def test_databases_of_one_home_are_noted_side_by_side(tmp_path: Path) -> None:
    """As by two addresses of one database, directly and by a pooler."""
    urls = ("postgresql://pilotage@one/pilotage", "postgresql://pilotage@two/pilotage")
    both = [_settings(tmp_path, url) for url in urls]
    for number, each in enumerate(both, 1):
        cli_engine.write_last_seen(each, InstallationState(incarnation=1, log_id=number))
    assert [cli_engine.read_last_seen(each) for each in both] == [
        InstallationState(incarnation=1, log_id=1),
        InstallationState(incarnation=1, log_id=2),
    ]
