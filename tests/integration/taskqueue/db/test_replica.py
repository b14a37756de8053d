"""A replica is read while it is good enough, and the primary otherwise, with a real hot standby."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from examples.servers.postgres import Postgres
from requirements.states import JobStatus
from taskqueue.db import database, replica
from taskqueue.db.history import RAISE
from taskqueue.db.replica import EVERY, MOST_LATE, Replica
from tests.support import databases
from tests.support.factories import stored_rows

START = datetime(2026, 11, 29, 12, tzinfo=UTC)


@dataclass
class Reader:
    """A replica as a process of the service has it, with a clock of the test's."""

    primary: Engine
    replica: Engine
    server: Postgres
    standby: Postgres
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.read = Replica(
            self.primary,
            self.replica,
            clock=lambda: START + timedelta(seconds=self.seconds),
            timer=lambda: self.seconds,
        )

    def commit(self) -> None:
        """As each process of the service does every five seconds."""
        with database.writing(self.primary) as conn:
            at = START + timedelta(seconds=self.seconds)
            conn.execute(RAISE, {"home": "h", "number": int(self.seconds) + 1, "at": at})

    def look(self) -> None:
        self.read.look(START)

    def is_replica(self, *job_ids: int) -> bool:
        """Whether the next transaction is of the standby."""
        with self.read.reading(*job_ids) as conn:
            return _is_standby(conn)


def _is_standby(conn: Connection) -> bool:
    return bool(conn.execute(text("SELECT pg_is_in_recovery()")).scalar_one())


@pytest.fixture
def reader(primary: Postgres, replica: Postgres) -> Iterator[Reader]:
    engines = [database.connect(each.url("pilotage"), pool_size=2) for each in (primary, replica)]
    made = Reader(*engines, primary, replica)
    with database.writing(made.primary) as conn:
        conn.execute(text("DELETE FROM seen_commits"))  # of earlier tests
    made.commit()
    replica.catch_up(primary)
    yield made
    for each in engines:
        each.dispose()


def test_without_a_look_and_without_a_replica_the_primary_is_read(reader: Reader) -> None:
    assert not reader.is_replica()
    reader.look()
    assert reader.is_replica()
    alone = Replica(reader.primary)
    alone.look(START)
    with alone.reading() as conn:
        assert not _is_standby(conn)
    assert not alone.is_configured


def test_what_is_read_is_never_later_than_promised(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    """It receives nothing more; the last commit that it has is of second 0."""
    caplog.set_level(logging.INFO, replica.__name__)
    reader.look()
    reader.standby.fall_behind()
    seen = []
    for second in range(0, 30, 5):
        reader.seconds = second
        reader.commit()
        reader.look()
        seen.append((second, reader.is_replica()))
    assert seen == [(second, second < MOST_LATE) for second in range(0, 30, 5)]
    assert [each.message for each in caplog.records] == [
        "lists, accounting and explanations are read from the replica",
        "the replica of the database is 20 s late: the primary is read instead",
    ]


def test_a_look_that_hangs_makes_nothing_later_than_promised(reader: Reader) -> None:
    reader.seconds = 3
    reader.look()
    reader.seconds = MOST_LATE - 0.1
    assert reader.is_replica()
    reader.seconds = MOST_LATE
    assert not reader.is_replica()


def test_a_replica_that_is_back_is_read_again(reader: Reader) -> None:
    reader.look()
    reader.standby.stop()
    assert not reader.is_replica()  # at once, without an error
    reader.look()
    assert not reader.read.is_used
    reader.standby.start()
    assert not reader.is_replica()  # only after a look
    reader.look()
    assert reader.is_replica()


def test_an_error_in_the_middle_is_raised_once(reader: Reader) -> None:
    reader.look()

    def read() -> None:
        with reader.read.reading() as conn:
            assert _is_standby(conn)
            reader.standby.kill()
            conn.execute(text("SELECT 1"))

    with pytest.raises(database.UNAVAILABLE):
        read()
    assert not reader.is_replica()
    reader.standby.start()


def test_a_statement_that_takes_too_long_is_not_given_to_the_primary(reader: Reader) -> None:
    reader.look()

    def read() -> None:
        with reader.read.reading() as conn:
            conn.execute(text("SET LOCAL statement_timeout = 1"))
            conn.execute(text("SELECT pg_sleep(300)"))

    with pytest.raises(database.UNAVAILABLE):
        read()
    assert reader.is_replica()


def test_jobs_that_were_just_submitted_are_read_from_the_primary(reader: Reader) -> None:
    reader.look()
    early = stored_rows.job_in(reader.primary, START, JobStatus.WAITING)
    reader.standby.catch_up(reader.server)
    assert reader.is_replica(early)
    reader.standby.fall_behind()
    late = stored_rows.job_in(reader.primary, START, JobStatus.WAITING)
    assert not reader.is_replica(early, late)
    assert reader.is_replica(early)
    assert reader.read.is_used


def test_a_database_without_a_service_is_no_replica_of_it(reader: Reader) -> None:
    databases.execute(reader.primary, text("DELETE FROM seen_commits"))
    reader.standby.catch_up(reader.server)
    reader.look()
    assert not reader.is_replica()


def test_looks_are_more_frequent_than_the_replica_gets_late() -> None:
    """A commit is up to five seconds old, a look as well."""
    assert 2 * EVERY < MOST_LATE
