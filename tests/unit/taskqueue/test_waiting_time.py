from datetime import UTC, datetime, timedelta

from taskqueue.log import LogEntry
from taskqueue.states import JobStatus
from taskqueue.waiting_time import by_cause

START = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)


def entry(second: float, status: JobStatus, minor: str = "") -> LogEntry:
    at = START + timedelta(seconds=second)
    return LogEntry(job_id=1, at=at, from_status=None, to_status=status, minor_status=minor, source="test")


def test_time_is_split_by_what_the_job_waited_for():
    log = [
        entry(0, JobStatus.RECEIVED),
        entry(2, JobStatus.WAITING, "No eligible queue"),
        entry(62, JobStatus.WAITING, "Pilot Agent Submission"),
        entry(72, JobStatus.MATCHED),
        entry(73, JobStatus.RUNNING),
        entry(500, JobStatus.DONE),
    ]
    spent = by_cause(log, now=START + timedelta(days=1))
    assert spent == {
        "no eligible queue": 60,
        "a pilot": 10,
        "optimizers": 2,
        "start of the pilot's job": 1,
    }


def test_a_job_that_still_waits_has_waited_until_now():
    log = [entry(0, JobStatus.RECEIVED), entry(1, JobStatus.CHECKING, "InputData")]
    spent = by_cause(log, now=START + timedelta(seconds=31))
    assert spent == {"held by an optimizer": 30, "optimizers": 1}


def test_a_job_without_a_log_has_not_waited():
    assert by_cause([], now=START) == {}
