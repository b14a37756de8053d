"""A job that was taken from a silent pilot goes back to it, as long as nobody else has it."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine, func, select

from optimizers.chain import batch
from requirements.resource import Allotment
from requirements.states import JobStatus
from taskqueue.accounting.usage import SUM_NAMES
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.errors import StaleLease
from taskqueue.jobs import control
from taskqueue.leases import attempts, expiry
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.batched_claim import BatchClaim
from taskqueue.leases.opening import ClaimedJob, LeaseHolder
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import accounted_use, task_queues, waiting_jobs
from taskqueue.schema.tables import attempts as attempts_table
from taskqueue.sites import reservations, scopes
from tests.support import concurrency, databases
from tests.support.claimers import claim_together
from tests.support.factories import accounted_jobs, pilot_reports, stored_rows
from tests.support.factories.submitted_jobs import BIG, claim, grid, job, log_of, submit, waiting, way

S = JobStatus
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
LEASE = timedelta(minutes=30)
OTHER = LeaseHolder(subject="other", stamp=None, lease_time=LEASE)
DONE = PayloadResult(status="Done", exit_code=0)
DIGEST = "d" * 64


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Jobs that were given up for lost, with the leases that they were held by."""

    engine: Engine
    now: datetime
    leases: dict[int, str]

    @property
    def job_id(self) -> int:
        return next(iter(self.leases))

    @property
    def lease(self) -> str:
        return self.leases[self.job_id]

    @property
    def attempt(self) -> Attempt:
        with database.reading(self.engine) as conn:
            return attempts.get_attempt(conn, self.lease)

    def optimize(self) -> None:
        """Have them wait again; at first they are held for a moment."""
        for minute in (0, 60):
            batch.optimize(self.engine, grid(), list(self.leases), now=self.now + minute * MINUTE)
        assert set(waiting(self.engine)) == set(self.leases)

    def claim(self, count: int = 1, now: datetime | None = None) -> list[ClaimedJob]:
        return claim(self.engine, now or self.now, count, holder=OTHER)

    def report(self, which: str, lease: str | None = None) -> object:
        with database.writing(self.engine) as conn:
            return _REPORTS[which](conn, lease or self.lease, self.now)


_REPORTS: dict[str, Callable[[Any, str, datetime], object]] = {
    "start": lambda conn, lease, now: pilot_reports.start(conn, lease, lease_time=LEASE, now=now),
    "heartbeat": lambda conn, lease, now: pilot_reports.heartbeat(conn, lease, lease_time=LEASE, now=now),
    "output": lambda conn, lease, now: pilot_reports.store_output(conn, lease, DIGEST, now=now),
    "finish": lambda conn, lease, now: pilot_reports.finish(conn, lease, DONE, now=now),
}


def lose(engine: Engine, now: datetime, count: int, most: int = 3) -> Lost:
    """Jobs that ran and were rescheduled since nothing was heard of them."""
    job_ids = submit(engine, grid(), now, *([{"Executable": "a.sh"}] * count))
    batch.optimize(engine, grid(), job_ids, now=now)
    with database.writing(engine) as conn:
        leases = {each.job_id: each.lease for each in claim(conn, now, count, holder=OTHER)}
        assert list(leases) == job_ids
        for lease in leases.values():
            pilot_reports.start(conn, lease, lease_time=LEASE, now=now)
    give_up(engine, now + HOUR, most)
    return Lost(engine=engine, now=now + HOUR, leases=leases)


def give_up(engine: Engine, now: datetime, most: int = 3) -> None:
    with database.writing(engine) as conn:
        expiry.mark_stalled(conn, silent_since={"lhcb": now}, now=now - MINUTE)
        pilot_reports.give_up(conn, "lhcb", max_rescheduling=most, now=now)


@pytest.fixture
def gone(engine: Engine, now: datetime) -> Lost:
    return lose(engine, now, 1)


