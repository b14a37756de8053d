"""The agents that bring jobs back, find those nobody rang for, and remove what is old."""

import logging
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, update
from sqlalchemy.exc import OperationalError

from agents import leader, lost_jobs, sweep
from agents.leader import LeadershipLostError
from agents.lost_jobs import LostJobsState, LostResult
from agents.retention import retention
from agents.retention.retention import RetentionState
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from requirements.states import JobStatus, PilotStatus
from taskqueue import blobs
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.db import database
from taskqueue.jobs import control
from taskqueue.leases import expiry
from taskqueue.leases.opening import ClaimedJob
from taskqueue.pilots import pilots, slots
from taskqueue.pilots.slots import SlotLimits
from taskqueue.schema.tables import attempts, changes, idempotency_keys, match_requests, service_uptime
from taskqueue.schema.tables import jobs as jobs_table
from tests.support import concurrency, databases
from tests.support.databases import count
from tests.support.factories import pilot_reports, stored_rows
from tests.support.factories.submitted_jobs import GRID, claim, enqueue, grid, job, submit, waiting, way

JOB = {"Executable": "a.sh"}
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _service(request: pytest.FixtureRequest, now: datetime) -> None:
    """Whoever has a database has a service, which is up all the time."""
    if "engine" in request.fixturenames:
        stored_rows.service_up(request.getfixturevalue("engine"), now - DAY, now + 100 * DAY)


def wait_in_queue(engine: Engine, now: datetime, count: int = 1) -> list[int]:
    return enqueue(engine, grid(), now, *([JOB] * count))


def match(engine: Engine, now: datetime, count: int = 1) -> list[ClaimedJob]:
    return claim(engine, now, count)


def start(engine: Engine, claimed: ClaimedJob, now: datetime) -> None:
    pilot_reports.start(engine, claimed.lease, lease_time=5 * MINUTE, now=now)


def run(engine: Engine, now: datetime) -> int:
    [job_id] = wait_in_queue(engine, now)
    [claimed] = match(engine, now)
    start(engine, claimed, now)
    return job_id


def look(engine: Engine, now: datetime, config: Configuration | None = None) -> LostResult:
    result = lost_jobs.cycle(engine, config or grid(), now=now, holder="me")
    assert result is not None
    return result


def test_a_silent_job_is_stalled_then_rescheduled_and_comes_to_wait_again(
    engine: Engine, now: datetime
) -> None:
    job_id = run(engine, now)
    assert not look(engine, now + 29 * MINUTE)
    assert look(engine, now + 31 * MINUTE) == LostResult(stalled=1)
    assert job(engine, job_id).status is JobStatus.STALLED
    assert not look(engine, now + 60 * MINUTE)
    assert not look(engine, now + 395 * MINUTE), "its payload may still run"
    after = now + 397 * MINUTE
    assert look(engine, after) == LostResult(rescheduled=1)
    batch.optimize(engine, grid(), [job_id], now=after)
    batch.optimize(engine, grid(), [job_id], now=after + MINUTE)
    assert waiting(engine) == [job_id]
    assert way(engine, job_id) == [
        *("Received", "Waiting", "Matched", "Running", "Stalled", "Rescheduled", "Checking", "Waiting")
    ]


def test_open_attempts_are_read_sixty_times_in_the_time_until_they_are_stalled(
    engine: Engine, now: datetime
) -> None:
    memory = LostJobsState()

    def look_at(seconds: float) -> LostResult | None:
        moment = now + timedelta(seconds=seconds)
        return lost_jobs.cycle(engine, grid(), now=moment, holder="me", memory=memory)

    run(engine, now)
    assert look_at(1790) == LostResult(), "a pass ends"
    assert look_at(1819) == LostResult(), "it is silent for long enough since 19 s"
    assert look_at(1820) == LostResult(stalled=1)


