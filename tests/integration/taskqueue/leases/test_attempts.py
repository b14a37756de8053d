"""The hand-over: what pilots report counts while their attempt is open, once, and never after."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select

from cs_config.options import bounds
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.errors import IllegalTransition, LeaseNotFound, StaleLease
from taskqueue.jobs import control, jobs, log
from taskqueue.jobs.jobs import Job
from taskqueue.leases import attempts, expiry, lifecycle
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.opening import ClaimedJob
from taskqueue.leases.reports import (
    FinishReport,
    GridJobPhase,
    HeartbeatReport,
    PayloadResult,
    Progress,
)
from taskqueue.schema.tables import jobs as jobs_table
from tests.support import concurrency
from tests.support.factories import pilot_reports, queued_jobs, stored_rows, submitted_jobs

S = JobStatus
LEASE = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
DONE = PayloadResult(status="Done", exit_code=0)
FAILED = PayloadResult(status="Failed", exit_code=2, minor_status="Application Finished With Errors")


@dataclass(frozen=True, kw_only=True)
class Hand:
    """One job, and the pilots that it is handed to."""

    engine: Engine
    now: datetime
    job_id: int

    def claim(self, now: datetime | None = None) -> str:
        with database.writing(self.engine) as conn:
            task_queue = queued_jobs.task_queue_of(conn, self.job_id)
            [claimed] = queued_jobs.claim(conn, [task_queue], now or self.now)
            return claimed.lease

    def start(self, lease: str, now: datetime | None = None) -> dict[str, Any]:
        return pilot_reports.start(self.engine, lease, lease_time=LEASE, now=now or self.now)

    def running(self) -> str:
        lease = self.claim()
        self.start(lease)
        return lease

    def heartbeat(self, lease: str, now: datetime | None = None, **said: Any) -> dict[str, Any]:
        told = Progress(**said)
        return pilot_reports.heartbeat(self.engine, lease, said=told, lease_time=LEASE, now=now or self.now)

    def finish(self, lease: str, report: PayloadResult = DONE) -> dict[str, Any]:
        return pilot_reports.finish(self.engine, lease, report, now=self.now)

    def release(
        self, lease: str, reason: str = "slot ends", most: int = 3, *, is_undelivered: bool = False
    ) -> dict[str, Any]:
        more = {"max_rescheduling": most, "is_undelivered": is_undelivered}
        return pilot_reports.release(self.engine, lease, reason=reason, now=self.now, **more)

    def kill(self) -> None:
        stored_rows.kill(self.engine, self.now, self.job_id)

    def reschedule(self) -> list[int]:
        with database.writing(self.engine) as conn:
            return control.reschedule_jobs(conn, [self.job_id], source="alice", now=self.now, maximum=3) == [
                self.job_id
            ]

    def expire(self, now: datetime) -> list[int]:
        with database.writing(self.engine) as conn:
            return expiry.expire_leases(conn, silent_since={"lhcb": now}, now=now)

    def stall(self, silent_since: datetime, now: datetime) -> list[int]:
        with database.writing(self.engine) as conn:
            return expiry.mark_stalled(conn, silent_since={"lhcb": silent_since}, now=now)

    def give_up(self, now: datetime, most: int = 3) -> tuple[list[int], list[int]]:
        return pilot_reports.give_up(self.engine, "lhcb", max_rescheduling=most, now=now)

    @property
    def job(self) -> Job:
        with database.reading(self.engine) as conn:
            return jobs.get_job(conn, self.job_id)

    @property
    def attempt(self) -> Attempt:
        with database.reading(self.engine) as conn:
            found = attempts.get_latest(conn, self.job_id)
        assert found is not None
        return found

    @property
    def waits(self) -> bool:
        with database.reading(self.engine) as conn:
            return queued_jobs.left(conn) == [self.job_id]

    @property
    def way(self) -> list[str]:
        with database.reading(self.engine) as conn:
            return [entry.to_status.value for entry in log.read_log(conn, self.job_id)]

    def everything(self) -> tuple[object, ...]:
        """All that a refused report must not change."""
        return self.job, self.attempt, self.waits, self.way


def _close_killed(conn: Connection, now: datetime) -> list[int]:
    return expiry.close_killed(conn, silent_since={"lhcb": now}, now=now)


@pytest.fixture
def hand(engine: Engine, now: datetime) -> Hand:
    [job_id] = queued_jobs.put(engine, now)
    return Hand(engine=engine, now=now, job_id=job_id)


# The way of a job that meets no trouble.


def test_start_makes_the_job_running(hand: Hand) -> None:
    lease = hand.claim()
    answer = hand.start(lease)
    assert (answer["job_id"], answer["epoch"], answer["commands"]) == (hand.job_id, 1, [])
    assert (hand.job.status, hand.job.started_at, hand.attempt.started_at) == (S.RUNNING, hand.now, hand.now)


def test_a_heartbeat_brings_progress_and_the_tail_and_prolongs_the_lease(hand: Hand) -> None:
    lease = hand.running()
    later = hand.now + MINUTE
    assert hand.heartbeat(lease, later, text="50 %", output_tail="event 7") == {"commands": []}
    attempt = hand.attempt
    assert (attempt.progress, attempt.output_tail, attempt.heartbeat_at) == ("50 %", "event 7", later)
    assert attempt.lease_expires_at == later + LEASE
    hand.heartbeat(lease, later + MINUTE)
    assert (hand.attempt.progress, hand.attempt.output_tail) == ("50 %", "event 7")


def test_phases_and_local_jobs_stay_until_others_are_told_and_when_it_is_over(hand: Hand) -> None:
    lease = hand.running()
    assert (hand.attempt.phases, hand.attempt.local_jobs) == (None, None)
    phase = GridJobPhase(name="generated", done=117, of=250, unit="events")
    hand.heartbeat(lease, phases=[phase], local_jobs={"running": 3})
    hand.heartbeat(lease, text="goes on")
    hand.finish(lease)
    told = json.loads(hand.attempt.phases or "")
    assert told == [{"name": "generated", "done": 117, "of": 250, "unit": "events"}]
    assert json.loads(hand.attempt.local_jobs or "") == {"running": 3}


@pytest.mark.parametrize(("report", "status"), [(DONE, S.DONE), (FAILED, S.FAILED)])
def test_finish_ends_job_and_attempt(hand: Hand, report: PayloadResult, status: JobStatus) -> None:
    lease = hand.running()
    assert hand.finish(lease, report)["status"] == status
    assert (hand.job.status, hand.job.ended_at) == (status, hand.now)
    attempt = hand.attempt
    assert (attempt.closed_as, attempt.closed_at, attempt.exit_code) == (
        "finished",
        hand.now,
        report.exit_code,
    )
    assert not hand.waits


def test_the_whole_way_stands_in_the_log(hand: Hand) -> None:
    hand.finish(hand.running())
    assert hand.way[-3:] == ["Matched", "Running", "Done"]


def test_a_payload_that_was_never_started_cannot_be_done(hand: Hand) -> None:
    with pytest.raises(IllegalTransition, match="Matched"):
        hand.finish(hand.claim())
    assert hand.job.status is S.MATCHED


def test_nobody_ever_had_this_lease(hand: Hand) -> None:
    for call in (hand.start, hand.heartbeat, hand.finish, hand.release):
        with pytest.raises(LeaseNotFound):
            call("guessed")


# Not started in time → back to Waiting, no penalty.


def test_a_job_that_is_not_started_in_time_waits_again_without_penalty(hand: Hand) -> None:
    hand.claim()
    assert hand.expire(hand.now + LEASE) == []
    assert hand.expire(hand.now + LEASE + MINUTE) == [hand.job_id]
    assert (hand.job.status, hand.job.reschedules) == (S.WAITING, 0)
    assert hand.waits
    assert hand.attempt.closed_as == "expired"
    assert hand.expire(hand.now + LEASE + MINUTE) == []


def test_heartbeats_do_not_keep_a_job_that_is_never_started(hand: Hand) -> None:
    lease = hand.claim()
    hand.heartbeat(lease, hand.now + 4 * MINUTE)
    assert hand.expire(hand.now + LEASE + MINUTE) == [hand.job_id]


def test_a_started_job_does_not_come_back_by_the_end_of_its_first_lease(hand: Hand) -> None:
    hand.running()
    assert hand.expire(hand.now + LEASE + MINUTE) == []
    assert hand.job.status is S.RUNNING


def test_the_next_pilot_gets_the_next_epoch(hand: Hand) -> None:
    first = hand.claim()
    hand.expire(hand.now + LEASE + MINUTE)
    second = hand.claim(hand.now + LEASE + MINUTE)
    assert first != second
    assert (hand.job.epoch, hand.attempt.epoch, hand.attempt.lease) == (2, 2, second)


def test_a_lease_that_ran_out_but_was_not_taken_away_yet_is_still_good(hand: Hand) -> None:
    lease = hand.claim()
    hand.start(lease, hand.now + 2 * LEASE)
    assert hand.expire(hand.now + 3 * LEASE) == []
    assert hand.job.status is S.RUNNING


# The fence: good only while the attempt is open; with a closed one nothing changes.

_CLOSED_BY: dict[str, Callable[[Hand], str]] = {}


def _closes(what: Callable[[Hand], str]) -> Callable[[Hand], str]:
    _CLOSED_BY[what.__name__.strip("_").replace("_", "-")] = what
    return what


@_closes
def _expiry(hand: Hand) -> str:
    lease = hand.claim()
    hand.expire(hand.now + LEASE + MINUTE)
    return lease


@_closes
def _release_of_a_matched_job(hand: Hand) -> str:
    lease = hand.claim()
    hand.release(lease)
    return lease


@_closes
def _release_of_a_running_job(hand: Hand) -> str:
    lease = hand.running()
    hand.release(lease)
    return lease


@_closes
def _reschedule(hand: Hand) -> str:
    lease = hand.running()
    hand.reschedule()
    return lease


@_closes
def _the_end_of_a_kill(hand: Hand) -> str:
    lease = hand.running()
    hand.kill()
    with database.writing(hand.engine) as conn:
        _close_killed(conn, hand.now + LEASE + MINUTE)
    return lease


@_closes
def _finish(hand: Hand) -> str:
    lease = hand.running()
    hand.finish(lease)
    return lease


_OTHER_REPORTS: dict[str, Callable[[Hand, str], object]] = {
    "start": lambda hand, lease: hand.start(lease),
    "heartbeat": lambda hand, lease: hand.heartbeat(lease, text="99 %", output_tail="zombie"),
    "finish": lambda hand, lease: hand.finish(lease, PayloadResult(status="Failed", exit_code=9)),
    "release": lambda hand, lease: hand.release(lease, reason="another one"),
}


@pytest.mark.parametrize("report", _OTHER_REPORTS)
@pytest.mark.parametrize("closed_by", _CLOSED_BY)
def test_a_report_on_a_closed_attempt_is_refused_and_changes_nothing(
    hand: Hand, closed_by: str, report: str
) -> None:
    lease = _CLOSED_BY[closed_by](hand)
    before = hand.everything()
    with pytest.raises(StaleLease, match=f"of job {hand.job_id}"):
        _OTHER_REPORTS[report](hand, lease)
    assert hand.everything() == before


@pytest.mark.parametrize("closed_by", _CLOSED_BY)
def test_no_output_is_stored_on_a_closed_attempt(hand: Hand, closed_by: str) -> None:
    lease = _CLOSED_BY[closed_by](hand)
    with pytest.raises(StaleLease), database.writing(hand.engine) as conn:
        pilot_reports.store_output(conn, lease, "d" * 64, now=hand.now)
    assert hand.attempt.output is None


def test_a_zombie_does_not_disturb_the_next_attempt(hand: Hand) -> None:
    zombie = hand.claim()
    hand.expire(hand.now + LEASE + MINUTE)
    lease = hand.running()
    for report in _OTHER_REPORTS.values():
        with pytest.raises(StaleLease):
            report(hand, zombie)
    assert (hand.job.status, hand.attempt.lease, hand.attempt.progress) == (S.RUNNING, lease, "")
    hand.finish(lease)
    assert hand.job.status is S.DONE


def test_what_was_refused_is_recorded(hand: Hand) -> None:
    lease = _expiry(hand)
    with database.writing(hand.engine) as conn:
        report = FinishReport(lease=lease, sender=pilot_reports.ANYBODY, result=DONE)
        [refusal] = lifecycle.record(conn, [report], rules=pilot_reports.rules(), now=hand.now)
        last = log.read_log(conn, hand.job_id)[-1]
    assert isinstance(refusal, StaleLease)
    assert (last.from_status, last.to_status, last.source) == (S.WAITING, S.WAITING, lifecycle.STALE)
    assert "finish" in last.minor_status
    assert hand.job.status is S.WAITING


def test_refused_reports_are_recorded_once_for_each_attempt_and_kind(hand: Hand) -> None:
    lease = _expiry(hand)
    finish = FinishReport(lease=lease, sender=pilot_reports.ANYBODY, result=DONE)
    heartbeat = HeartbeatReport(lease=lease, sender=pilot_reports.ANYBODY)
    for reports in ([finish, heartbeat], [heartbeat, heartbeat, finish], [heartbeat]):
        with database.writing(hand.engine) as conn:
            outcomes = lifecycle.record(conn, reports, rules=pilot_reports.rules(), now=hand.now)
        assert all(isinstance(each, StaleLease) for each in outcomes)
    stale = [
        each for each in submitted_jobs.log_of(hand.engine, hand.job_id) if each.source == lifecycle.STALE
    ]
    assert sorted(each.minor_status.split()[1] for each in stale) == ["finish", "heartbeat"]


def test_however_fence_and_report_meet_the_job_ends_once(hand: Hand, engine: Engine) -> None:
    lease = hand.running()

    def play(number: int) -> str:
        try:
            if number == 0:
                return "done" if hand.reschedule() else "refused"
            hand.finish(lease)
        except (StaleLease, IllegalTransition):
            return "refused"
        return "done"

    outcomes = concurrency.at_once(2, play)
    assert sorted(outcomes) == ["done", "refused"]
    assert hand.job.status is (S.RESCHEDULED if outcomes[0] == "done" else S.DONE)


# The same start, finish or release again gets the stored answer; a different one is refused.


def test_the_same_start_again_gets_the_same_answer(hand: Hand) -> None:
    lease = hand.claim()
    first = hand.start(lease)
    assert hand.start(lease, hand.now + MINUTE) == first
    assert hand.way.count("Running") == 1
    assert hand.attempt.started_at == hand.now


@pytest.mark.parametrize("report", [DONE, FAILED])
def test_the_same_finish_again_gets_the_same_answer(hand: Hand, report: PayloadResult) -> None:
    lease = hand.running()
    first = hand.finish(lease, report)
    before = hand.everything()
    assert hand.finish(lease, report) == first
    assert hand.everything() == before


def test_the_same_release_again_gets_the_same_answer_even_if_the_job_went_on(hand: Hand) -> None:
    lease = hand.claim()
    first = hand.release(lease)
    second = hand.claim()
    assert hand.release(lease) == first
    assert (hand.job.status, hand.attempt.lease) == (S.MATCHED, second)


# Released: a matched job waits again, a running one is rescheduled.


def test_a_released_matched_job_waits_again_at_its_place(hand: Hand) -> None:
    assert hand.release(hand.claim())["status"] == S.WAITING
    assert (hand.job.status, hand.job.reschedules, hand.waits) == (S.WAITING, 0, True)


def test_a_job_that_is_given_back_again_and_again_before_its_start_is_rescheduled_now_and_then(
    hand: Hand,
) -> None:
    statuses = [hand.release(hand.claim())["status"] for _ in range(bounds.RELEASES)]

    assert statuses == [S.WAITING] * (bounds.RELEASES - 1) + [S.RESCHEDULED]
    assert hand.job.reschedules == 1


def test_releases_of_jobs_that_were_never_delivered_do_not_count(hand: Hand) -> None:
    reason = '"undelivered": true}'
    for _ in range(bounds.RELEASES):
        assert hand.release(hand.claim(), is_undelivered=True)["status"] == S.WAITING
    assert hand.release(hand.claim(), reason)["status"] == S.WAITING
    for _ in range(bounds.RELEASES - 1):
        last = hand.release(hand.claim(), reason)["status"]
    assert (last, hand.job.reschedules) == (S.RESCHEDULED, 1)


def test_a_started_job_that_its_gateway_cannot_submit_is_rescheduled_without_counting(hand: Hand) -> None:
    assert hand.release(hand.running(), most=0, is_undelivered=True)["status"] == S.RESCHEDULED
    assert (hand.job.status, hand.job.reschedules) == (S.RESCHEDULED, 0)


def test_a_released_running_job_is_rescheduled_and_due_for_the_optimizers(hand: Hand) -> None:
    assert hand.release(hand.running())["status"] == S.RESCHEDULED
    assert (hand.job.status, hand.job.reschedules, hand.waits) == (S.RESCHEDULED, 1, False)
    assert hand.way[-1] == "Rescheduled"
    with database.reading(hand.engine) as conn:
        due = conn.execute(select(jobs_table.c.step, jobs_table.c.due_at)).one()
    assert tuple(due) == (None, hand.now)


def test_a_running_job_that_is_released_too_often_fails(hand: Hand) -> None:
    assert hand.release(hand.running(), most=0)["status"] == S.FAILED
    assert hand.job.minor_status == "Maximum of reschedulings reached"


def test_a_stalled_job_may_be_released(hand: Hand) -> None:
    lease = hand.running()
    hand.stall(hand.now + MINUTE, hand.now + MINUTE)
    assert hand.release(lease)["status"] == S.RESCHEDULED


# Lost: no heartbeat → Stalled → after the grace time Rescheduled, at most so often, then Failed.


def test_a_silent_job_is_stalled_and_not_given_away(hand: Hand) -> None:
    hand.running()
    assert hand.stall(hand.now, hand.now + MINUTE) == []
    assert hand.stall(hand.now + MINUTE, hand.now + MINUTE) == [hand.job_id]
    assert (hand.job.status, hand.attempt.closed_at, hand.waits) == (S.STALLED, None, False)


def test_jobs_of_other_vos_have_other_times(hand: Hand) -> None:
    hand.running()
    with database.writing(hand.engine) as conn:
        assert expiry.mark_stalled(conn, silent_since={"cms": hand.now + MINUTE}, now=hand.now + MINUTE) == []


def test_a_heartbeat_of_the_open_attempt_turns_stalled_back_to_running(hand: Hand) -> None:
    lease = hand.running()
    hand.stall(hand.now + MINUTE, hand.now + MINUTE)
    assert hand.heartbeat(lease, hand.now + 2 * MINUTE) == {"commands": []}
    assert hand.job.status is S.RUNNING
    assert hand.give_up(hand.now + 2 * MINUTE) == ([], [])


def test_a_stalled_job_may_finish(hand: Hand) -> None:
    lease = hand.running()
    hand.stall(hand.now + MINUTE, hand.now + MINUTE)
    assert hand.finish(lease)["status"] == S.DONE


def test_after_the_grace_time_it_is_rescheduled(hand: Hand) -> None:
    hand.running()
    hand.stall(hand.now + MINUTE, hand.now + MINUTE)
    assert hand.give_up(hand.now + MINUTE) == ([], []), "its grace time has only begun"
    assert hand.give_up(hand.now + 2 * MINUTE) == ([hand.job_id], [])
    assert (hand.job.status, hand.job.reschedules) == (S.RESCHEDULED, 1)
    assert hand.attempt.closed_as == attempts.LOST


def test_after_the_last_reschedule_it_fails_with_the_reason(hand: Hand) -> None:
    hand.running()
    hand.stall(hand.now + MINUTE, hand.now + MINUTE)
    assert hand.give_up(hand.now + 2 * MINUTE, most=0) == ([], [hand.job_id])
    assert (hand.job.status, hand.job.minor_status) == (S.FAILED, "Maximum of reschedulings reached")
    assert hand.attempt.closed_at is not None


# Kill: Killed at once, the attempt is ending; its output and finish are still stored.


@pytest.mark.parametrize("state", ["Matched", "Running", "Stalled"])
def test_a_kill_shows_at_once_and_reaches_the_pilot_with_its_next_heartbeat(hand: Hand, state: str) -> None:
    lease = hand.claim() if state == "Matched" else hand.running()
    if state == "Stalled":
        hand.stall(hand.now + MINUTE, hand.now + MINUTE)
    hand.kill()
    assert (hand.job.status, hand.attempt.ending, hand.attempt.closed_at) == (S.KILLED, True, None)
    assert hand.heartbeat(lease) == {"commands": ["kill"]}
    assert hand.heartbeat(lease) == {"commands": ["kill"]}, "until it is obeyed"
    assert hand.job.status is S.KILLED


def test_a_pilot_that_starts_a_killed_job_is_told(hand: Hand) -> None:
    lease = hand.claim()
    hand.kill()
    assert hand.start(lease)["commands"] == ["kill"]
    assert hand.job.status is S.KILLED


def test_output_and_finish_of_a_killed_job_are_stored_and_it_stays_killed(hand: Hand) -> None:
    lease = hand.running()
    hand.kill()
    pilot_reports.store_output(hand.engine, lease, "d" * 64, now=hand.now)
    first = hand.finish(lease, FAILED)
    assert first["status"] == S.KILLED
    assert hand.finish(lease, FAILED) == first
    attempt = hand.attempt
    assert (attempt.output, attempt.exit_code, attempt.closed_at) == ("d" * 64, 2, hand.now)
    assert (hand.job.status, hand.way[-1]) == (S.KILLED, "Killed")


def test_a_killed_job_that_is_released_stays_killed(hand: Hand) -> None:
    lease = hand.claim()
    hand.kill()
    assert hand.release(lease)["status"] == S.KILLED
    assert not hand.waits


def test_a_killed_attempt_counts_until_the_end_of_its_lease(hand: Hand) -> None:
    hand.running()
    hand.kill()
    with database.writing(hand.engine) as conn:
        assert _close_killed(conn, hand.now + MINUTE) == []
        assert _close_killed(conn, hand.now + LEASE + MINUTE) == [hand.job_id]
    assert (hand.attempt.closed_as, hand.job.status) == ("killed", S.KILLED)


def test_killed_jobs_are_neither_expired_nor_stalled(hand: Hand) -> None:
    hand.claim()
    hand.kill()
    later = hand.now + 2 * LEASE
    assert (hand.expire(later), hand.stall(later, later), hand.job.status) == ([], [], S.KILLED)


# What was claimed for nobody.


def test_a_job_whose_pilot_was_never_told_waits_again(hand: Hand) -> None:
    lease = hand.claim()
    with database.writing(hand.engine) as conn:
        assert lifecycle.recall(conn, lease, reason="not delivered", now=hand.now)
        assert not lifecycle.recall(conn, lease, reason="not delivered", now=hand.now)
    assert (hand.job.status, hand.waits) == (S.WAITING, True)


def test_a_job_that_was_begun_all_the_same_is_not_recalled(hand: Hand) -> None:
    lease = hand.running()
    with database.writing(hand.engine) as conn:
        assert not lifecycle.recall(conn, lease, reason="not delivered", now=hand.now)
    assert hand.job.status is S.RUNNING


def test_many_leases_expire_at_once(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, 1200)
        claimed: list[ClaimedJob] = queued_jobs.claim(
            conn, [queued_jobs.task_queue_of(conn, ids[0])], now, count=len(ids)
        )
        assert len(claimed) == len(ids)

    def expire(conn: Connection) -> int:
        later = now + 2 * LEASE
        return len(expiry.expire_leases(conn, silent_since={"lhcb": later}, now=later, most=1000))

    with database.writing(engine) as conn:
        assert [expire(conn), expire(conn), expire(conn)] == [1000, 200, 0]
        assert queued_jobs.left(conn) == ids