@pytest.mark.parametrize("report", _REPORTS)
@pytest.mark.parametrize("state", [S.RESCHEDULED, S.CHECKING, S.WAITING])
def test_who_comes_back_has_the_job_again(gone: Lost, report: str, state: JobStatus) -> None:
    if state is S.WAITING:
        gone.optimize()
    elif state is S.CHECKING:
        batch.optimize(gone.engine, grid(), [gone.job_id], now=gone.now)
    assert job(gone.engine, gone.job_id).status is state
    gone.report(report)
    found = job(gone.engine, gone.job_id)
    assert found.status is (S.DONE if report == "finish" else S.RUNNING)
    assert (found.epoch, found.reschedules, found.site) == (1, 0, "A.B.ch")
    assert (waiting(gone.engine), gone.claim(now=gone.now + HOUR)) == ([], [])
    assert gone.attempt.closed_as == ("finished" if report == "finish" else None)
    assert gone.attempt.output == (DIGEST if report == "output" else None)
    batch.optimize(gone.engine, grid(), [gone.job_id], now=gone.now + HOUR)
    assert job(gone.engine, gone.job_id) == found, "the optimizers leave it alone"


def test_a_job_that_came_back_is_as_others_are(gone: Lost) -> None:
    gone.optimize()
    gone.report("heartbeat")
    gone.report("output")
    assert gone.report("finish") == gone.report("finish")
    assert way(gone.engine, gone.job_id)[-6:] == [
        *("Stalled", "Rescheduled", "Checking", "Waiting", "Running", "Done")
    ]
    resumed = log_of(gone.engine, gone.job_id)[-2]
    assert (resumed.minor_status, resumed.source, resumed.epoch) == (expiry.RESUMED, "Pilot", 1)


def test_it_may_be_lost_and_come_back_more_than_once(gone: Lost) -> None:
    for _ in range(5):
        gone.report("heartbeat")
        give_up(gone.engine, gone.now + HOUR)
    assert job(gone.engine, gone.job_id).reschedules == 1


def test_a_kill_reaches_the_one_who_came_back(gone: Lost) -> None:
    gone.optimize()
    gone.report("heartbeat")
    stored_rows.kill(gone.engine, gone.now, gone.job_id)
    assert gone.report("heartbeat") == {"commands": ["kill"]}


def _another_attempt(gone: Lost) -> None:
    gone.optimize()
    assert gone.claim()


def _another_attempt_that_ended(gone: Lost) -> None:
    _another_attempt(gone)
    with database.writing(gone.engine) as conn:
        found = attempts.get_latest(conn, gone.job_id)
        assert found is not None
        pilot_reports.release(conn, found.lease, reason="", max_rescheduling=3, now=gone.now)
    assert waiting(gone.engine) == [gone.job_id]


def _control(what: Callable[..., object]) -> Callable[[Lost], None]:
    def do(gone: Lost) -> None:
        gone.optimize()
        with database.writing(gone.engine) as conn:
            what(conn, [gone.job_id], source="alice", now=gone.now)

    return do


def _reschedule_and_optimize(gone: Lost) -> None:
    _control(partial(control.reschedule_jobs, maximum=9))(gone)
    gone.optimize()


def _force(gone: Lost) -> None:
    with database.writing(gone.engine) as conn:
        stored_rows.set_status(conn, gone.job_id, S.FAILED, minor="by hand", source="operator", now=gone.now)


_TAKES_AWAY = {
    "another attempt": _another_attempt,
    "another attempt that is over": _another_attempt_that_ended,
    "a kill": _control(control.kill_jobs),
    "a person's reschedule": _control(partial(control.reschedule_jobs, maximum=9)),
    "a person's reschedule, and the optimizers": _reschedule_and_optimize,
    "deletion": _control(control.delete_jobs),
    "an operator": _force,
}


@pytest.mark.parametrize("report", _REPORTS)
@pytest.mark.parametrize("reason", _TAKES_AWAY)
def test_what_was_given_away_or_ended_does_not_come_back(gone: Lost, reason: str, report: str) -> None:
    _TAKES_AWAY[reason](gone)
    before = job(gone.engine, gone.job_id), gone.attempt, waiting(gone.engine), way(gone.engine, gone.job_id)
    with pytest.raises(StaleLease):
        gone.report(report)
    after = job(gone.engine, gone.job_id), gone.attempt, waiting(gone.engine), way(gone.engine, gone.job_id)
    assert before == after