def test_a_clock_that_was_set_back_begins_a_new_pass(engine: Engine, now: datetime) -> None:
    memory = LostJobsState()
    run(engine, now)
    for moment, result in ((now + DAY, LostResult(stalled=1)), (now + MINUTE, LostResult())):
        assert lost_jobs.cycle(engine, grid(), now=moment, holder="me", memory=memory) == result
        assert memory.passed == moment


def test_a_pass_takes_as_long_for_many_vos_as_for_one(postgresql: Engine, now: datetime) -> None:
    stored_rows.service_up(postgresql, now - DAY, now + DAY)
    run(postgresql, now)
    plans: list[str] = []

    @event.listens_for(postgresql, "before_cursor_execute")
    def explain(*arguments: Any) -> None:
        if "heartbeat_at <" in arguments[2]:
            rows = arguments[1].connection.execute(f"EXPLAIN (ANALYZE) {arguments[2]}", arguments[3])
            plans.append("\n".join(line for (line,) in rows))

    with database.writing(postgresql) as conn:
        since = {f"vo{number}": now - DAY for number in range(20)} | {"lhcb": now - DAY}
        assert expiry.mark_stalled(conn, silent_since=since, now=now) == []
    [plan] = plans
    assert "Function Scan" not in plan, "each attempt is compared with each VO"


def test_a_heartbeat_ends_the_quarantine(engine: Engine, now: datetime) -> None:
    job_id = run(engine, now)
    stored_rows.force(engine, job_id, application_status="event 7 of 10")
    look(engine, now + 31 * MINUTE)
    with database.writing(engine) as conn:
        lease = conn.execute(select(attempts.c.lease)).scalar_one()
        later = now + 32 * MINUTE
        pilot_reports.heartbeat(conn, lease, lease_time=MINUTE, now=later)
    found = job(engine, job_id)
    assert (found.status, found.application_status) == (JobStatus.RUNNING, "event 7 of 10")
    assert not look(engine, now + 61 * MINUTE)


def test_the_times_are_the_vos_own(engine: Engine, now: datetime) -> None:
    config = grid(
        GRID + "Operations: {lhcb: {Leases: {StalledTime: 60, StalledGrace: 60, RunOnTime: 300}}}\n"
    )
    run(engine, now)
    assert look(engine, now + timedelta(seconds=61), config).stalled == 1
    assert not look(engine, now + timedelta(seconds=329), config)
    assert look(engine, now + timedelta(seconds=331), config).rescheduled == 1


def run_at_pilot(engine: Engine, now: datetime) -> tuple[int, str]:
    """A job that runs at a registered pilot, and its lease."""
    [job_id] = wait_in_queue(engine, now)
    [claimed] = match(engine, now)
    with database.writing(engine) as conn:
        pilots.record_contact(conn, stamp="p1", vo="lhcb", queue=None, now=now)
        conn.execute(update(attempts).values(stamp="p1"))
    start(engine, claimed, now)
    return job_id, claimed.lease


REPORTED = "\nNODE_FAIL, exit status 1\nthe end\n\nof its output"


def end_pilot(engine: Engine, now: datetime, reason: str = REPORTED) -> list[int]:
    """What the end of the pilot stalls."""
    with database.writing(engine) as conn:
        pilots.set_status(conn, "p1", PilotStatus.FAILED, reason=reason, now=now)
        return expiry.mark_pilots_ended(conn, ["p1"], now=now)


def beat(engine: Engine, lease: str, now: datetime) -> None:
    pilot_reports.heartbeat(engine, lease, lease_time=MINUTE, now=now)


def test_a_job_whose_pilot_has_ended_is_given_away_after_a_short_grace(engine: Engine, now: datetime) -> None:
    job_id, _ = run_at_pilot(engine, now)
    assert end_pilot(engine, now + MINUTE) == [job_id]
    found = job(engine, job_id)
    assert (found.status, found.minor_status) == (JobStatus.STALLED, expiry.PILOT_ENDED)
    assert found.application_status == "NODE_FAIL, exit status 1"
    assert not look(engine, now + 2 * MINUTE)
    assert look(engine, now + timedelta(seconds=121)) == LostResult(rescheduled=1)
    found = job(engine, job_id)
    assert (found.minor_status, found.application_status) == (control.RESCHEDULED, "NODE_FAIL, exit status 1")


