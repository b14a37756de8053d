"""The states of a job as a line: in order, each to be seen, the length of the longest right."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.service.pages import job
from requirements.states import JobStatus
from taskqueue.jobs.log import LogEntry

START = datetime(2026, 3, 1, tzinfo=UTC)
S = JobStatus


def _entry(status: JobStatus, seconds: float, *, minor: str = "", epoch: int = 0) -> LogEntry:
    return LogEntry(
        job_id=1,
        at=START + timedelta(seconds=seconds),
        from_status=None,
        to_status=status,
        minor_status=minor,
        source="test",
        epoch=epoch,
    )


def test_changes_within_a_status_are_one_span_with_all_its_minor_statuses() -> None:
    log = [_entry(S.RECEIVED, 0), _entry(S.WAITING, 10, minor="a"), _entry(S.WAITING, 20, minor="b")]
    received, waiting = job.spans(log, now=START + timedelta(seconds=40))
    assert received.lasted == timedelta(seconds=10)
    assert (waiting.since, waiting.lasted) == (log[1].at, timedelta(seconds=30))
    assert waiting.minors == ["a", "b"]
    assert (received.width, waiting.width) == (25.0, 75.0)


def test_an_end_has_no_length_and_a_new_pilot_is_a_new_attempt() -> None:
    log = [
        _entry(S.WAITING, 0),
        _entry(S.MATCHED, 5, epoch=1),
        _entry(S.RUNNING, 6, epoch=1),
        _entry(S.RESCHEDULED, 20, epoch=1),
        _entry(S.WAITING, 21, epoch=1),
        _entry(S.MATCHED, 30, epoch=2),
        _entry(S.DONE, 50, epoch=2),
    ]
    found = job.spans(log, now=START + timedelta(days=1))
    assert [span.epoch for span in found if span.is_new_attempt] == [1, 2]
    assert found[-1].lasted is None
    assert found[-1].width > 0


def test_without_a_log_there_is_no_line() -> None:
    assert job.spans([], now=START) == []


@given(st.lists(st.tuples(st.sampled_from(list(S)), st.floats(0, 1e7)), min_size=1, max_size=20))
def test_spans_follow_each_other_and_fill_the_line(steps: list[tuple[JobStatus, float]]) -> None:
    seconds = 0.0
    log = []
    for status, length in steps:
        log.append(_entry(status, seconds))
        seconds += length
    found = job.spans(log, now=START + timedelta(seconds=seconds))
    assert sum(span.width for span in found) == pytest.approx(100, abs=0.1)
    assert all(span.width > 1 for span in found)
    ends = [span.x + span.width for span in found]
    assert [span.x for span in found[1:]] == pytest.approx(ends[:-1], abs=0.01)
