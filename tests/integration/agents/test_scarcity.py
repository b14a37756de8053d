"""Slots are counted for waiting work, and scarce ones go to the jobs of an owner that have no other."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, select, update

from agents import priorities
from agents.priorities import PriorityState
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.answer_recorder import AnswerRecorder
from matcher.claim.matcher import Matcher
from requirements.resource import Location
from taskqueue.db import database
from taskqueue.schema.tables import task_queues as table
from taskqueue.task_queues import change_feed, listing
from taskqueue.task_queues.listing import WaitingClass
from tests.support.factories.queued_jobs import (
    ELSEWHERE,
    EVERYWHERE,
    GRID,
    LONG,
    SHORT,
    at,
    grid,
    matcher,
    put,
    request,
    serve,
    task_queue_of,
)

KEEPING = grid(f"{GRID}\nOperations: {{lhcb: {{JobScheduling: {{Scarcity: owner}}}}}}\n")
OFF = grid()
HOUR = timedelta(hours=1)
LHCB = frozenset({"lhcb"})
RARE = replace(EVERYWHERE, sites=frozenset({ELSEWHERE.site}))
#: Requests that got jobs, and those that did not, of the last hours.
SLOTS = {LONG: (30, 100), SHORT: (10, 0), ELSEWHERE: (5, 100)}


def _note_answers(engine: Engine, at_time: datetime, config: Configuration = KEEPING) -> None:
    recorder = AnswerRecorder(engine, Matcher(engine, lambda: config, lambda: at_time))
    for address, (matched, empty) in SLOTS.items():
        place = Location(site=address.site, ce=address.ce, queue=address.queue)
        for number in range(matched + empty):
            recorder.count(place, LHCB, None if number < matched else "no_task_queue", config)
        recorder.count(place, frozenset({"cms"}), None, config)
    for _ in range(3):
        recorder.count(Location(site=LONG.site), LHCB, None, config)
    recorder.store()


def _add(engine: Engine, now: datetime, count: int = 1, **about: object) -> int:
    with database.writing(engine) as conn:
        return task_queue_of(conn, put(conn, now, count, **about)[0])  # type: ignore[arg-type]


def _run_agent(
    engine: Engine, now: datetime, config: Configuration = KEEPING, state: PriorityState | None = None
) -> None:
    state = state or PriorityState()
    assert priorities.cycle(engine, config, now=now, holder="me", memory=state) is not None


def _read_supplies(engine: Engine) -> Mapping[int, int | None]:
    with database.reading(engine) as conn:
        return {row.task_queue_id: row.supply for row in conn.execute(select(table))}


def _draw(engine: Engine, drawn_by: Matcher, address: QueueAddress) -> int:
    """The task queue of the job that a request at a queue gets."""
    found = serve(drawn_by, request(**at(address)))
    with database.reading(engine) as conn:
        return task_queue_of(conn, found.claimed[0].job_id)


def test_slots_that_got_jobs_where_a_class_may_run_are_counted(engine: Engine, now: datetime) -> None:
    _note_answers(engine, now - 2 * HOUR)
    _note_answers(engine, now - 9 * HOUR)  # too long ago
    rare, common, of_cms = (
        _add(engine, now, asked=each) for each in (RARE, EVERYWHERE, replace(EVERYWHERE, vo="cms"))
    )
    _run_agent(engine, now)
    assert _read_supplies(engine) == {rare: 5, common: 48, of_cms: None}
    _run_agent(engine, now, OFF)
    assert set(_read_supplies(engine).values()) == {None}


def test_an_owner_who_states_priorities_orders_the_jobs_by_them(engine: Engine, now: datetime) -> None:
    _note_answers(engine, now - HOUR)
    of_ada = [
        _add(engine, now, asked=RARE),
        _add(engine, now, asked=EVERYWHERE, priority=5),
    ]
    of_bob = [_add(engine, now, asked=each, owner="bob") for each in (RARE, EVERYWHERE)]
    _run_agent(engine, now)
    found = _read_supplies(engine)
    assert [found[each] for each in (*of_ada, *of_bob)] == [None, None, 5, 48]


def test_small_changes_of_numbers_are_not_written(engine: Engine, now: datetime) -> None:
    _note_answers(engine, now - HOUR)
    rare = _add(engine, now, asked=RARE)
    state = PriorityState()
    _run_agent(engine, now, state=state)
    for _ in range(2):
        _note_answers(engine, now - HOUR)
    _run_agent(engine, now + timedelta(seconds=60), state=state)
    assert _read_supplies(engine) == {rare: 5}, "counted with all weights, each two minutes"
    _run_agent(engine, now + timedelta(seconds=121), state=state)
    assert _read_supplies(engine) == {rare: 15}


def test_jobs_of_a_new_class_are_counted_in_the_next_cycle(engine: Engine, now: datetime) -> None:
    _note_answers(engine, now - HOUR)
    common = _add(engine, now)
    state = PriorityState()
    _run_agent(engine, now, state=state)
    rare = _add(engine, now, asked=RARE)
    _note_answers(engine, now - HOUR)  # counted with all weights
    _run_agent(engine, now + timedelta(seconds=1), state=state)
    assert _read_supplies(engine) == {common: 48, rare: 5}


def test_classes_of_a_later_release_are_read_once_and_again_when_their_task_queue_gets_jobs(
    sqlite_url: str, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite: the feed of PostgreSQL may repeat a change while any transaction is open."""
    engine, state, asked = database.connect(sqlite_url), PriorityState(), list[list[int]]()
    rare = _add(engine, now, asked=RARE)

    def read(conn: Connection, task_queue_ids: Collection[int]) -> list[WaitingClass]:
        asked.append(sorted(task_queue_ids))
        return []

    monkeypatch.setattr(listing, "list_waiting_in", read)
    _run_agent(engine, now, state=state)
    common = _add(engine, now)
    _run_agent(engine, now + timedelta(seconds=1), state=state)
    other = _add(engine, now, asked=replace(RARE, cpu_time=7200))
    with database.writing(engine) as conn:
        conn.execute(update(table).where(table.c.task_queue_id == rare).values(changed_at=now + HOUR))
        change_feed.append_changes(conn, change_feed.TASK_QUEUE, [str(rare)], now=now)
    _run_agent(engine, now + timedelta(seconds=2), state=state)
    engine.dispose()
    assert asked == [[rare], [common], [rare, other]]