def test_a_job_whose_last_pilot_ended_fails_with_the_reason_of_that_end(
    engine: Engine, now: datetime
) -> None:
    job_id, _ = run_at_pilot(engine, now)
    stored_rows.force(engine, job_id, reschedules=3)
    end_pilot(engine, now + MINUTE)
    assert look(engine, now + timedelta(seconds=121)) == LostResult(failed=1)
    found = job(engine, job_id)
    assert (found.minor_status, found.application_status) == (expiry.GIVEN_UP, "NODE_FAIL, exit status 1")


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "TIMEOUT: TimeLimit: at A.B.ch/ce/big, offering {}",
        "TIMEOUT, exit status 1: job 7: Done\nno more jobs\n\nthe end",
        "TIMEOUT, exit status 1: job 7: Done\n\nthe end",
    ],
    ids=["nothing", "one line", "lines", "an empty line"],
)
def test_output_of_a_pilot_is_no_reason_for_users(engine: Engine, now: datetime, reported: str) -> None:
    """Directors of 1.0 send it in the line of the reason."""
    job_id, _ = run_at_pilot(engine, now)
    assert end_pilot(engine, now + MINUTE, reported) == [job_id]
    assert job(engine, job_id).application_status == ""
    assert look(engine, now + timedelta(seconds=121)) == LostResult(rescheduled=1)
    assert job(engine, job_id).application_status == expiry.PILOT_ENDED


def test_pilots_that_end_at_once_for_different_reasons_take_as_many_statements_as_one(
    engine: Engine, now: datetime
) -> None:
    def end(count: int) -> int:
        wait_in_queue(engine, now, count)
        claimed = match(engine, now, count)
        stamps = [f"p{each.job_id}" for each in claimed]
        for each, stamp in zip(claimed, stamps, strict=True):
            start(engine, each, now)
            with database.writing(engine) as conn:
                pilots.record_contact(conn, stamp=stamp, vo="lhcb", queue=None, now=now)
                conn.execute(update(attempts).where(attempts.c.job_id == each.job_id).values(stamp=stamp))
                pilots.set_status(
                    conn, stamp, PilotStatus.FAILED, reason=f"\nnode of {stamp} lost", now=now + MINUTE
                )
        sent = databases.record_statements(engine)
        with database.writing(engine) as conn:
            assert len(expiry.mark_pilots_ended(conn, stamps, now=now + MINUTE)) == count
        number = len(sent)
        for each in claimed:
            assert job(engine, each.job_id).application_status == f"node of p{each.job_id} lost"
        return number

    assert end(1) == end(20)


def begin_process(engine: Engine, process: str, now: datetime) -> list[int]:
    """What a process of the pilot stalls when it begins."""
    with database.writing(engine) as conn:
        is_new = pilots.store_process(conn, "p1", process, now=now)
        return expiry.mark_pilots_ended(conn, ["p1"], now=now) if is_new else []


def test_a_pilot_that_was_started_again_gets_its_slot_back_after_a_short_grace(
    engine: Engine, now: datetime
) -> None:
    job_id, _ = run_at_pilot(engine, now)
    assert begin_process(engine, "second", now + MINUTE) == [job_id]
    assert begin_process(engine, "second", now + MINUTE) == []
    found = job(engine, job_id)
    assert (found.status, found.application_status) == (JobStatus.STALLED, "")
    assert not look(engine, now + 2 * MINUTE)
    limits = {"p1": SlotLimits(processors=1, claims=1000)}
    with database.reading(engine) as conn:
        assert slots.read_rooms(conn, limits, now=now)["p1"].refusal == "slot_full"
    assert look(engine, now + timedelta(seconds=121)) == LostResult(rescheduled=1)
    with database.reading(engine) as conn:
        assert slots.read_rooms(conn, limits, now=now)["p1"].jobs == 1


