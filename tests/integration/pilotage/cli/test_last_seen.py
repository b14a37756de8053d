"""What a home directory knows of the database: a loss is noticed and holds, and nothing else is one."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete, select, text, update

from agents import leader
from pilotage.cli import engine as cli_engine
from pilotage.cli import settings
from pilotage.cli.engine import LastSeen
from pilotage.cli.errors import CommandRefused
from pilotage.cli.settings import Recovery, Settings
from taskqueue.db import database, history, incarnation
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.db.history import SeenCommit
from taskqueue.schema.tables import seen_commits
from tests.support import databases
from tests.support.factories import queued_jobs

pytestmark = databases.BOTH


def _settings(home: Path, engine: Engine) -> Settings:
    home.mkdir(exist_ok=True)
    url = engine.url.render_as_string(hide_password=False)
    return settings.load({"home": home, "database_url": url}, {})


@pytest.fixture
def chosen(engine: Engine, tmp_path: Path) -> Settings:
    return _settings(tmp_path / "home", engine)


@pytest.fixture
def other(engine: Engine, tmp_path: Path) -> Iterator[tuple[Engine, Settings]]:
    """A process on another host, which has its own home directory."""
    theirs = database.connect(engine.url.render_as_string(hide_password=False))
    yield theirs, _settings(tmp_path / "other", engine)
    theirs.dispose()


def _submit(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        queued_jobs.put(conn, now)


def _start(engine: Engine, chosen: Settings, now: datetime) -> LastSeen:
    """As each process does."""
    seen = LastSeen(engine, chosen)
    seen.start()
    seen.look(now)
    return seen


def _lose(engine: Engine, chosen: Settings) -> None:
    """Take the latest commit of a home directory away, as if it had not reached the replica."""
    seen = cli_engine.read_last_seen(chosen)
    assert seen is not None
    with database.writing(engine, despite_loss=True) as conn:
        conn.execute(
            update(seen_commits).where(seen_commits.c.home == seen.home).values(number=seen.number - 1)
        )


def _recover(engine: Engine, now: datetime) -> None:
    with database.writing(engine, despite_loss=True) as conn:
        incarnation.recover(conn, now=now)


def _refused(engine: Engine, chosen: Settings) -> str:
    with pytest.raises(CommandRefused) as refused:
        LastSeen(engine, chosen).start()
    return str(refused.value)


def test_numbers_of_a_transaction_that_was_rolled_back_are_no_commits(
    engine: Engine, chosen: Settings, now: datetime
) -> None:
    """As of submissions that waited for a synchronous replica when their server was lost.

    Other sessions see the state of a sequence at once, and the promoted replica has never heard of it.
    """
    seen = _start(engine, chosen, now)
    _submit(engine, now)

    def submit_and_fail() -> None:
        with database.writing(engine) as conn:
            queued_jobs.put(conn, now, 5)
            if engine.dialect.name == "postgresql":  # on SQLite it would wait for the end of this one
                seen.look(now)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        submit_and_fail()
    seen.look(now)
    if engine.dialect.name == "postgresql":
        with database.writing(engine) as conn:
            conn.execute(text("SELECT setval('job_log_log_id_seq', (SELECT max(log_id) FROM job_log))"))
    seen.look(now)
    _start(engine, chosen, now)
    assert not database.is_lost(engine)


def test_a_loss_holds_until_a_recovery_however_far_others_go_on(
    engine: Engine, chosen: Settings, other: tuple[Engine, Settings], now: datetime,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    ours, theirs = _start(engine, chosen, now), _start(*other, now)
    _submit(engine, now)
    ours.look(now)
    _lose(engine, chosen)
    for _ in range(10):  # the others raise all numbers that are shared
        theirs.look(now)
        _submit(other[0], now)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            ours.look(now)
            theirs.look(now)
    noticed, followed = [each.getMessage() for each in caplog.records]
    assert f"1 there (incarnation 1), but 2 (1) was acknowledged: {cli_engine.REMEDY}" in noticed
    assert f"has lost commits (incarnation 1), as was noticed before: {cli_engine.REMEDY}" in followed
    for each in (engine, other[0]):
        with pytest.raises(database.CommitsLost):
            _submit(each, now)
    for each in ((engine, chosen), other):
        assert cli_engine.REMEDY in _refused(*each)
    caplog.clear()

    _recover(engine, now)
    for seen in (ours, theirs):
        seen.look(now)
        assert seen.incarnation == int(now.timestamp())
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]
    for each, its in ((engine, chosen), other):
        _submit(each, now)
        _start(each, its, now)


def test_a_loss_is_recovered_from_once_where_nobody_has_to(
    engine: Engine, chosen: Settings, other: tuple[Engine, Settings], now: datetime,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    chosen = chosen.model_copy(update={"recovery": Recovery.AUTOMATIC})
    other = other[0], other[1].model_copy(update={"recovery": Recovery.AUTOMATIC})
    ours, theirs = _start(engine, chosen, now), _start(*other, now)
    _lose(engine, chosen)
    for _ in range(2):
        ours.look(now)
        theirs.look(now)
    assert ours.incarnation == theirs.incarnation > 1
    assert sum("without an operator" in each.getMessage() for each in caplog.records) == 1
    for each in (engine, other[0]):
        _submit(each, now)

    _lose(engine, chosen)  # while no process was there
    _start(engine, chosen, now)
    _submit(engine, now)


def test_a_database_that_never_knew_a_home_is_not_recovered_without_an_operator(
    engine: Engine, chosen: Settings, now: datetime
) -> None:
    chosen = chosen.model_copy(update={"recovery": Recovery.AUTOMATIC})
    _submit(engine, now)  # to another installation, which has the address now
    cli_engine.write_last_seen(chosen, replace(_known(chosen), incarnation=7, number=1, at=now))
    assert cli_engine.REMEDY in _refused(engine, chosen)
    LastSeen(engine, chosen).look(now)
    with pytest.raises(database.CommitsLost):
        _submit(engine, now)

    _recover(engine, now)
    _start(engine, chosen, now)
    _submit(engine, now)


def test_a_loss_that_another_process_recovers_from_meanwhile_is_over(
    engine: Engine, chosen: Settings, now: datetime
) -> None:
    _start(engine, chosen, now)
    _lose(engine, chosen)
    seen = _known(chosen)
    with database.reading(engine) as conn:
        state = history.read_state(conn, seen.home, now=now)
    _recover(engine, now)
    with database.writing(engine, despite_loss=True) as conn:
        history.record(conn, state, state.next_commit(seen))
    _start(engine, chosen, now)
    _submit(engine, now)


def test_the_age_of_the_last_commit_grows_until_the_next_one(
    engine: Engine, chosen: Settings, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 100.0
    monkeypatch.setattr(cli_engine.time, "monotonic", lambda: seconds)
    seen = _start(engine, chosen, now)
    assert seen.commit_age == 0
    seconds += 7
    assert seen.commit_age == 7
    seen.look(now)
    assert seen.commit_age == 0


def test_a_loss_holds_though_the_mark_cannot_be_stored(
    engine: Engine, chosen: Settings, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _start(engine, chosen, now)
    _lose(engine, chosen)
    monkeypatch.setattr(history, "MARK", text("no statement"))
    with pytest.raises(database.DBAPIError):
        seen.look(now)
    monkeypatch.undo()
    assert database.is_lost(engine)
    # And though the server with all commits is back: something may have been stored on the other.
    with database.writing(engine, despite_loss=True) as conn:
        conn.execute(update(seen_commits).values(number=100))
    seen.look(now)
    assert database.is_lost(engine)
    assert cli_engine.REMEDY in _refused(engine, chosen)


def test_nothing_is_stored_by_any_way_after_a_loss(engine: Engine, chosen: Settings, now: datetime) -> None:
    seen = _start(engine, chosen, now)
    _lose(engine, chosen)
    seen.look(now)
    with pytest.raises(database.UNAVAILABLE) as refused:
        _submit(engine, now)
    assert database.is_unavailable(refused.value)
    assert database.find_store_fault(refused.value) == database.LOST
    if engine.dialect.name == "postgresql":
        with pytest.raises(database.CommitsLost):
            AutocommitRunner(engine).rows("SELECT 1", ())


def test_agents_wait_for_the_recovery_in_silence(
    engine: Engine, chosen: Settings, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    seen = _start(engine, chosen, now)
    _lose(engine, chosen)
    seen.look(now)
    caplog.clear()
    assert not leader.run_once(lambda at: leader.acquire(engine, "sweep", holder="a", now=at), name="sweep")
    assert caplog.messages == []


def test_processes_of_one_home_take_turns(engine: Engine, chosen: Settings, now: datetime) -> None:
    first, second = _start(engine, chosen, now), _start(engine, chosen, now)
    for _ in range(3):
        first.look(now)
        second.look(now)
    assert not database.is_lost(engine)
    _lose(engine, chosen)
    second.look(now)
    first.look(now)
    assert database.is_lost(engine)


def test_a_new_database_at_the_same_address_has_lost_nothing(
    engine: Engine, chosen: Settings, now: datetime
) -> None:
    known = replace(_known(chosen), incarnation=7, number=1000, at=now)
    for before in (known, replace(known, is_lost=True)):
        cli_engine.write_last_seen(chosen, before)
        seen = _start(engine, chosen, now)
        assert not database.is_lost(engine)
        assert seen.incarnation == 1
        with database.writing(engine) as conn:
            conn.execute(delete(seen_commits))


def _known(chosen: Settings) -> history.SeenCommit:
    return cli_engine.read_last_seen(chosen) or history.SeenCommit(home="here:1")


def test_a_database_without_the_row_of_a_home_is_behind(
    engine: Engine, chosen: Settings, now: datetime
) -> None:
    """A backup of before this home came, unless it stood still for so long that its row was removed."""
    _submit(engine, now)
    with database.reading(engine) as conn:
        state = history.read_state(conn, "here:1", now=now)
    seen = history.SeenCommit(home="here:1", incarnation=1, number=1000, at=state.now)
    assert state.is_behind(seen)
    assert not replace(state, now=state.now + history.KEPT).is_behind(seen)


def test_a_lost_recovery_is_a_loss(engine: Engine, chosen: Settings, now: datetime) -> None:
    _submit(engine, now)
    cli_engine.write_last_seen(chosen, replace(_known(chosen), incarnation=7, number=1, at=now))
    assert cli_engine.REMEDY in _refused(engine, chosen)


def test_a_home_that_cannot_be_written_is_known_to_its_processes(
    engine: Engine, tmp_path: Path, now: datetime
) -> None:
    chosen = _settings(tmp_path / "gone", engine)
    chosen.home.rmdir()
    seen = _start(engine, chosen, now)
    seen.look(now)
    with database.writing(engine) as conn:
        queued_jobs.put(conn, now)
        conn.execute(update(seen_commits).values(number=1))
    seen.look(now)
    assert database.is_lost(engine)


def test_what_the_last_release_stores_stays_beside(engine: Engine, chosen: Settings, now: datetime) -> None:
    """Its number is that of a sequence, so it proves nothing."""
    file = chosen.home / cli_engine.FILE
    name = cli_engine.hide_password(chosen.database_url)
    theirs = {name: {"incarnation": 1, "log_id": 10**9}}
    file.write_text(json.dumps(theirs))
    _submit(engine, now)
    _start(engine, chosen, now)
    assert not database.is_lost(engine)
    content = json.loads(file.read_text())
    assert {name: content[name]} == theirs
    file.write_text(json.dumps({**content, name: {"incarnation": 1, "log_id": 10**9 + 1}}))  # it goes on
    assert _known(chosen).number == 1


def test_databases_of_one_home_are_known_side_by_side(engine: Engine, tmp_path: Path) -> None:
    """As by two addresses of one database, directly and by a pooler."""
    urls = ("postgresql://pilotage@one/pilotage", "postgresql://pilotage@two/pilotage")
    both = [settings.load({"home": tmp_path, "database_url": url}, {}) for url in urls]
    for number, each in enumerate(both, 1):
        cli_engine.write_last_seen(each, history.SeenCommit(home="here", incarnation=1, number=number))
    assert [_known(each).number for each in both] == [1, 2]


def test_a_process_that_was_overtaken_does_not_put_the_number_of_its_home_back(
    engine: Engine, chosen: Settings, now: datetime
) -> None:
    seen = _start(engine, chosen, now)
    with database.reading(engine) as conn:
        [row] = conn.execute(select(seen_commits)).all()
        state = history.read_state(conn, row.home, now=now)
    for number in (row.number + 2, row.number + 1):
        with database.writing(engine) as conn:
            history.record(conn, state, SeenCommit(home=row.home, number=number, at=now))
    with database.reading(engine) as conn:
        assert conn.scalar(select(seen_commits.c.number)) == row.number + 2
    seen.look(now)
    assert not database.is_lost(engine)
