"""Notes of pilots on their jobs, and attempts with times of their own."""

import contextlib
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from agents import lost_jobs
from agents.lost_jobs import LostResult
from cs_config.options import bounds
from requirements.errors import InvalidRequest
from requirements.states import JobStatus
from taskqueue import retention
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.errors import IllegalTransition, StaleLease
from taskqueue.jobs import control, descriptions, jobs, log
from taskqueue.leases import attempts, expiry, plain_reports
from taskqueue.leases.attempts import AttemptTimes
from taskqueue.leases.reports import HeartbeatReport, Note, NoteReport, PayloadResult, StartReport
from taskqueue.retention import OldJobs
from tests.support.factories import pilot_reports, queued_jobs, stored_rows

LEASE = timedelta(minutes=5)
HOUR = timedelta(hours=1)


def _matched(engine: Engine, now: datetime) -> tuple[int, str]:
    """A matched job and its lease."""
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        [claimed] = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, job_id)], now)
    return job_id, claimed.lease


def _running(engine: Engine, now: datetime) -> tuple[int, str]:
    job_id, lease = _matched(engine, now)
    pilot_reports.start(engine, lease, lease_time=LEASE, now=now)
    return job_id, lease


def test_a_note_before_the_start_prolongs_the_lease(engine: Engine, now: datetime) -> None:
    job_id, lease = _matched(engine, now)
    with database.writing(engine) as conn:
        pilot_reports.note(conn, lease, Note(minor_status="Fetching a proxy"), now=now + HOUR)
        late = now + HOUR + LEASE / 2
        assert expiry.expire_leases(conn, silent_since={"lhcb": late}, now=late) == []
        attempt = attempts.get_attempt(conn, lease)
        assert (attempt.started_at, attempt.lease_expires_at) == (None, now + HOUR + LEASE)
        assert jobs.get_job(conn, job_id).status is JobStatus.MATCHED
        later = now + HOUR + 2 * LEASE
        assert expiry.expire_leases(conn, silent_since={"lhcb": later}, now=later) == [job_id]


def test_a_note_changes_what_it_names_and_logs_changes_only(engine: Engine, now: datetime) -> None:
    job_id, lease = _running(engine, now)
    with database.writing(engine) as conn:
        before = jobs.get_job(conn, job_id)
        for minute in (1, 2):
            note = Note(application_status="Event 7")
            pilot_reports.note(conn, lease, note, now=now + minute * timedelta(minutes=1))
        pilot_reports.note(conn, lease, Note(minor_status="Uploading"), now=now + HOUR)
        job = jobs.get_job(conn, job_id)
        assert (job.status, job.minor_status, job.application_status) == ("Running", "Uploading", "Event 7")
        assert job.updated_at == before.updated_at
        words = [(each.minor_status, each.application_status) for each in log.read_log(conn, job_id)]
        assert words[-2:] == [("Job Initialization", "Event 7"), ("Uploading", "Event 7")]


def test_a_note_revives_a_stalled_job(engine: Engine, now: datetime) -> None:
    job_id, lease = _running(engine, now)
    with database.writing(engine) as conn:
        assert expiry.mark_stalled(conn, silent_since={"lhcb": now + HOUR}, now=now + HOUR) == [job_id]
        pilot_reports.note(conn, lease, Note(parameters={"Node": "n1"}), now=now + HOUR)
        assert jobs.get_job(conn, job_id).status is JobStatus.RUNNING


def test_a_killed_job_keeps_its_words_and_takes_parameters(engine: Engine, now: datetime) -> None:
    job_id, lease = _running(engine, now)
    note = Note(minor_status="Uploading", parameters={"Node": "n1"})
    with database.writing(engine) as conn:
        assert control.kill_jobs(conn, [job_id], source="alice", now=now)
        assert pilot_reports.note(conn, lease, note, now=now).ending
        job = jobs.get_job(conn, job_id)
        assert (job.status, job.minor_status) == ("Killed", control.KILL_REQUESTED)
        assert descriptions.read_parameters(conn, [job_id]) == {job_id: {"Node": "n1"}}


def test_an_attempt_that_others_took_over_stores_nothing(engine: Engine, now: datetime) -> None:
    job_id, lease = _running(engine, now)
    with database.writing(engine) as conn:
        assert control.reschedule_jobs(conn, [job_id], source="alice", now=now, maximum=3)
        with pytest.raises(StaleLease):
            pilot_reports.note(conn, lease, Note(parameters={"Node": "n1"}), now=now)
        assert descriptions.read_parameters(conn, [job_id]) == {}


