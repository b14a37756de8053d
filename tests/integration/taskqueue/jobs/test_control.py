"""What may happen to a job's status, and what belongs to it: the log, the waiting row, the attempt."""

import itertools
import random
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, delete, select, update

from agents.retention import retention
from requirements.requirement_class import RequirementClass
from requirements.states import FINAL, JobStatus, may_become
from taskqueue.db import database
from taskqueue.errors import IllegalTransition, JobNotFound
from taskqueue.jobs import control, jobs, log, transitions
from taskqueue.leases import attempts
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.schema.tables import waiting_jobs
from tests.support import concurrency
from tests.support.factories import pilot_reports, stored_rows, submitted_jobs
from tests.support.factories.queued_jobs import grid
from tests.support.factories.stored_rows import WaitingEntry

S = JobStatus
HELD = [S.MATCHED, S.RUNNING, S.STALLED, S.COMPLETING]


def _waiting(conn: Connection, now: datetime) -> int:
    job_id = stored_rows.job_in(conn, now, S.WAITING)
    entry = WaitingEntry(
        job_id=job_id,
        requirement_class=RequirementClass(vo="lhcb", cpu_time=3600),
        owner="alice",
        owner_group="lhcb_user",
        priority=1.0,
    )
    stored_rows.enqueue(conn, [entry], now=now)
    return job_id


def _claim(conn: Connection, job_id: int, now: datetime) -> bool:
    """What a claim does, in its order: the waiting row, the job, the attempt."""
    if not conn.execute(delete(waiting_jobs).where(waiting_jobs.c.job_id == job_id)).rowcount:
        return False
    is_waiting = (jobs_table.c.job_id == job_id, jobs_table.c.status == S.WAITING.value)
    if not conn.execute(update(jobs_table).where(*is_waiting).values(status=S.MATCHED.value)).rowcount:
        return False
    stored_rows.open_attempt(conn, job_id, now)
    return True


def _is_in_a_task_queue(conn: Connection, job_id: int) -> bool:
    return conn.execute(select(waiting_jobs).where(waiting_jobs.c.job_id == job_id)).first() is not None


def _kill(conn: Connection, job_id: int, now: datetime) -> None:
    assert control.kill_jobs(conn, [job_id], source="alice", now=now) == [job_id]


def test_a_step_is_taken_if_and_only_if_the_table_has_it(engine: Engine, now: datetime) -> None:
    wanted_by_hand = [status for status in S if status not in {S.WAITING, S.MATCHED}]
    with database.writing(engine) as conn:
        for current in S:
            for wanted in wanted_by_hand:
                job_id = stored_rows.job_in(conn, now, current)
                if not may_become(current, wanted):
                    with pytest.raises(IllegalTransition, match=f"is {current}; it cannot become {wanted}"):
                        stored_rows.set_status(conn, job_id, wanted, minor="m", source="test", now=now)
                    assert (jobs.get_job(conn, job_id).status, len(log.read_log(conn, job_id))) == (
                        current,
                        1,
                    )
                    continue
                stored_rows.set_status(conn, job_id, wanted, minor="m", source="test", now=now)
                entry = log.read_log(conn, job_id)[-1]
                assert (entry.from_status, entry.to_status, entry.source) == (current, wanted, "test")
                assert jobs.get_job(conn, job_id).status is wanted


def test_a_job_that_does_not_exist_is_named_or_left(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        assert control.kill_jobs(conn, [4711], source="test", now=now) == []
        assert control.reschedule_jobs(conn, [4711], source="test", now=now, maximum=3) == []
        with pytest.raises(JobNotFound, match="4711"):
            stored_rows.set_status(conn, 4711, S.DONE, minor="", source="test", now=now)


def test_times_follow_the_status(engine: Engine, now: datetime) -> None:
    def set_status(conn: Connection, wanted: JobStatus, minutes: int) -> jobs.Job:
        at = now + timedelta(minutes=minutes)
        stored_rows.set_status(conn, job_id, wanted, minor="", source="test", now=at)
        return jobs.get_job(conn, job_id)

    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.MATCHED)
        assert set_status(conn, S.RUNNING, 1).started_at == now + timedelta(minutes=1)
        failed = set_status(conn, S.FAILED, 2)
        assert (failed.ended_at, failed.updated_at) == (now + timedelta(minutes=2),) * 2
        assert failed.started_at == now + timedelta(minutes=1)
        again = set_status(conn, S.RESCHEDULED, 3)
        assert (again.ended_at, again.due_at, again.reschedules) == (None, now + timedelta(minutes=3), 1)


