"""Heartbeats of many pilots in one transaction: the plain ones, and nobody else's."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine

from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.db.compiled_sql import AutocommitRunner
from taskqueue.errors import StaleLease
from taskqueue.jobs import control
from taskqueue.leases import attempts, expiry, lifecycle, plain_reports
from taskqueue.leases.attempts import Attempt
from taskqueue.leases.reports import (
    NO_PROGRESS,
    FinishReport,
    HeartbeatReport,
    LeaseReport,
    PayloadResult,
    PeakUse,
    Progress,
    ReportAnswer,
    Sender,
)
from tests.support import concurrency
from tests.support.factories import pilot_reports, queued_jobs, submitted_jobs
from tests.support.factories.queued_jobs import HOLDER

LEASE = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)


def _running(engine: Engine, now: datetime, count: int) -> list[Attempt]:
    """Attempts of jobs that run."""
    with database.writing(engine) as conn:
        ids = queued_jobs.put(conn, now, count)
        task_queue = queued_jobs.task_queue_of(conn, ids[0])
        for each in queued_jobs.claim(conn, [task_queue], now, count=count):
            pilot_reports.start(conn, each.lease, lease_time=LEASE, now=now)
    return _attempts(engine, ids)


def _attempts(engine: Engine, job_ids: list[int]) -> list[Attempt]:
    with database.reading(engine) as conn:
        found = [attempts.get_latest(conn, job_id) for job_id in job_ids]
    return [each for each in found if each is not None]


def _again(engine: Engine, before: list[Attempt]) -> list[Attempt]:
    return _attempts(engine, [each.job_id for each in before])


def _beat(engine: Engine, now: datetime, *beats: LeaseReport) -> set[str]:
    """Leases of the recorded ones: on PostgreSQL only plain ones, on SQLite all that are not refused."""
    rules = pilot_reports.rules(LEASE)
    outcomes: Sequence[object]
    if engine.dialect.name == "sqlite":
        with database.writing(engine) as conn:
            outcomes = lifecycle.record(conn, beats, rules=rules, now=now)
    else:
        with contextlib.closing(AutocommitRunner(engine)) as server:
            outcomes = plain_reports.record_plain(server, beats, rules=rules, now=now)
    recorded = zip(beats, outcomes, strict=True)
    return {each.lease for each, outcome in recorded if isinstance(outcome, ReportAnswer)}


def _of(
    attempt: Attempt, holder: str | None = HOLDER.subject, said: Progress = NO_PROGRESS
) -> HeartbeatReport:
    return HeartbeatReport(lease=attempt.lease, sender=Sender(subject=holder), progress=said)


def test_each_keeps_its_own_words_and_gets_its_own_time(engine: Engine, now: datetime) -> None:
    first, second, silent = running = _running(engine, now, 3)
    told = Progress(text="half", output_tail="…the end", local_jobs={"active": 2})
    noted = _beat(engine, now + MINUTE, _of(first, said=told), _of(second, holder=None))
    assert noted == {first.lease, second.lease}
    first, second, after = _again(engine, running)
    assert (first.progress, first.output_tail, first.local_jobs) == ("half", "…the end", '{"active": 2}')
    assert (second.progress, second.output_tail, second.local_jobs) == ("", "", None)
    for each in (first, second):
        assert (each.heartbeat_at, each.lease_expires_at) == (now + MINUTE, now + MINUTE + LEASE)
    assert after == silent


def test_what_was_said_before_stays_until_something_else_is_said(engine: Engine, now: datetime) -> None:
    [attempt] = running = _running(engine, now, 1)
    _beat(engine, now, _of(attempt, said=Progress(text="half", output_tail="so far")))
    _beat(engine, now, _of(attempt, said=Progress(text="more")))
    [attempt] = _again(engine, running)
    assert (attempt.progress, attempt.output_tail) == ("more", "so far")


def _used(attempt: Attempt) -> tuple[float | None, ...]:
    return tuple(getattr(attempt, name) for name in attempts.PEAKS)


def test_the_largest_use_of_all_reports_is_kept(engine: Engine, now: datetime) -> None:
    first, second, silent = running = _running(engine, now, 3)
    large = PeakUse(peak_ram_mb=1130, peak_scratch_mb=20, cpu_seconds=7.5)
    _beat(engine, now, replace(_of(first), used=large), replace(_of(second), used=PeakUse(cpu_seconds=1.5)))
    late = PeakUse(peak_ram_mb=900, peak_scratch_mb=21)
    _beat(engine, now, replace(_of(first), used=late), _of(second))
    assert [_used(each) for each in _again(engine, running)] == [
        (1130, 21, 7.5),
        (None, None, 1.5),
        (None, None, None),
    ]
    end = FinishReport(
        lease=first.lease,
        sender=pilot_reports.ANYBODY,
        result=PayloadResult(status="Failed"),
        used=PeakUse(peak_ram_mb=1200, peak_scratch_mb=3, cpu_seconds=9.0),
    )
    assert _beat(engine, now, end) == {first.lease}
    [first, *_] = _again(engine, running)
    assert (first.closed_as, *_used(first)) == ("finished", 1200, 21, 9.0)
    assert silent.peak_ram_mb is None


def test_whoever_is_not_plain_is_left_out_and_as_it_was(postgresql: Engine, now: datetime) -> None:
    plain, killed, stalled, ended, foreign = running = _running(postgresql, now, 5)
    with database.writing(postgresql) as conn:
        assert control.kill_jobs(conn, [killed.job_id], source="alice", now=now)
        pilot_reports.finish(conn, ended.lease, PayloadResult(status="Done"), now=now)
        [waiting_id] = queued_jobs.put(conn, now, owner="bob")
        [unbegun] = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, waiting_id)], now)
        for each in (plain, killed, foreign):
            pilot_reports.heartbeat(conn, each.lease, lease_time=LEASE, now=now + MINUTE)
        assert expiry.mark_stalled(conn, silent_since={"lhcb": now + MINUTE}, now=now) == [stalled.job_id]
    before = _again(postgresql, running)
    beats = [_of(each) for each in (plain, killed, stalled, ended)]
    others = [
        _of(foreign, "somebody else"),
        HeartbeatReport(lease=unbegun.lease, sender=pilot_reports.ANYBODY),
        HeartbeatReport(lease="none", sender=pilot_reports.ANYBODY),
    ]
    assert _beat(postgresql, now + 2 * MINUTE, *beats, *others) == {plain.lease}
    assert _again(postgresql, running)[1:] == before[1:]
    [left] = _attempts(postgresql, [waiting_id])
    assert left.heartbeat_at is None


@pytest.mark.parametrize("is_open", [True, False])
def test_several_of_one_lease_are_recorded_in_their_order(
    engine: Engine, now: datetime, is_open: bool
) -> None:
    [attempt] = running = _running(engine, now, 1)
    rules = pilot_reports.rules(LEASE)
    first, second = (_of(attempt, said=Progress(text=text)) for text in ("one", "two"))
    end = FinishReport(lease=attempt.lease, sender=pilot_reports.ANYBODY, result=PayloadResult(status="Done"))
    with database.writing(engine) as conn:
        sent = [first, second] if is_open else [end, first, second]
        outcomes = lifecycle.record(conn, sent, rules=rules, now=now)
    assert [isinstance(each, StaleLease) for each in outcomes] == [False, *[not is_open] * (len(sent) - 1)]
    assert _again(engine, running)[0].progress == ("two" if is_open else "")


def test_no_heartbeats_are_noted_all_the_same(engine: Engine, now: datetime) -> None:
    assert _beat(engine, now) == set()


@pytest.mark.parametrize("end", ["stall", "kill", "finish"])
def test_what_ends_a_job_at_the_same_moment_is_seen(postgresql: Engine, now: datetime, end: str) -> None:
    """Whose attempt is in other hands goes alone: it waits there for what becomes of it."""
    attempt, other = running = _running(postgresql, now, 2)

    def happens(conn: Connection) -> None:
        if end == "kill":
            assert control.kill_jobs(conn, [attempt.job_id], source="alice", now=now)
        elif end == "finish":
            pilot_reports.finish(conn, attempt.lease, PayloadResult(status="Done"), now=now)
        else:
            assert len(expiry.mark_stalled(conn, silent_since={"lhcb": now + MINUTE}, now=now, most=1)) == 1

    noted = concurrency.meanwhile(
        postgresql, happens, lambda: _beat(postgresql, now + MINUTE, _of(attempt), _of(other)), waits=False
    )
    assert noted == {other.lease}
    assert [each.heartbeat_at for each in _again(postgresql, running)] == [now, now + MINUTE]
    assert submitted_jobs.job(postgresql, attempt.job_id).status is not JobStatus.RUNNING