def test_a_second_process_with_the_token_of_a_living_pilot_takes_nothing_from_it(
    engine: Engine, now: datetime
) -> None:
    job_id, lease = run_at_pilot(engine, now)
    assert begin_process(engine, "second", now + MINUTE) == [job_id]
    beat(engine, lease, now + timedelta(seconds=80))
    assert job(engine, job_id).status is JobStatus.RUNNING
    assert not look(engine, now + 4 * MINUTE)
    assert job(engine, job_id).status is JobStatus.RUNNING


def test_the_first_process_of_a_registered_pilot_replaces_none(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        place = QueueAddress(site="A.B.ch", ce="ce", queue="big")
        pilots.register(conn, stamp="p1", vo="lhcb", queue=place, submitted_by="dora", now=now)
        assert not pilots.store_process(conn, "p1", "first", now=now)
        assert not pilots.store_process(conn, "p1", "first", now=now)
        assert pilots.store_process(conn, "p1", "second", now=now)


def test_a_job_that_was_stalled_already_has_the_grace_from_the_end_of_its_pilot(
    engine: Engine, now: datetime
) -> None:
    job_id, _ = run_at_pilot(engine, now)
    assert look(engine, now + 31 * MINUTE).stalled == 1
    before = job(engine, job_id)
    assert end_pilot(engine, now + 90 * MINUTE) == []
    assert job(engine, job_id) == before
    assert not look(engine, now + 91 * MINUTE)
    assert look(engine, now + timedelta(seconds=91 * 60 + 1)) == LostResult(rescheduled=1)


def test_a_heartbeat_shows_that_the_end_of_its_pilot_was_reported_wrongly(
    engine: Engine, now: datetime
) -> None:
    job_id, lease = run_at_pilot(engine, now)
    end_pilot(engine, now + MINUTE)
    beat(engine, lease, now + 2 * MINUTE)
    found = job(engine, job_id)
    assert (found.status, found.application_status) == (JobStatus.RUNNING, "")
    assert look(engine, now + 33 * MINUTE) == LostResult(stalled=1)
    assert not look(engine, now + 397 * MINUTE), "a pilot that is only silent"
    assert look(engine, now + 399 * MINUTE) == LostResult(rescheduled=1)


def test_the_end_of_a_pilot_stalls_neither_its_killed_jobs_nor_those_of_others(
    engine: Engine, now: datetime
) -> None:
    killed, _ = run_at_pilot(engine, now)
    other = run(engine, now)
    stored_rows.kill(engine, now, killed)
    assert end_pilot(engine, now + MINUTE) == []
    assert job(engine, other).status is JobStatus.RUNNING


def test_a_killed_job_whose_pilot_is_gone_is_let_go(engine: Engine, now: datetime) -> None:
    job_id = run(engine, now)
    stored_rows.kill(engine, now, job_id)
    assert look(engine, now + 6 * MINUTE) == LostResult(closed=1)
    assert job(engine, job_id).status is JobStatus.KILLED


def test_two_agents_at_once_look_after_each_job_once(engine: Engine, now: datetime) -> None:
    ids = wait_in_queue(engine, now, 50)
    assert len(match(engine, now, 50)) == 50
    later = now + 6 * MINUTE
    results = concurrency.at_once(
        2, lambda number: lost_jobs.cycle(engine, grid(), now=later, holder=str(number))
    )
    assert sum(result.waiting for result in results if result) == 50
    assert waiting(engine) == ids
    assert {len(way(engine, job_id)) for job_id in ids} == {4}


def test_the_sweep_leaves_fresh_jobs_to_those_who_were_rung(engine: Engine, now: datetime) -> None:
    ids = submit(engine, grid(), now, JOB, JOB)
    assert not sweep.cycle(engine, grid(), now=now, holder="me")
    result = sweep.cycle(engine, grid(), now=now + sweep.LAG, holder="me")
    assert result == sweep.SweepResult(waiting=2)
    assert waiting(engine) == ids


def test_the_sweep_finds_held_jobs_whose_delay_is_over(engine: Engine, now: datetime) -> None:
    [job_id] = submit(engine, grid(), now, {**JOB, "InputData": "/lhcb/x"})
    first = sweep.cycle(engine, grid(), now=now + MINUTE, holder="me")
    assert first == sweep.SweepResult(held=1)
    assert not sweep.cycle(engine, grid(), now=now + 2 * MINUTE, holder="me")
    again = sweep.cycle(engine, grid(), now=now + 7 * MINUTE, holder="me")
    assert again == sweep.SweepResult(held=1)
    assert job(engine, job_id).status is JobStatus.CHECKING


def test_the_sweep_takes_many_batches(engine: Engine, now: datetime) -> None:
    submit(engine, grid(), now, {**JOB, "Parameters": 1200})
    assert sweep.cycle(engine, grid(), now=now + MINUTE, holder="me") == sweep.SweepResult(waiting=1200)


def clean(
    engine: Engine, now: datetime, store: DirectoryStore | None = None, text: str = GRID
) -> Mapping[str, int]:
    result = retention.cycle(engine, grid(text), now=now, holder="me", store=store)
    assert result is not None
    return result.removed


def end(engine: Engine, job_ids: list[int], now: datetime, vo: str = "lhcb") -> None:
    databases.execute(
        engine,
        update(jobs_table)
        .where(jobs_table.c.job_id.in_(job_ids))
        .values(status="Done", ended_at=now, updated_at=now, vo=vo, due_at=None),
    )


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "blobs")


