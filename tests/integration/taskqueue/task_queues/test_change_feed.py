"""The feed: nothing that is committed is ever skipped, however late it was committed."""

from collections.abc import Collection
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, select, text, update

from taskqueue.db import database
from taskqueue.schema.tables import changes as table
from taskqueue.schema.tables import installation
from taskqueue.task_queues import change_feed
from taskqueue.task_queues.change_feed import MAPPING, TASK_QUEUE, FeedChange, FeedPosition
from tests.support import databases


def _position(engine: Engine) -> FeedPosition:
    with database.reading(engine) as conn:
        return change_feed.read_position(conn)


@pytest.fixture
def start(engine: Engine) -> FeedPosition:
    return _position(engine)


def _append(engine: Engine, now: datetime, *keys: str, kind: str = TASK_QUEUE) -> None:
    with database.writing(engine) as conn:
        change_feed.append_changes(conn, kind, keys, now=now)


def _read(engine: Engine, since: FeedPosition) -> tuple[set[str], FeedPosition]:
    with database.reading(engine) as conn:
        read = change_feed.read_changes(conn, since)
    assert read is not None
    found, following = read
    return _keys(found), following


def _keys(found: Collection[FeedChange]) -> set[str]:
    return {change.key for change in found}


def test_what_was_committed_after_the_start_is_read(
    engine: Engine, now: datetime, start: FeedPosition
) -> None:
    _append(engine, now, "1", "2")
    _append(engine, now, "lhcb", kind=MAPPING)
    with database.reading(engine) as conn:
        read = change_feed.read_changes(conn, start)
    assert read is not None
    assert set(read[0]) == {
        FeedChange(kind=TASK_QUEUE, key="1"),
        FeedChange(kind=TASK_QUEUE, key="2"),
        FeedChange(kind=MAPPING, key="lhcb"),
    }


def test_what_was_committed_before_the_start_is_not_read(engine: Engine, now: datetime) -> None:
    _append(engine, now, "1")
    position = _position(engine)
    assert _read(engine, position)[0] == set()


def test_what_was_rolled_back_never_comes(engine: Engine, now: datetime, start: FeedPosition) -> None:
    with engine.connect() as conn, conn.begin() as transaction:
        change_feed.append_changes(conn, TASK_QUEUE, ["1"], now=now)
        transaction.rollback()
    _append(engine, now, "2")
    assert _read(engine, start)[0] == {"2"}


def test_no_keys_make_no_rows(engine: Engine, now: datetime, start: FeedPosition) -> None:
    _append(engine, now)
    assert _read(engine, start)[0] == set()


def test_a_transaction_that_took_its_number_early_and_commits_late_is_not_skipped(
    postgresql: Engine, now: datetime
) -> None:
    start = _position(postgresql)
    with database.writing(postgresql) as slow:
        change_feed.append_changes(slow, TASK_QUEUE, ["slow"], now=now)
        _append(postgresql, now, "fast")
        found, position = _read(postgresql, start)
        assert found == {"fast"}, "what is committed does not wait for the slow one"
        _append(postgresql, now, "later")
        found, position = _read(postgresql, position)
        assert found == {"later"}, "what was read does not come again, however long the slow one takes"
    found, position = _read(postgresql, position)
    assert found == {"slow"}
    assert _read(postgresql, position)[0] == set()


def test_a_transaction_that_begins_before_the_start_and_writes_after_it_is_not_skipped(
    postgresql: Engine, now: datetime
) -> None:
    with database.writing(postgresql) as slow:
        change_feed.append_changes(slow, TASK_QUEUE, ["first"], now=now)
        start = _position(postgresql)
        change_feed.append_changes(slow, TASK_QUEUE, ["second"], now=now)
    assert _read(postgresql, start)[0] == {"first", "second"}


def _is_lost(engine: Engine, since: FeedPosition) -> bool:
    with database.reading(engine) as conn:
        return change_feed.read_changes(conn, since) is None


def _trim(engine: Engine, before: datetime, most: int = 100) -> int:
    with database.writing(engine) as conn:
        return change_feed.trim_changes(conn, before=before, most=most)


def test_who_was_away_while_rows_were_trimmed_is_told_to_begin_anew(
    engine: Engine, now: datetime, start: FeedPosition
) -> None:
    _append(engine, now, "1")
    _, position = _read(engine, start)
    assert _trim(engine, now + timedelta(seconds=1)) == 1
    assert _is_lost(engine, start)
    assert _read(engine, position)[0] == set(), "who had read what was trimmed goes on"
    _append(engine, now, "2")
    assert _read(engine, position)[0] == {"2"}


def test_only_old_rows_are_trimmed_and_a_part_of_them_at_a_time(
    engine: Engine, now: datetime, start: FeedPosition
) -> None:
    _append(engine, now, "1", "2", "3")
    _append(engine, now + timedelta(hours=1), "4")
    assert [_trim(engine, now + timedelta(minutes=1), most=2) for _ in range(3)] == [2, 1, 0]
    assert databases.scalars(engine, select(table.c.key)) == ["4"]
    assert _is_lost(engine, start)


def test_a_transaction_that_is_held_open_keeps_its_readers_from_beginning_anew(
    postgresql: Engine, now: datetime
) -> None:
    start = _position(postgresql)
    with database.writing(postgresql) as slow:
        change_feed.append_changes(slow, TASK_QUEUE, ["slow"], now=now)
        _append(postgresql, now, "fast")
        found, position = _read(postgresql, start)
        assert found == {"fast"}
        assert _trim(postgresql, now + timedelta(hours=1)) == 0, "the slow one may have written any row"
    assert _read(postgresql, position)[0] == {"slow"}
    assert _trim(postgresql, now + timedelta(hours=1)) == 2


def test_another_incarnation_is_another_history(engine: Engine, now: datetime, start: FeedPosition) -> None:
    databases.execute(engine, update(installation).values(incarnation=2))
    _append(engine, now, "1")
    assert _is_lost(engine, start)


def test_a_database_that_has_gone_back_is_another_history(sqlite_url: str, now: datetime) -> None:
    engine = database.connect(sqlite_url)
    before = _position(engine)
    _append(engine, now, "1")
    later = _position(engine)
    databases.execute(engine, text("UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'changes'"))
    assert _is_lost(engine, later)
    assert not _is_lost(engine, before)
    engine.dispose()


def test_tables_that_were_restored_beside_a_living_server_are_another_history(
    postgresql: Engine, now: datetime
) -> None:
    start = _position(postgresql)
    with database.writing(postgresql) as conn:
        conn.execute(text("ALTER TABLE changes RENAME TO before_the_restore"))
        conn.execute(text("CREATE TABLE changes (LIKE before_the_restore INCLUDING ALL)"))
    _append(postgresql, now, "1")
    assert _is_lost(postgresql, start)


def test_rows_of_another_servers_dump_go_like_all_others(postgresql: Engine, now: datetime) -> None:
    _append(postgresql, now, "of the other server")
    with database.writing(postgresql) as conn:
        conn.execute(update(table).values(xid=table.c.xid + 10**9))
        start = change_feed.read_position(conn)
    assert _trim(postgresql, now + timedelta(hours=1)) == 1
    assert databases.count(postgresql, table) == 0
    assert not _is_lost(postgresql, start), "a number that is yet to come says nothing of this server"