def test_slots_are_counted_with_all_weights_also_of_a_vo_that_came_in_between(
    engine: Engine, now: datetime
) -> None:
    state = PriorityState()
    _run_agent(engine, now, state=state)
    rare = _add(engine, now, asked=RARE)
    _run_agent(engine, now + timedelta(seconds=60), state=state)
    assert _read_supplies(engine) == {rare: 0}
    _note_answers(engine, now + timedelta(seconds=61))
    _run_agent(engine, now + timedelta(seconds=120), state=state)
    assert _read_supplies(engine) == {rare: 5}


def test_a_change_of_the_configuration_counts_in_the_next_cycle(engine: Engine, now: datetime) -> None:
    _note_answers(engine, now - HOUR)
    rare, state = _add(engine, now, asked=RARE), PriorityState()
    for version, config, supply in ((1, OFF, None), (2, KEEPING, 5), (3, OFF, None)):
        _run_agent(engine, now + timedelta(seconds=version), replace(config, version=version), state)
        assert _read_supplies(engine) == {rare: supply}


def _wait(
    engine: Engine, now: datetime, config: Configuration, rare: int, common: int
) -> tuple[int, int, Matcher]:
    """Task queues with so many jobs that fit at one queue only, and anywhere, with a matcher for them."""
    _note_answers(engine, now - HOUR)
    waiting = _add(engine, now, rare, asked=RARE), _add(engine, now, common)
    _run_agent(engine, now, config)
    return *waiting, matcher(engine, now, config)


@pytest.mark.parametrize("config", [KEEPING, OFF])
def test_the_only_slots_for_some_jobs_do_not_go_to_others_of_their_owner(
    engine: Engine, now: datetime, config: Configuration
) -> None:
    rare, common, matching = _wait(engine, now, config, 12, 40)
    there = [_draw(engine, matching, ELSEWHERE) for _ in range(20)]
    if config is KEEPING:
        assert there == [rare] * 12 + [common] * 8
    else:
        assert common in there[:12]
    assert _draw(engine, matching, LONG) == common


@pytest.mark.parametrize("config", [KEEPING, OFF])
def test_a_request_for_several_jobs_gets_those_without_other_slots_first(
    engine: Engine, now: datetime, config: Configuration
) -> None:
    rare, common, matching = _wait(engine, now, config, 58, 200)
    given: list[list[int]] = []
    for _ in range(17):
        found = serve(matching, request(count=4, NumberOfProcessors=4, **at(ELSEWHERE)))
        with database.reading(engine) as conn:
            given.append([task_queue_of(conn, job.job_id) for job in found.claimed])
    if config is KEEPING:
        assert given == [[rare] * 4] * 14 + [[rare] * 2 + [common] * 2] + [[common] * 4] * 2
    else:
        assert [common] * 4 in given[:14]


def test_another_owners_chance_stays(engine: Engine, now: datetime) -> None:
    _note_answers(engine, now - HOUR)
    _add(engine, now, 200, asked=RARE)
    _add(engine, now, 200)
    of_bob = _add(engine, now, 200, owner="bob")
    _run_agent(engine, now)
    matching = matcher(engine, now, KEEPING)
    drawn = [_draw(engine, matching, ELSEWHERE) for _ in range(100)]
    assert 30 < drawn.count(of_bob) < 70