def test_the_application_status_stays_unless_it_is_given(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.RUNNING, application_status="117 of 250 events")
        stored_rows.set_status(conn, job_id, S.COMPLETING, minor="", source="test", now=now)
        assert jobs.get_job(conn, job_id).application_status == "117 of 250 events"
        assert log.read_log(conn, job_id)[-1].application_status == "117 of 250 events"
        stored_rows.set_status(conn, job_id, S.DONE, minor="", application="ok", source="test", now=now)
        assert jobs.get_job(conn, job_id).application_status == "ok"


def test_a_killed_job_that_waited_is_in_no_task_queue(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = _waiting(conn, now)
        _kill(conn, job_id, now)
        assert jobs.get_job(conn, job_id).status is S.KILLED
        assert not _is_in_a_task_queue(conn, job_id)


def test_a_killed_job_that_was_prepared_is_no_work_for_the_optimizers(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = stored_rows.job_ids(conn, now)
        _kill(conn, job_id, now)
        assert jobs.get_job(conn, job_id).due_at is None


@pytest.mark.parametrize("status", HELD)
def test_the_attempt_of_a_killed_job_is_ending_and_stays_open(
    engine: Engine, now: datetime, status: JobStatus
) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, status)
        lease = stored_rows.open_attempt(conn, job_id, now)
        _kill(conn, job_id, now)
        attempt = attempts.get_attempt(conn, lease)
        assert jobs.get_job(conn, job_id).status is S.KILLED
        assert (attempt.ending, attempt.closed_at) == (True, None)


def test_a_kill_reaches_only_the_attempt_that_is_open(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.RUNNING)
        first = stored_rows.open_attempt(conn, job_id, now, epoch=1)
        attempts.close_attempts(conn, [job_id], closed_as="expired", now=now)
        second = stored_rows.open_attempt(conn, job_id, now, epoch=2)
        _kill(conn, job_id, now)
        assert not attempts.get_attempt(conn, first).ending
        assert attempts.get_attempt(conn, second).ending


@pytest.mark.parametrize("status", sorted(FINAL - {S.KILLED}))
def test_what_has_ended_cannot_be_killed(engine: Engine, now: datetime, status: JobStatus) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, status)
        assert control.kill_jobs(conn, [job_id], source="alice", now=now) == []
        assert jobs.get_job(conn, job_id).status is status


def test_many_are_killed_at_once_and_those_that_have_ended_are_left(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = stored_rows.job_ids(conn, now, 2500)
        stored_rows.force(conn, ids[7], status="Done")
        killed = control.kill_jobs(conn, [*ids, 10**9], source="alice", now=now)
        assert killed == [job_id for job_id in ids if job_id != ids[7]]
        assert control.kill_jobs(conn, ids, source="alice", now=now) == []
        assert control.kill_jobs(conn, [], source="alice", now=now) == []
        assert len(log.read_log(conn, ids[0])) == 2


def test_a_rescheduled_job_is_due_again_and_its_attempt_closed(engine: Engine, now: datetime) -> None:
    later = now + timedelta(hours=1)
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.RUNNING, step="JobScheduling")
        lease = stored_rows.open_attempt(conn, job_id, now)
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=later, maximum=3) == [job_id]
        job = jobs.get_job(conn, job_id)
        attempt = attempts.get_attempt(conn, lease)
        step = conn.execute(select(jobs_table.c.step)).scalar_one()
    assert (job.status, job.due_at, job.reschedules, step) == (S.RESCHEDULED, later, 1, None)
    assert (attempt.closed_at, attempt.closed_as, attempt.ending) == (later, "rescheduled", False)


def test_a_job_that_waits_leaves_its_task_queue_when_it_is_rescheduled(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = _waiting(conn, now)
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=3) == [job_id]
        assert not _is_in_a_task_queue(conn, job_id)


def test_a_job_is_rescheduled_only_so_often(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.FAILED)
        for _ in range(3):
            assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=3) == [job_id]
            stored_rows.set_status(conn, job_id, S.FAILED, minor="", source="test", now=now)
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=3) == []
        assert jobs.get_job(conn, job_id).reschedules == 3


