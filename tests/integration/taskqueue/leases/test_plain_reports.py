"""Starts and finishes of many pilots in one statement: the plain ones, and what they write."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest
from sqlalchemy import Connection, Engine, text

from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.jobs import control, jobs, log
from taskqueue.leases import attempts, plain_reports
from taskqueue.leases.opening import ClaimedJob
from taskqueue.leases.reports import (
    FinishReport,
    HeartbeatReport,
    LeaseReport,
    PayloadResult,
    Progress,
    ReleaseReport,
    ReportAnswer,
    Sender,
    StartReport,
)
from tests.support.factories import pilot_reports, queued_jobs, stored_rows, submitted_jobs
from tests.support.factories.queued_jobs import HOLDER

LEASE = timedelta(minutes=7)
MINUTE = timedelta(minutes=1)
DONE = PayloadResult(status="Done", exit_code=0, cpu_seconds=3.5)
FAILED = PayloadResult(
    status="Failed", exit_code=-9, minor_status="torn", application_status="half “done” \\ 'x'"
)


@pytest.fixture
def engine(postgresql: Engine) -> Engine:
    return postgresql


@pytest.fixture
def server(engine: Engine) -> Iterator[AutocommitRunner]:
    with contextlib.closing(AutocommitRunner(engine)) as server:
        yield server


def _given(engine: Engine, now: datetime, count: int) -> list[ClaimedJob]:
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, count)
        return queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, ids[0])], now, count=count)


def _running(engine: Engine, now: datetime, count: int) -> list[ClaimedJob]:
    given = _given(engine, now, count)
    with database.writing(engine) as conn:
        for each in given:
            pilot_reports.start(conn, each.lease, lease_time=LEASE, now=now)
    return given


def _start(
    server: AutocommitRunner, now: datetime, *given: ClaimedJob, holder: str | None = HOLDER.subject
) -> list[ReportAnswer | None]:
    reports = [StartReport(lease=each.lease, sender=Sender(subject=holder)) for each in given]
    return plain_reports.record_plain(server, reports, rules=pilot_reports.rules(LEASE), now=now)


def _finish(
    server: AutocommitRunner,
    now: datetime,
    *given: ClaimedJob,
    report: PayloadResult = DONE,
    holder: str | None = HOLDER.subject,
) -> list[ReportAnswer | None]:
    sender = Sender(subject=holder)
    reports = [FinishReport(lease=each.lease, sender=sender, result=report) for each in given]
    return plain_reports.record_plain(server, reports, rules=pilot_reports.rules(LEASE), now=now)


def _written(engine: Engine, job_id: int) -> list[dict[str, Any]]:
    """All that is kept of a job, but for what tells it from others."""
    with database.reading(engine) as conn:
        rows = [jobs.get_job(conn, job_id), *attempts.list_newest(conn, job_id), *log.read_log(conn, job_id)]
    own = {"job_id", "lease", "description_id", "answer"}
    return [{name: value for name, value in asdict(row).items() if name not in own} for row in rows]


def _answer(engine: Engine, each: ClaimedJob, report: PayloadResult) -> dict[str, Any]:
    """What the pilot gets that says the same once more."""
    return pilot_reports.finish(engine, each.lease, report, now=_LATER)


_LATER = datetime.fromisoformat("2031-01-01T00:00:00+00:00")


@pytest.mark.parametrize("report", [DONE, FAILED])
def test_what_is_written_is_what_each_alone_would_write(
    engine: Engine, server: AutocommitRunner, now: datetime, report: PayloadResult
) -> None:
    alone, *together = given = _given(engine, now, 4)
    later = now + MINUTE
    pilot_reports.start(engine, alone.lease, lease_time=LEASE, now=later)
    assert _start(server, later, *together) == [
        ReportAnswer(job_id=each.job_id, epoch=each.epoch, vo="lhcb") for each in together
    ]
    assert [_written(engine, each.job_id) for each in given] == [_written(engine, alone.job_id)] * 4

    later += MINUTE
    said = Progress(text="", output_tail="“half”", phases=[], local_jobs={"active": 2})
    pilot_reports.heartbeat(engine, alone.lease, said=said, lease_time=LEASE, now=later)
    beats = [
        HeartbeatReport(lease=each.lease, sender=pilot_reports.ANYBODY, progress=said) for each in together
    ]
    answers = plain_reports.record_plain(server, beats, rules=pilot_reports.rules(LEASE), now=later)
    assert None not in answers
    assert [_written(engine, each.job_id) for each in given] == [_written(engine, alone.job_id)] * 4

    later += MINUTE
    answer = pilot_reports.finish(engine, alone.lease, report, now=later)
    assert None not in _finish(server, later, *together, report=report)
    assert [_written(engine, each.job_id) for each in given] == [_written(engine, alone.job_id)] * 4
    for each in together:
        assert _answer(engine, each, report) == {**answer, "job_id": each.job_id}


def _killed(conn: Connection, each: ClaimedJob, now: datetime) -> None:
    assert control.kill_jobs(conn, [each.job_id], source="alice", now=now)


def _stalled(conn: Connection, each: ClaimedJob, now: datetime) -> None:
    stored_rows.force(conn, each.job_id, status=JobStatus.STALLED.value)


def _closed(conn: Connection, each: ClaimedJob, now: datetime) -> None:
    pilot_reports.release(conn, each.lease, reason="", max_rescheduling=3, now=now)


def _given_up(conn: Connection, each: ClaimedJob, now: datetime) -> None:
    stored_rows.force(conn, each.job_id, status=JobStatus.FAILED.value)


_Spoil = Callable[[Connection, ClaimedJob, datetime], None]


@pytest.mark.parametrize("what", ["start", "finish"])
@pytest.mark.parametrize("spoil", [_killed, _stalled, _closed, _given_up])
def test_what_is_not_plain_is_left_as_it_is(
    engine: Engine, server: AutocommitRunner, now: datetime, what: str, spoil: _Spoil
) -> None:
    prepare, report = (_given, _start) if what == "start" else (_running, _finish)
    first, other, last = prepare(engine, now, 3)
    with database.writing(engine) as conn:
        spoil(conn, other, now)
    before = _written(engine, other.job_id)
    assert [each is None for each in report(server, now + MINUTE, first, other, last)] == [False, True, False]
    assert _written(engine, other.job_id) == before


def test_nobody_speaks_for_another_but_who_may(
    engine: Engine, server: AutocommitRunner, now: datetime
) -> None:
    [each] = _given(engine, now, 1)
    before = _written(engine, each.job_id)
    assert _start(server, now, each, holder="somebody") == [None]
    assert _written(engine, each.job_id) == before
    assert _start(server, now, each, holder=None) != [None]
    assert _finish(server, now, each, holder="somebody") == [None]
    assert _finish(server, now, each, holder=None) != [None]


def test_the_same_said_twice_counts_once(engine: Engine, server: AutocommitRunner, now: datetime) -> None:
    [each] = _given(engine, now, 1)
    assert sorted(moved is None for moved in _start(server, now, each, each)) == [False, True]
    assert _start(server, now, each) == [None]
    assert sorted(moved is None for moved in _finish(server, now, each, each)) == [False, True]
    assert _finish(server, now, each) == [None]
    steps = [entry.to_status for entry in submitted_jobs.log_of(engine, each.job_id)]
    assert steps[-3:] == [JobStatus.MATCHED, JobStatus.RUNNING, JobStatus.DONE]


def test_a_start_after_the_finish_changes_nothing(
    engine: Engine, server: AutocommitRunner, now: datetime
) -> None:
    [each] = _running(engine, now, 1)
    _finish(server, now, each)
    before = _written(engine, each.job_id)
    assert _start(server, now + MINUTE, each) == [None]
    assert _written(engine, each.job_id) == before


@pytest.mark.parametrize("table", ["attempts", "jobs"])
@pytest.mark.parametrize("what", ["start", "finish"])
def test_one_in_other_hands_holds_up_nobody(
    engine: Engine, server: AutocommitRunner, now: datetime, what: str, table: Literal["attempts", "jobs"]
) -> None:
    prepare, report = (_given, _start) if what == "start" else (_running, _finish)
    held, free = prepare(engine, now, 2)
    with engine.connect() as rival, rival.begin():
        rival.execute(
            text(f"SELECT 1 FROM {table} WHERE job_id = :job_id FOR UPDATE"), {"job_id": held.job_id}
        )
        assert [each is None for each in report(server, now + MINUTE, held, free)] == [True, False]
    assert report(server, now + MINUTE, held) != [None]


def test_a_lease_of_a_vo_that_is_gone_is_good_for_the_common_time(
    engine: Engine, server: AutocommitRunner, now: datetime
) -> None:
    [each] = _given(engine, now, 1)
    start = StartReport(lease=each.lease, sender=pilot_reports.ANYBODY)
    plain_reports.record_plain(server, [start], rules=pilot_reports.rules(LEASE, cms=MINUTE), now=now)
    with database.reading(engine) as conn:
        assert attempts.get_attempt(conn, each.lease).lease_expires_at == now + LEASE


def test_an_end_is_plain_if_the_output_that_it_names_is_stored(
    engine: Engine, server: AutocommitRunner, now: datetime
) -> None:
    running = _running(engine, now, 4)
    stored_one, missing, other, unnamed = [each.lease for each in running]
    pilot_reports.store_output(engine, stored_one, "a" * 64, now=now)
    pilot_reports.store_output(engine, other, "b" * 64, now=now)
    before = [_written(engine, each.job_id) for each in running[1:3]]
    names = {stored_one: "a" * 64, missing: "a" * 64, other: "a" * 64, unnamed: None}
    sent = [
        FinishReport(lease=lease, sender=pilot_reports.ANYBODY, result=DONE, output=name)
        for lease, name in names.items()
    ]
    answers = plain_reports.record_plain(server, sent, rules=pilot_reports.rules(LEASE), now=now + MINUTE)
    assert [each and each.status for each in answers] == ["Done", None, None, "Done"]
    assert [_written(engine, each.job_id) for each in running[1:3]] == before


def test_reports_of_all_kinds_share_a_statement(
    engine: Engine, server: AutocommitRunner, now: datetime
) -> None:
    ending, beating, unchanged = _running(engine, now, 3)
    [starting] = _given(engine, now, 1)
    later = now + MINUTE
    anybody = pilot_reports.ANYBODY
    sent: list[LeaseReport] = [
        FinishReport(lease=ending.lease, sender=anybody, result=DONE),
        HeartbeatReport(lease=beating.lease, sender=anybody, progress=Progress(text="", output_tail="x")),
        ReleaseReport(lease=unchanged.lease, sender=anybody),
        StartReport(lease=starting.lease, sender=anybody),
        HeartbeatReport(lease=ending.lease, sender=anybody),
    ]
    answers = plain_reports.record_plain(server, sent, rules=pilot_reports.rules(LEASE), now=later)
    assert [each and each.status for each in answers] == ["Done", None, None, None, None]
    assert [each and each.job_id for each in answers] == [
        *(ending.job_id, beating.job_id, None, starting.job_id, None)
    ]
    with database.reading(engine) as conn:
        found = [attempts.get_attempt(conn, each.lease) for each in (ending, beating, unchanged, starting)]
        statuses = [jobs.get_job(conn, each.job_id).status for each in found]
    assert [each.closed_at for each in found] == [later, None, None, None]
    assert [each.heartbeat_at for each in found] == [now, later, now, later]
    assert [each.started_at for each in found] == [now, now, now, later]
    assert found[1].output_tail == "x"
    assert statuses == [JobStatus.DONE, *[JobStatus.RUNNING] * 3]