@pytest.mark.parametrize("report", _REPORTS)
def test_a_job_that_failed_since_it_was_lost_too_often_goes_back_to_who_comes_back(
    engine: Engine, now: datetime, report: str
) -> None:
    gone = lose(engine, now, 1, most=0)
    assert job(engine, gone.job_id).status is S.FAILED
    gone.report(report)
    found = job(engine, gone.job_id)
    assert found.status is (S.DONE if report == "finish" else S.RUNNING)
    assert (found.reschedules, found.ended_at is None) == (0, report != "finish")


@pytest.mark.parametrize("report", _REPORTS)
def test_a_failed_job_that_was_rescheduled_or_deleted_by_a_person_does_not_come_back(
    engine: Engine, now: datetime, report: str
) -> None:
    for number, end in enumerate((partial(control.reschedule_jobs, maximum=9), control.delete_jobs)):
        gone = lose(engine, now + number * 2 * HOUR, 1, most=0)
        with database.writing(engine) as conn:
            end(conn, [gone.job_id], source="alice", now=gone.now)
        with pytest.raises(StaleLease):
            gone.report(report)


def test_its_reservation_counts_all_the_time(engine: Engine, now: datetime) -> None:
    gone = lose(engine, now, 1)
    with database.writing(engine) as conn:
        scopes.lock_scopes(conn, ["A.B.ch"])
        reservations.create_reservations(conn, [("A.B.ch", (gone.job_id, 1))])
        assert reservations.count_reservations(conn, ["A.B.ch"]) == {"A.B.ch": 1}, "it may run there"
    gone.report("heartbeat")
    with database.reading(engine) as conn:
        assert reservations.count_reservations(conn, ["A.B.ch"]) == {"A.B.ch": 1}
    gone.report("finish")
    with database.reading(engine) as conn:
        assert reservations.count_reservations(conn, ["A.B.ch"]) == {}


@pytest.mark.parametrize("counted_late", [False, True])
def test_its_time_is_accounted_once(engine: Engine, now: datetime, counted_late: bool) -> None:
    gone = lose(engine, now, 1)
    if not counted_late:
        accounted_jobs.count(engine, gone.now + MINUTE)
    pilot_reports.heartbeat(engine, gone.lease, lease_time=LEASE, now=gone.now + HOUR)
    report = PayloadResult(status="Done", cpu_seconds=3600)
    pilot_reports.finish(engine, gone.lease, report, now=gone.now + 2 * HOUR)
    accounted_jobs.count(engine, gone.now + 3 * HOUR)
    sums = select(
        accounted_use.c.status, *(func.sum(accounted_use.c[name]).label(name) for name in SUM_NAMES)
    )
    with database.reading(engine) as conn:
        rows = conn.execute(sums.group_by(accounted_use.c.status).order_by(accounted_use.c.status)).all()
    assert [(row.status, row.attempts, row.wall_seconds) for row in rows] == [
        *(("Done", 1, 7200), ("Rescheduled", 1, 3600))
    ]
    assert (rows[0].cpu_seconds, rows[0].told_core_seconds, rows[1].cpu_seconds) == (3600, 10_800, 0)


# Races.


def test_a_claim_that_is_under_way_wins(postgresql: Engine, now: datetime) -> None:
    gone = lose(postgresql, now, 1)
    gone.optimize()

    def resume() -> object:
        with pytest.raises(StaleLease):
            gone.report("finish")
        return None

    concurrency.meanwhile(postgresql, lambda conn: claim(conn, gone.now, holder=OTHER), resume)
    assert (job(postgresql, gone.job_id).status, job(postgresql, gone.job_id).epoch) == (S.MATCHED, 2)