def test_parameters_are_bounded_over_all_notes(engine: Engine, now: datetime) -> None:
    job_id, lease = _running(engine, now)
    most = "x" * bounds.PARAMETER_VALUE
    full = {str(each): most for each in range(bounds.ALL_PARAMETERS // bounds.PARAMETER_VALUE)}
    with database.writing(engine) as conn:
        pilot_reports.note(conn, lease, Note(parameters=full), now=now)
        with pytest.raises(InvalidRequest, match="131,073 characters of them, 131,072 are allowed"):
            pilot_reports.note(conn, lease, Note(parameters={"one more": "x"}), now=now)
        pilot_reports.note(conn, lease, Note(parameters={"0": ""}), now=now)
        pilot_reports.note(conn, lease, Note(parameters={"one more": "x"}), now=now)
        assert set(descriptions.read_parameters(conn, [job_id])[job_id]) == {*full, "one more"}


def test_a_pilot_cannot_fill_the_log(engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LOGGED_NOTES", 10)
    job_id, lease = _running(engine, now)
    with database.writing(engine) as conn:
        for event in range(20):
            pilot_reports.note(conn, lease, Note(application_status=f"Event {event}"), now=now)
        assert jobs.get_job(conn, job_id).application_status == "Event 19"
        assert len(log.read_log(conn, job_id)) == 10


def test_a_completed_job_becomes_done_or_failed_once(engine: Engine, now: datetime) -> None:
    job_id, lease = _running(engine, now)
    with database.writing(engine) as conn:
        with pytest.raises(IllegalTransition):
            control.complete_job(conn, job_id, JobStatus.DONE, source="RMS", now=now)
        assert (
            pilot_reports.finish(conn, lease, PayloadResult(status="Completed"), now=now)["status"]
            == "Completed"
        )
        for _ in range(2):
            control.complete_job(conn, job_id, JobStatus.DONE, source="RMS", now=now)
        job = jobs.get_job(conn, job_id)
        assert (job.status, job.minor_status) == ("Done", "Requests done")
        with pytest.raises(IllegalTransition):
            control.complete_job(conn, job_id, JobStatus.FAILED, source="RMS", now=now)


def test_parameters_go_with_the_log_of_the_job(engine: Engine, now: datetime) -> None:
    job_id, lease = _running(engine, now)
    with database.writing(engine) as conn:
        pilot_reports.note(conn, lease, Note(parameters={"Node": "n1"}), now=now)
        pilot_reports.finish(conn, lease, PayloadResult(status="Done"), now=now)
        old = OldJobs(job_ids=[job_id], before={"lhcb": now + HOUR}, readers=())
        assert retention.remove_logs(conn, old) == 1
        assert descriptions.read_parameters(conn, [job_id]) == {}


def test_an_attempt_with_times_of_its_own_is_judged_by_them(engine: Engine, now: datetime) -> None:
    """As those of DIRAC's JobWrappers, which report every half an hour."""
    times = AttemptTimes(lease=2 * 3600, stalled=3 * 3600, grace=4 * 3600)
    asked = queued_jobs.request(**queued_jobs.at(queued_jobs.LONG))
    ids = queued_jobs.put(engine, now, 2)
    matcher = queued_jobs.matcher(engine, now)
    leases: list[str] = []
    for own in (times, None):
        found = queued_jobs.serve(matcher, replace(asked, times=own))
        leases += [each.lease for each in found.claimed]
    stored_rows.service_up(engine, now - 24 * HOUR, now + 24 * HOUR)

    def see(hours: float) -> LostResult:
        result = lost_jobs.cycle(engine, queued_jobs.grid(), now=now + hours * HOUR, holder="me")
        assert result is not None
        return result

    def report(kind: type[StartReport | HeartbeatReport], hours: float) -> None:
        pilot_reports.record(engine, kind(lease=leases[0], sender=pilot_reports.ANYBODY), now + hours * HOUR)

    assert see(1.9) == LostResult(waiting=1), "the other one was not started in its VO's 300 s"
    report(HeartbeatReport, 1.9)
    assert not see(3.8)
    plain = StartReport(lease=leases[0], sender=pilot_reports.ANYBODY)
    if engine.dialect.name == "postgresql":
        with contextlib.closing(AutocommitRunner(engine)) as server:
            start = now + 3.8 * HOUR
            [answer] = plain_reports.record_plain(
                server, [plain], rules=pilot_reports.rules(LEASE), now=start
            )
            assert answer is not None
    else:
        report(StartReport, 3.8)
    with database.reading(engine) as conn:
        assert attempts.get_attempt(conn, leases[0]).lease_expires_at == now + 6.8 * HOUR
        assert jobs.get_job(conn, ids[0]).status is JobStatus.RUNNING
    assert not see(6.7)
    assert see(6.9) == LostResult(stalled=1)
    assert not see(10.8)
    assert see(11) == LostResult(rescheduled=1)


@pytest.mark.parametrize("seconds", [0, -1, bounds.SECONDS + 1])
def test_times_that_no_date_can_hold_are_refused(seconds: int) -> None:
    with pytest.raises(ValueError, match="grace of an attempt"):
        AttemptTimes(lease=1, stalled=1, grace=seconds)


def test_a_note_before_the_start_never_shortens_the_time_for_it(engine: Engine, now: datetime) -> None:
    """The pilot goes on until the end of the lease that it was told; the lease time of its VO was lowered."""
    _, lease = _matched(engine, now)
    with database.writing(engine) as conn:
        told = attempts.get_attempt(conn, lease).lease_expires_at
        report = NoteReport(lease=lease, sender=pilot_reports.ANYBODY, note=Note(minor_status="Preparing"))
        pilot_reports.record(conn, report, now, pilot_reports.rules(timedelta(seconds=1)))
        assert attempts.get_attempt(conn, lease).lease_expires_at == told
        assert expiry.expire_leases(conn, silent_since={"lhcb": told}, now=told) == []
