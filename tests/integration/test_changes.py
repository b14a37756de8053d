"""The feed: nothing that is committed is ever skipped, however late it was committed."""

from collections.abc import Collection
from datetime import datetime

import pytest
from sqlalchemy import Engine

from taskqueue import changes, database
from taskqueue.changes import MAPPING, TASK_QUEUE, Change


@pytest.fixture
def start(engine: Engine) -> int:
    with database.reading(engine) as conn:
        return changes.position(conn)


def _append(engine: Engine, now: datetime, *keys: str, kind: str = TASK_QUEUE) -> None:
    with database.writing(engine) as conn:
        changes.append(conn, kind, keys, now=now)


def _read(engine: Engine, since: int) -> tuple[set[str], int]:
    with database.reading(engine) as conn:
        found, following = changes.read(conn, since)
    return _keys(found), following


def _keys(found: Collection[Change]) -> set[str]:
    return {change.key for change in found}


def test_what_was_committed_after_the_start_is_read(engine: Engine, now: datetime, start: int) -> None:
    _append(engine, now, "1", "2")
    _append(engine, now, "lhcb", kind=MAPPING)
    with database.reading(engine) as conn:
        found, _ = changes.read(conn, start)
    assert set(found) == {
        Change(kind=TASK_QUEUE, key="1"),
        Change(kind=TASK_QUEUE, key="2"),
        Change(kind=MAPPING, key="lhcb"),
    }


def test_who_goes_on_from_where_he_stood_reads_only_what_is_new(
    engine: Engine, now: datetime, start: int
) -> None:
    _append(engine, now, "1")
    found, position = _read(engine, start)
    _append(engine, now, "2")
    assert found == {"1"}
    assert _read(engine, position)[0] == {"2"}


def test_what_was_committed_before_the_start_is_not_read(engine: Engine, now: datetime) -> None:
    _append(engine, now, "1")
    with database.reading(engine) as conn:
        position = changes.position(conn)
    assert _read(engine, position)[0] == set()


def test_what_was_rolled_back_never_comes(engine: Engine, now: datetime, start: int) -> None:
    with engine.connect() as conn, conn.begin() as transaction:
        changes.append(conn, TASK_QUEUE, ["1"], now=now)
        transaction.rollback()
    _append(engine, now, "2")
    assert _read(engine, start)[0] == {"2"}


def test_no_keys_make_no_rows(engine: Engine, now: datetime, start: int) -> None:
    _append(engine, now)
    assert _read(engine, start)[0] == set()


def test_a_transaction_that_took_its_number_early_and_commits_late_is_not_skipped(
    postgres_url: str, now: datetime
) -> None:
    engine = database.connect(postgres_url)
    with database.reading(engine) as conn:
        start = changes.position(conn)
    with database.writing(engine) as slow:
        changes.append(slow, TASK_QUEUE, ["slow"], now=now)
        _append(engine, now, "fast")
        found, position = _read(engine, start)
        assert found == {"fast"}, "what is committed does not wait for the slow one"
        _append(engine, now, "later")
        found, position = _read(engine, position)
        assert "later" in found
    found, position = _read(engine, position)
    assert "slow" in found
    assert _read(engine, position)[0] == set()
    engine.dispose()


def test_a_transaction_that_begins_before_the_start_and_writes_after_it_is_not_skipped(
    postgres_url: str, now: datetime
) -> None:
    engine = database.connect(postgres_url)
    with database.writing(engine) as slow:
        changes.append(slow, TASK_QUEUE, ["first"], now=now)
        with database.reading(engine) as conn:
            start = changes.position(conn)
        changes.append(slow, TASK_QUEUE, ["second"], now=now)
    assert _read(engine, start)[0] == {"first", "second"}
    engine.dispose()