def keep(engine: Engine, store: DirectoryStore, content: bytes, now: datetime, vo: str = "lhcb") -> str:
    staged = store.stage(iter([content]), limit=100)
    with database.writing(engine) as conn:
        return blobs.store_blob(conn, store, staged, vo=vo, quota=None, now=now)


def held(store: DirectoryStore) -> set[str]:
    return set(store.digests(before=datetime.now().astimezone() + DAY))


def test_a_cycle_that_no_other_follows_goes_through_all_ended_jobs(
    engine: Engine, now: datetime, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_LIMIT", 1)
    digest = keep(engine, store, b"output", now)
    ids = [run(engine, now), run(engine, now)]
    with database.writing(engine) as conn:
        closed = update(attempts).where(attempts.c.job_id == ids[1])
        conn.execute(closed.values(output=digest, closed_at=now, closed_as="finished"))
    end(engine, ids[:1], now)
    end(engine, ids[1:], now + timedelta(hours=1))
    config = grid(GRID + "Operations: {Defaults: {Retention: {Outputs: 5, Jobs: 60, Logs: 60}}}\n")

    monkeypatch.setattr(retention, "_ROUNDS", 1)

    def removed(*, has_next: bool) -> int:
        memory = RetentionState(has_next=has_next)
        result = retention.cycle(engine, config, now=now + 10 * DAY, holder="me", store=store, memory=memory)
        assert result is not None
        return result.removed.get("outputs", 0)

    assert [removed(has_next=each) for each in (True, True, False)] == [0, 0, 1]


def test_what_a_dead_process_left_in_the_store_goes(engine: Engine, store: DirectoryStore) -> None:
    now = datetime.now().astimezone()
    stray = store.stage(iter([b"stray"]), limit=100)
    store.store(stray)
    store.stage(iter([b"never kept"]), limit=100)
    known = keep(engine, store, b"known", now)
    assert clean(engine, now, store) == {}
    assert clean(engine, now + 2 * DAY, store) == {"stray files": 2}
    assert held(store) == {known}


def test_what_the_system_noted_for_itself_goes(engine: Engine, now: datetime) -> None:
    submit(engine, grid(), now, JOB, key="k")
    wait_in_queue(engine, now)
    with database.writing(engine) as conn:
        conn.execute(insert(match_requests).values(subject="p", request_id="r", at=now, matches="[]"))
        conn.execute(update(changes).values(at=now))
    assert count(engine, changes) > 0
    assert clean(engine, now + timedelta(minutes=59)) == {}
    clean(engine, now + 2 * DAY)
    assert (count(engine, changes), count(engine, match_requests)) == (0, 0)
    assert count(engine, idempotency_keys) == 1
    clean(engine, now + 8 * DAY)
    assert count(engine, idempotency_keys) == 0


def test_a_loop_goes_on_after_a_cycle_that_broke(now: datetime, caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    times: list[datetime] = []

    def cycle(at: datetime) -> str | None:
        times.append(at)
        if len(times) == 1:
            raise ZeroDivisionError
        if len(times) == 2:
            raise OperationalError("select 1", {}, Exception("away"))
        if len(times) == 3:
            raise LeadershipLostError("another process is the leader of test now")
        stop.set()
        return "done it"

    with caplog.at_level(logging.INFO):
        leader.run(cycle, name="test", every=0, stop=stop, clock=lambda: now)
    assert times == [now] * 4
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False, False]
    assert "test: the cycle was ended: another process is the leader" in caplog.text
    assert "test: the cycle failed" in caplog.text
    assert "test: the database is unavailable" in caplog.text
    assert "test: done it" in caplog.text


def test_a_loop_ends_while_it_waits(now: datetime) -> None:
    stop = threading.Event()
    began = threading.Event()
    thread = threading.Thread(
        target=leader.run, args=(lambda _: began.set(),), kwargs={"name": "test", "every": 3600, "stop": stop}
    )
    thread.start()
    assert began.wait(300)
    stop.set()
    thread.join(300)
    assert not thread.is_alive()


class RecordedPauses(threading.Event):
    """Ends each pause at once, and the loop after so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.pauses: list[float | None] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        if len(self.pauses) == self._most:
            self.set()
        return self.is_set()


def test_the_first_pause_of_a_loop_may_be_shorter() -> None:
    stop = RecordedPauses(3)
    leader.run(lambda _: None, name="test", every=60, first_pause=20, stop=stop)
    assert stop.pauses == [20, 60, 60]


def test_a_cycle_that_leaves_something_is_followed_by_the_next_at_once() -> None:
    stop = threading.Event()
    left = [20_000, 20_000, 17]

    def cycle(_: datetime) -> retention.RetentionResult:
        if len(left) == 1:
            stop.set()
        removed = left.pop(0)
        return retention.RetentionResult(removed={"jobs": removed}, is_behind=bool(left))

    loop = {"name": "test", "every": 3600, "stop": stop}
    thread = threading.Thread(target=leader.run, args=(cycle,), kwargs=loop, daemon=True)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    assert not left


def test_pilots_that_nobody_reports_on_for_days_are_aborted(engine: Engine, now: datetime) -> None:
    def contact(stamp: str, at: datetime) -> None:
        with database.writing(engine) as conn:
            pilots.record_contact(conn, stamp=stamp, vo="lhcb", queue=None, now=at)

    for stamp in ("gone", "alive"):
        contact(stamp, now)
    with database.writing(engine) as conn:
        place = QueueAddress(site="A.B.ch", ce="ce", queue="big")
        pilots.register(conn, stamp="waits", vo="lhcb", queue=place, submitted_by="dora", now=now)
    assert not look(engine, now + 3 * DAY)
    contact("alive", now + 3 * DAY)

    # Nobody could report while the service was away.
    databases.execute(engine, update(service_uptime).values(until=now + 2 * DAY))
    assert not look(engine, now + 5 * DAY)
    databases.execute(engine, update(service_uptime).values(until=now + 100 * DAY))

    assert look(engine, now + 5 * DAY) == LostResult(pilots=2)

    with database.reading(engine) as conn:
        found = pilots.read_pilots(conn, ["gone", "alive", "waits"])
    assert {each.stamp: each.status.value for each in found} == {
        "gone": "Aborted",
        "alive": "Running",
        "waits": "Aborted",
    }
