"""Bells between processes: heard at once, and never relied upon."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from threading import Event

import pytest
from sqlalchemy import Connection, Engine, insert, text
from sqlalchemy.exc import IntegrityError

from cs_config import notifications
from cs_config.versions import store
from examples.servers.redis_server import RedisServer
from matcher.claim import claim_thread as claimer_module
from matcher.claim.claim_thread import ClaimWorker
from pilotage.cli import wiring
from taskqueue.db import database, postgresql
from taskqueue.db.notify import (
    NotificationHub,
    NotificationTransport,
    PostgresqlTransport,
    RedisTransport,
    TransportDownError,
    make_publisher,
)
from taskqueue.schema.tables import installation
from taskqueue.task_queues import change_feed
from tests.support.factories import queued_jobs
from tests.support.factories.submitted_jobs import GRID
from tests.support.wait import until

CHANGES, CONFIGURATION = frozenset({notifications.CHANGES}), frozenset({notifications.CONFIGURATION})
#: Longer than any test: who looks nevertheless was woken.
_NEVER = 3600.0


class _Way:
    """Wires of one kind, and how the connections of those who listen are cut."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.kind = request.param
        if self.kind == "redis":
            self._redis: RedisServer = request.getfixturevalue("redis_server")
        else:
            self._url: str = request.getfixturevalue("postgres_url")
        self._engines = ExitStack()

    def wire(self) -> NotificationTransport:
        if self.kind == "redis":
            return RedisTransport(self._redis.url)
        return PostgresqlTransport(self.engine(), self._url)

    def engine(self) -> Engine:
        engine = database.connect(self._url)
        self._engines.callback(engine.dispose)
        return engine

    def cut(self) -> None:
        if self.kind == "redis":
            with self._redis.client() as client:
                assert client.client_kill_filter(_type="pubsub") > 0
            return
        with database.writing(self.engine()) as conn:
            assert conn.execute(_CUT).all()

    def close(self) -> None:
        self._engines.close()


_CUT = text("""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE query = 'LISTEN pilotage_rings' AND datname = current_database()""")


@pytest.fixture(params=["redis", "postgresql"])
def way(request: pytest.FixtureRequest) -> Iterator[_Way]:
    made = _Way(request)
    yield made
    made.close()


@contextmanager
def _bell(wire: NotificationTransport | None) -> Iterator[NotificationHub]:
    """A bell that listens already."""
    bell = NotificationHub(wire)
    begun = [_told(bell, topic) for topic in notifications.TOPICS]
    bell.start()
    try:
        assert wire is None or all(each.wait(300) for each in begun)
        yield bell
    finally:
        bell.stop()


def _told(bell: NotificationHub, topic: str = notifications.CHANGES) -> Event:
    told = Event()
    bell.subscribe(topic, told.set)
    return told


def _next(told: Event) -> bool:
    """Whether it is told again; for a moment at most, if not."""
    heard = told.wait(300)
    told.clear()
    return heard


def test_a_ring_is_heard_by_the_other_processes_and_by_ones_own(way: _Way) -> None:
    with _bell(way.wire()) as ours, _bell(way.wire()) as theirs:
        here, there = _told(ours), _told(theirs)
        ours.publish(CHANGES)
        assert here.is_set(), "at once"
        assert _next(there)


def test_only_those_are_told_who_follow_what_it_was_rung_for(way: _Way) -> None:
    with _bell(way.wire()) as ours, _bell(way.wire()) as theirs:
        feed, configuration = _told(theirs), _told(theirs, notifications.CONFIGURATION)
        ours.publish(CONFIGURATION)
        assert _next(configuration)
        assert not feed.is_set()


def test_who_could_not_hear_for_a_while_is_told_to_look_when_the_connection_is_back(way: _Way) -> None:
    with _bell(way.wire()) as ours, _bell(way.wire()) as theirs:
        there = _told(theirs)
        way.cut()
        assert _next(there), "something may have been rung for meanwhile"
        until(lambda: _rung(ours, there))


def test_redis_may_go_and_come(redis_server: RedisServer) -> None:
    with _bell(RedisTransport(redis_server.url)) as ours, _bell(RedisTransport(redis_server.url)) as theirs:
        there = _told(theirs)
        redis_server.kill()
        ours.publish(CHANGES)
        redis_server.start()
        assert _next(there)
        until(lambda: _rung(ours, there))


def _rung(bell: NotificationHub, told: Event) -> bool:
    told.clear()
    bell.publish(CHANGES)
    return told.wait(0.2)