def test_a_job_that_is_coming_back_is_passed_over_by_claims(postgresql: Engine, now: datetime) -> None:
    gone = lose(postgresql, now, 1)
    gone.optimize()
    resumed = _REPORTS["heartbeat"]
    got = concurrency.meanwhile(
        postgresql, lambda conn: resumed(conn, gone.lease, gone.now), lambda: gone.claim(), waits=False
    )
    assert (got, job(postgresql, gone.job_id).status) == ([], S.RUNNING)


def _claim_quickly(
    gone: Lost, task_queue_ids: Sequence[int], number: int, server: AutocommitRunner
) -> list[int]:
    asks = [
        BatchClaim(
            task_queue_id=task_queue_id,
            place=BIG,
            holder=LeaseHolder(subject=f"other {number}", stamp=None, lease_time=LEASE),
            lease=f"lease {number} {task_queue_id}",
            allotment=Allotment(),
        )
        for task_queue_id in task_queue_ids
    ]
    outcomes = claim_together(server, asks, now=gone.now)
    return [each.claimed.job_id for each in outcomes if each.claimed is not None]


@pytest.mark.parametrize("seed", range(3))
def test_of_holders_that_come_back_claims_and_kills_one_wins_each_job(
    engine: Engine, now: datetime, seed: int
) -> None:
    count = 60
    gone = lose(engine, now, count)
    gone.optimize()
    task_queue_ids = databases.scalars(engine, select(task_queues.c.task_queue_id))
    back: set[int] = set()
    claimed: list[int] = []
    killed: set[int] = set()
    stop = threading.Event()
    chance = Random(seed)
    leases = list(gone.leases.items())
    chance.shuffle(leases)
    doomed = chance.sample(sorted(gone.leases), 10)

    def come_back(_: int) -> None:
        try:
            for job_id, lease in leases:
                with contextlib.suppress(StaleLease):
                    gone.report(chance.choice(["heartbeat", "finish", "output", "start"]), lease)
                    back.add(job_id)
        finally:
            stop.set()

    def claim_all(number: int) -> None:
        server = AutocommitRunner(engine) if number == 2 and engine.dialect.name == "postgresql" else None
        turn = 0
        while not stop.is_set():
            turn += 1
            if server is None:
                claimed.extend(each.job_id for each in gone.claim())
            else:
                claimed.extend(_claim_quickly(gone, task_queue_ids, turn, server))

    def kill(_: int) -> None:
        for job_id in doomed:
            with database.writing(engine) as conn:
                killed.update(control.kill_jobs(conn, [job_id], source="alice", now=gone.now))

    players = [come_back, claim_all, claim_all, kill]
    concurrency.at_once(len(players), lambda number: players[number](number))
    with database.reading(engine) as conn:
        held = select(attempts_table.c.job_id).where(attempts_table.c.closed_at.is_(None))
        open_jobs = conn.execute(held).scalars().all()
        left = set(conn.execute(select(waiting_jobs.c.job_id)).scalars())
    assert len(claimed) == len(set(claimed))
    assert back.isdisjoint(claimed), "one job, one holder"
    assert len(open_jobs) == len(set(open_jobs))
    assert left.isdisjoint(open_jobs)
    assert left <= set(gone.leases) - back - set(claimed) - killed
    assert back | set(claimed) | killed == set(gone.leases) - left
    for job_id in sorted(back):
        assert job(engine, job_id).epoch == 1


def test_optimizers_that_have_the_job_in_hand_do_not_keep_it(engine: Engine, now: datetime) -> None:
    gone = lose(engine, now, 60)

    def optimize(_: int) -> None:
        for minute in (0, 60, 120):
            batch.optimize(engine, grid(), list(gone.leases), now=gone.now + minute * MINUTE)

    def come_back(_: int) -> None:
        for lease in gone.leases.values():
            gone.report("heartbeat", lease)

    players = [optimize, come_back, optimize]
    concurrency.at_once(len(players), lambda number: players[number](number))
    assert waiting(engine) == []
    assert {job(engine, each).status for each in gone.leases} == {S.RUNNING}
    assert {job(engine, each).reschedules for each in gone.leases} == {0}