def test_a_reschedule_that_is_repeated_after_a_lost_answer_counts_once(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.RUNNING)
        stored_rows.open_attempt(conn, job_id, now)
        for status in (S.RESCHEDULED, S.CHECKING, S.WAITING):
            assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=1) == [job_id]
            assert jobs.get_job(conn, job_id).reschedules == 1
            stored_rows.force(conn, job_id, status=status.value)
        before = log.read_log(conn, job_id)
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=3) == [job_id]
        assert (log.read_log(conn, job_id), jobs.get_job(conn, job_id).reschedules) == (before, 1)


def test_repeated_reschedules_of_many_jobs_count_once(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        done, other = (stored_rows.job_in(conn, now, S.RUNNING) for _ in range(2))
        for job_id in (done, other):
            stored_rows.open_attempt(conn, job_id, now)
        assert control.reschedule_jobs(conn, [done], source="alice", now=now, maximum=3) == [done]
        stored_rows.force(conn, done, status=S.WAITING.value)
        changed = control.reschedule_jobs(conn, [done, other], source="alice", now=now, maximum=3)
        assert sorted(changed) == [done, other]
        assert [jobs.get_job(conn, each).reschedules for each in (done, other)] == [1, 1]


def test_a_reschedule_counts_again_after_another_attempt_or_by_somebody_else(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.RUNNING)
        stored_rows.open_attempt(conn, job_id, now)
        assert control.reschedule_jobs(conn, [job_id], source="LostJobAgent", now=now, maximum=9) == [job_id]
        stored_rows.force(conn, job_id, status=S.CHECKING.value)
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=9) == [job_id]
        assert jobs.get_job(conn, job_id).reschedules == 2
        stored_rows.force(conn, job_id, status=S.RUNNING.value)
        stored_rows.open_attempt(conn, job_id, now, epoch=2)
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=9) == [job_id]
        assert jobs.get_job(conn, job_id).reschedules == 3


def test_a_killed_job_is_not_rescheduled_and_its_attempt_stays(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.RUNNING)
        lease = stored_rows.open_attempt(conn, job_id, now)
        _kill(conn, job_id, now)
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=3) == []
        assert attempts.get_attempt(conn, lease).closed_at is None


def test_jobs_of_any_status_but_completed_are_deleted_and_removed_a_day_later(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        waiting, running = _waiting(conn, now), stored_rows.job_in(conn, now, S.RUNNING)
        done, completed = (stored_rows.job_in(conn, now, status) for status in (S.DONE, S.COMPLETED))
        lease = stored_rows.open_attempt(conn, running, now)
        ids = [waiting, running, done, completed]
        assert control.delete_jobs(conn, ids, source="alice", now=now) == [waiting, running, done]
        assert control.delete_jobs(conn, ids, source="alice", now=now) == []
        assert not _is_in_a_task_queue(conn, waiting)
        assert pilot_reports.finish(conn, lease, PayloadResult(status="Done"), now=now)["status"] == "Killed"
        assert jobs.get_job(conn, running).status is S.DELETED
    later = now + timedelta(hours=25)
    result = retention.cycle(engine, grid(), now=later, holder="me")
    assert result is not None
    assert result.removed["jobs"] == 3
    with database.reading(engine) as conn:
        assert jobs.get_job(conn, completed).status is S.COMPLETED
        with pytest.raises(JobNotFound):
            jobs.get_job(conn, done)


def test_a_reset_job_may_be_rescheduled_as_often_as_a_new_one(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now, S.FAILED)
        stored_rows.force(conn, job_id, reschedules=3)
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=3) == []
        assert control.reset_jobs(conn, [job_id], source="alice", now=now) == [job_id]
        job = jobs.get_job(conn, job_id)
        assert (job.status, job.reschedules) == (S.RESCHEDULED, 0)
        done = stored_rows.job_in(conn, now, S.DONE)
        assert control.reset_jobs(conn, [done], source="alice", now=now) == []


def test_of_two_steps_at_once_only_those_that_the_table_allows_in_a_row_are_taken(
    engine: Engine, now: datetime
) -> None:
    """Done, Failed and Killed exclude each other: one of them comes first, and that is it."""
    ends = [S.DONE, S.FAILED, S.KILLED, S.DONE, S.FAILED, S.KILLED]
    with database.writing(engine) as conn:
        ids = [stored_rows.job_in(conn, now, S.RUNNING) for _ in range(10)]

    def end(number: int) -> int:
        won = 0
        for job_id in ids:
            with database.writing(engine) as conn:
                # Said without locking or looking first: the statement itself has to refuse.
                won += len(transitions.move_jobs(conn, [job_id], ends[number], minor="", source="t", now=now))
        return won

    assert sum(concurrency.at_once(6, end)) == len(ids)
    assert [len(submitted_jobs.log_of(engine, job_id)) for job_id in ids] == [2] * len(ids)