def test_a_ring_in_the_thread_that_commits_is_heard_and_its_failure_is_no_error(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    ring = make_publisher(RedisTransport(redis_server.url))
    with _bell(RedisTransport(redis_server.url)) as theirs:
        there = _told(theirs)
        ring(CHANGES)
        assert _next(there)
        redis_server.kill()
        ring(CHANGES)
    assert "other processes poll for changes" in caplog.text


def test_a_pooler_between_is_named_and_polling_goes_on(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "is_pooled", lambda _conn: True)
    engine = database.connect(postgres_url)
    with pytest.raises(TransportDownError, match="set database_direct_url"):
        PostgresqlTransport(engine, postgres_url).listen(lambda _topics: None, Event())
    engine.dispose()


def test_a_commit_rings_for_what_it_appended_and_a_rollback_for_nothing(
    engine: Engine, now: datetime
) -> None:
    rung: list[frozenset[str]] = []
    database.set_notifier(engine, rung.append)
    with pytest.raises(IntegrityError), database.writing(engine) as conn:
        _append_what_fails(conn, now)
    with database.writing(engine) as conn:
        change_feed.append_changes(conn, change_feed.TASK_QUEUE, [], now=now)
    assert rung == []
    with database.writing(engine) as conn:
        change_feed.append_changes(conn, change_feed.TASK_QUEUE, ["1"], now=now)
        assert rung == [], "not before it is committed"
    assert rung == [CHANGES]
    with database.writing(engine) as conn:
        store.store_text(conn, GRID, author="ann", message="", source="x", expected=None, now=now)
    assert rung == [CHANGES, CONFIGURATION]


def _append_what_fails(conn: Connection, now: datetime) -> None:
    change_feed.append_changes(conn, change_feed.TASK_QUEUE, ["1"], now=now)
    conn.execute(insert(installation).values(row_number=1))


def test_an_idle_matcher_looks_at_once_when_another_process_rings(
    postgres_url: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer_module, "_IDLE", _NEVER)
    ours, theirs = database.connect(postgres_url), database.connect(postgres_url)
    with ExitStack() as stack:
        stack.callback(ours.dispose)
        stack.callback(theirs.dispose)
        bell = stack.enter_context(_bell(PostgresqlTransport(ours, postgres_url)))
        database.set_notifier(ours, bell.publish)
        other = stack.enter_context(_bell(PostgresqlTransport(theirs, postgres_url)))
        looked = _idle_claimer(stack, theirs, now, other, monkeypatch)
        until(lambda: _looked_again(looked, ours, now))


def _looked_again(looked: Event, engine: Engine, now: datetime) -> bool:
    looked.clear()
    with database.writing(engine) as conn:
        change_feed.append_changes(conn, change_feed.TASK_QUEUE, ["1"], now=now)
    return looked.wait(1)


def _idle_claimer(
    stack: ExitStack, engine: Engine, now: datetime, bell: NotificationHub, monkeypatch: pytest.MonkeyPatch
) -> Event:
    """A claimer that nobody asks; the event says that it looked."""
    matcher = queued_jobs.matcher(engine, now)
    looked, refresh = Event(), matcher.refresh

    def noticed() -> None:
        refresh()
        looked.set()

    monkeypatch.setattr(matcher, "refresh", noticed)
    claimer = ClaimWorker(engine, matcher)
    bell.subscribe(notifications.CHANGES, claimer.wake)
    claimer.start()
    stack.callback(claimer.stop)
    stack.callback(claimer.wake)  # it would wait for its next poll before it ends
    return looked


def test_an_idle_matcher_that_nobody_rings_for_looks_nevertheless(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer_module, "_IDLE", 0.01)
    with ExitStack() as stack:
        looked = _idle_claimer(stack, engine, now, stack.enter_context(_bell(None)), monkeypatch)
        assert _next(looked)
        assert _next(looked)


def test_a_new_configuration_is_seen_at_once(
    way: _Way, postgres_url: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "CONFIGURATION_EVERY", _NEVER)
    ours, theirs = database.connect(postgres_url), database.connect(postgres_url)
    with ExitStack() as stack:
        stack.callback(ours.dispose)
        stack.callback(theirs.dispose)
        bell, other = (stack.enter_context(_bell(way.wire())) for _ in range(2))
        database.set_notifier(ours, bell.publish)
        live = stack.enter_context(wiring.track_configuration(theirs, other, lambda: now))
        with database.writing(ours) as conn:
            store.store_text(conn, GRID, author="ann", message="", source="x", expected=None, now=now)
        until(lambda: live.current.version == 1)
