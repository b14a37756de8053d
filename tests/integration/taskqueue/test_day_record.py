"""The record of a day: minutes of many processes in few rows, read back as they were seen."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from random import Random

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from agents import accounting
from agents import day_record as day_record_agent
from agents.retention import retention
from matcher import answer_recorder
from matcher.answer_recorder import AnswerRecorder
from matcher.claim.matcher import Matcher
from matcher.hardware_recorder import HardwareRecorder
from matcher.request.match_request import MatchCaller
from requirements.resource import Location
from taskqueue import day_record
from taskqueue.day_record import Seen, Series
from taskqueue.db import database
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import FirstRequest
from taskqueue.schema.tables import day_records
from taskqueue.sites import closures, scopes
from tests.support import databases
from tests.support.factories import queued_jobs
from tests.support.factories.queued_jobs import LONG

MINUTE = timedelta(minutes=1)
PLACE = Location(site=LONG.site, ce=LONG.ce, queue=LONG.queue)
LHCB = frozenset({"lhcb"})
GRID = queued_jobs.grid(queued_jobs.GRID, 1)


def read(engine: Engine, series: Series, since: datetime) -> dict[tuple[str, ...], dict[datetime, object]]:
    with database.reading(engine) as conn:
        return {name: dict(seen) for name, seen in day_record.read_since(conn, series, since).items()}


def recorder(engine: Engine, now: datetime) -> AnswerRecorder:
    return AnswerRecorder(engine, Matcher(engine, lambda: GRID, lambda: now, Random(1)))


def count_for_vos(process: AnswerRecorder, number: int) -> None:
    """An answer for each of so many VOs."""
    for each in range(number):
        process.count(PLACE, frozenset({f"vo{each}"}), None, GRID)


def test_answers_of_two_processes_are_added_in_one_row_an_hour(engine: Engine, now: datetime) -> None:
    hour = now.replace(minute=0, second=0, microsecond=0)
    for minute in (3, 4, 59):
        for answers in (2, 5):
            process = recorder(engine, hour + minute * MINUTE)
            for _ in range(answers):
                process.count(PLACE, LHCB, "no_task_queue", GRID)
            process.count(PLACE, LHCB, None, GRID)
            process.store()
            process.store()  # nothing is counted twice
    place = (LONG.site, LONG.ce, LONG.queue, "lhcb")
    assert read(engine, Series.ANSWERS, hour + 4 * MINUTE) == {
        (*place, "no_task_queue"): {hour + 4 * MINUTE: 7, hour + 59 * MINUTE: 7},
        (*place, "matched"): {hour + 4 * MINUTE: 2, hour + 59 * MINUTE: 2},
    }
    assert databases.count(engine, day_records) == 2


def test_invented_places_do_not_fill_the_record(engine: Engine, now: datetime) -> None:
    process = recorder(engine, now)
    process.count(Location(site="Made.Up.org"), LHCB, None, GRID)
    for number in range(9):
        process.count(Location(site=LONG.site, ce=f"ce{number}", queue="q"), LHCB, None, GRID)
    process.store()
    [(subject, minutes)] = read(engine, Series.ANSWERS, now).items()
    assert subject == (LONG.site, "", "", "lhcb", "matched")
    assert list(minutes.values()) == [9]


def test_one_process_records_so_many_places_and_no_more(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_recorder, "_MOST", 3)
    process = recorder(engine, now)
    count_for_vos(process, 9)
    process.store()
    assert databases.count(engine, day_records) == 3


def test_a_row_has_so_many_bytes_and_no_more(engine: Engine, now: datetime) -> None:
    hour = now.replace(minute=0, second=0, microsecond=0)
    large = {"text": "x" * (day_record.MOST_BYTES // 2)}
    for minute in range(3):
        seen = Seen(series=Series.ADVERTISED, subject=("site",), at=hour + minute * MINUTE, value=large)
        with database.writing(engine) as conn:
            day_record.store_values(conn, [seen])
    assert read(engine, Series.ADVERTISED, hour) == {("site",): {hour: large}}


def test_answers_that_could_not_be_stored_are_stored_later(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = recorder(engine, now)
    process.count(PLACE, LHCB, "banned", GRID)

    def fail(*_: object) -> None:
        raise OperationalError("", {}, Exception("away"))

    with monkeypatch.context() as broken:
        broken.setattr(day_record, "add_counts", fail)
        with pytest.raises(OperationalError):
            process.store()
    process.store()
    [minutes] = read(engine, Series.ANSWERS, now).values()
    assert list(minutes.values()) == [1]


def test_of_many_answers_those_are_stored_later_that_could_not_be_stored(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_recorder, "_AT_ONCE", 3)
    process = recorder(engine, now)
    count_for_vos(process, 8)
    pieces, add = 0, day_record.add_counts

    def fail_later(conn: Connection, seen: Iterable[Seen]) -> None:
        nonlocal pieces
        pieces += 1
        if pieces == 2:
            raise OperationalError("", {}, Exception("away"))
        add(conn, seen)

    with monkeypatch.context() as broken:
        broken.setattr(day_record, "add_counts", fail_later)
        with pytest.raises(OperationalError):
            process.store()
    assert databases.count(engine, day_records) == 3
    process.store()
    minutes = read(engine, Series.ANSWERS, now)
    assert [list(each.values()) for each in minutes.values()] == [[1]] * 8


def test_starts_are_counted_once_by_class(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        for owner in ("alice", "alice", "bob"):
            queued_jobs.put(conn, now, owner=owner)
    matcher = Matcher(engine, lambda: GRID, lambda: now, Random(1))
    for _ in range(3):
        matcher.serve([queued_jobs.request(**queued_jobs.at(LONG))])
    for _ in range(3):
        accounting.cycle(engine, now=now + MINUTE, holder="one")
    [starts] = read(engine, Series.STARTS, now).values()
    assert starts == {now.replace(second=0, microsecond=0): 3}


def test_a_slot_has_its_first_request_its_shape_and_its_last_request(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        pilots.bind_queues(conn, [FirstRequest(stamp="a", vo="lhcb", queue=LONG, processors=8)], now=now)
    minute = now.replace(second=0, microsecond=0)
    for hours, cores in ((0, 8), (2, 3)):  # a second process, after the first was killed, sees what is left
        at = now + timedelta(hours=hours)
        process = HardwareRecorder(engine, Matcher(engine, lambda: GRID, lambda at=at: at, Random(1)))
        caller = MatchCaller(subject="pilot", vos=LHCB, stamp="a")
        request = queued_jobs.request(caller=caller, **{**queued_jobs.at(LONG), "NumberOfProcessors": cores})
        process.count(request, GRID.sites)
        process.store()
    later = now + timedelta(hours=5)
    with database.writing(engine) as conn:
        pilots.record_contacts(conn, {"lhcb": ["a"]}, now=later)
        [slot] = day_record.list_slots(conn, since=now + timedelta(hours=3), until=later)
    assert (slot.stamp, slot.begin, slot.end, slot.queue) == ("a", minute, later, LONG.queue)
    assert json.loads(slot.shape or "{}")["processors"] == 8
    with database.reading(engine) as conn:
        assert not day_record.list_slots(conn, since=later + MINUTE, until=later + 2 * MINUTE)


def test_each_minute_has_what_sites_advertised_and_what_was_closed(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        closures.set_ban(conn, closures.Ban(site=LONG.site, reason="fire", author="ann", at=now, until=None))
        scopes.lock_scopes(conn, [LONG.site])
        values = {"the_scope": LONG.site.lower(), "the_as_of": 1, "the_taken_at": None, "now": now}
        conn.execute(scopes.STORE, {**values, "the_advertisement": '{"Load": 3}'})
    assert day_record_agent.cycle(engine, now=now, holder="one") is not None
    minute = now.replace(second=0, microsecond=0)
    assert read(engine, Series.CLOSED, now) == {(LONG.site.lower(),): {minute: 1}}
    assert read(engine, Series.ADVERTISED, now) == {(LONG.site.lower(),): {minute: {"Load": 3}}}
    assert list(read(engine, Series.CONFIGURATION, now)) == [()]
    later = now + timedelta(minutes=3)
    assert day_record_agent.cycle(engine, now=later, holder="one") is not None
    assert read(engine, Series.ADVERTISED, later) == {}
    assert len(read(engine, Series.CLOSED, now)[LONG.site.lower(),]) == 2


def test_old_hours_are_removed(engine: Engine, now: datetime) -> None:
    config = queued_jobs.grid("Operations: {Defaults: {Retention: {DayRecords: 2}}}\n" + queued_jobs.GRID, 1)
    seen = (
        Seen(series=Series.CLOSED, subject=("site",), at=now - timedelta(days=days), value=1)
        for days in range(4)
    )
    with database.writing(engine) as conn:
        day_record.store_values(conn, seen)
    retention.cycle(engine, config, now=now, holder="one")
    [minutes] = read(engine, Series.CLOSED, now - timedelta(days=9)).values()
    assert len(minutes) in (2, 3)
    with database.reading(engine) as conn:
        assert day_record.read_first(conn, Series.CLOSED) >= now - timedelta(days=2, hours=1)