def test_whatever_happens_at_once_the_log_tells_a_legal_story(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = [stored_rows.job_in(conn, now, S.RUNNING) for _ in range(4)]

    def act(number: int) -> None:
        dice = random.Random(number)
        for _ in range(25):
            wanted = dice.choice([S.RUNNING, S.STALLED, S.RESCHEDULED, S.RECEIVED, S.CHECKING, S.FAILED])
            with database.writing(engine) as conn:
                transitions.lock_jobs(conn, ids)
                transitions.move_jobs(conn, dice.sample(ids, 2), wanted, minor="", source="test", now=now)

    concurrency.at_once(4, act)
    with database.reading(engine) as conn:
        for job_id in ids:
            story = log.read_log(conn, job_id)[1:]
            assert all(may_become(S(str(entry.from_status)), entry.to_status) for entry in story)
            assert all(before.to_status == after.from_status for before, after in itertools.pairwise(story))
            assert jobs.get_job(conn, job_id).status is story[-1].to_status


def test_a_kill_that_comes_during_a_claim_reaches_the_attempt(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = _waiting(conn, now)

    def kill() -> None:
        with database.writing(engine) as conn:
            _kill(conn, job_id, now)

    concurrency.meanwhile(engine, lambda conn: _claim(conn, job_id, now), kill)
    with database.reading(engine) as conn:
        attempt = attempts.get_latest(conn, job_id)
        assert attempt is not None
        assert (jobs.get_job(conn, job_id).status, attempt.ending) == (S.KILLED, True)


def test_a_claim_that_comes_during_a_kill_finds_nothing(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = _waiting(conn, now)

    def claim() -> bool:
        with database.writing(engine) as conn:
            return _claim(conn, job_id, now)

    assert not concurrency.meanwhile(engine, lambda conn: _kill(conn, job_id, now), claim)
    with database.reading(engine) as conn:
        assert jobs.get_job(conn, job_id).status is S.KILLED
        assert attempts.get_latest(conn, job_id) is None


def test_a_kill_that_comes_while_the_job_is_put_into_its_task_queue_takes_it_out(
    engine: Engine, now: datetime
) -> None:
    [job_id] = stored_rows.job_ids(engine, now)

    def arrive(conn: Connection) -> None:
        stored_rows.force(conn, job_id, status=S.WAITING.value)
        entry = WaitingEntry(
            job_id=job_id,
            requirement_class=RequirementClass(vo="lhcb", cpu_time=1),
            owner="alice",
            owner_group="lhcb_user",
            priority=1.0,
        )
        stored_rows.enqueue(conn, [entry], now=now)

    def kill() -> None:
        with database.writing(engine) as conn:
            _kill(conn, job_id, now)

    concurrency.meanwhile(engine, arrive, kill)
    with database.reading(engine) as conn:
        assert jobs.get_job(conn, job_id).status is S.KILLED
        assert not _is_in_a_task_queue(conn, job_id)


def test_kills_claims_and_reschedules_at_once_neither_deadlock_nor_lose_a_job(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        ids = [_waiting(conn, now) for _ in range(40)]

    def act(number: int) -> None:
        dice = random.Random(number)
        for _ in range(25):
            some = dice.sample(ids, 6)
            with database.writing(engine) as conn:
                match number % 3:
                    case 0:
                        _claim(conn, some[0], now)
                    case 1:
                        control.kill_jobs(conn, some[:1], source="alice", now=now)
                    case 2:
                        control.reschedule_jobs(conn, some, source="alice", now=now, maximum=9)

    concurrency.at_once(6, act)
    with database.reading(engine) as conn:
        for job_id in ids:
            status, attempt = jobs.get_job(conn, job_id).status, attempts.get_latest(conn, job_id)
            is_open = attempt is not None and attempt.closed_at is None
            assert _is_in_a_task_queue(conn, job_id) == (status is S.WAITING)
            assert is_open == (
                status is S.MATCHED or (status is S.KILLED and attempt is not None and attempt.ending)
            )
