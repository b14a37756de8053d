from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from requirements.states import JobStatus
from taskqueue.accounting.wait_times import sum_by_cause
from taskqueue.jobs.log import LogEntry
from taskqueue.task_queues.wait_causes import CAUSE_ORDER, WaitCause, split_wait

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
    spent = sum_by_cause(log, now=START + timedelta(days=1))
    assert spent == {
        "no eligible queue": 60,
        "a pilot": 10,
        "optimizers": 2,
        "start of the pilot's job": 1,
    }


def test_a_job_that_still_waits_has_waited_until_now():
    log = [entry(0, JobStatus.RECEIVED), entry(1, JobStatus.CHECKING, "InputData")]
    spent = sum_by_cause(log, now=START + timedelta(seconds=31))
    assert spent == {"held by an optimizer": 30, "optimizers": 1}


def test_a_held_job_that_is_edited_goes_on_waiting_for_its_release():
    edited = replace(entry(20, JobStatus.CHECKING, "Edited"), from_status=JobStatus.CHECKING)
    log = [
        entry(0, JobStatus.RECEIVED),
        entry(1, JobStatus.CHECKING, "Held"),
        edited,
        replace(edited, at=START + timedelta(seconds=30)),
    ]
    spent = sum_by_cause(log, now=START + timedelta(seconds=101))
    assert spent == {"hold by its user": 100, "optimizers": 1}
    assert sum_by_cause([log[0], entry(1, JobStatus.CHECKING, "InputData"), edited], now=edited.at) == {
        "held by an optimizer": 19,
        "optimizers": 1,
    }


def test_a_job_without_a_log_has_not_waited():
    assert sum_by_cause([], now=START) == {}


CAUSES = st.sampled_from(CAUSE_ORDER)
SECONDS = st.integers(min_value=0, max_value=100)


def wait_cause(cause: str, since: float, until: float) -> WaitCause:
    return WaitCause(
        task_queue_id=1,
        cause=cause,
        since=START + timedelta(seconds=since),
        until=START + timedelta(seconds=until),
    )


def seconds_by(since: float, until: float, *wait_causes: WaitCause) -> dict[str, float]:
    return split_wait(START + timedelta(seconds=since), START + timedelta(seconds=until), wait_causes)


WAIT_CAUSES = st.lists(st.builds(wait_cause, CAUSES, SECONDS, SECONDS), max_size=12)


@given(since=SECONDS, length=SECONDS, wait_causes=WAIT_CAUSES)
def test_the_parts_of_a_wait_are_each_second_by_the_first_cause_that_held(
    since: int, length: int, wait_causes: list[WaitCause]
):
    expected: Counter[str] = Counter()
    for second in range(since, since + length):
        at = START + timedelta(seconds=second)
        holding = {each.cause for each in wait_causes if each.since <= at < each.until}
        expected[next((cause for cause in CAUSE_ORDER if cause in holding), "a pilot")] += 1
    spent = seconds_by(since, since + length, *wait_causes)
    assert +Counter(spent) == expected
    assert sum(spent.values()) == length
    assert min(spent.values()) >= 0


@given(since=SECONDS, length=st.integers(min_value=0, max_value=50), wait_causes=WAIT_CAUSES)
def test_a_wait_that_ended_before_it_began_took_no_time(
    since: int, length: int, wait_causes: list[WaitCause]
):
    assert seconds_by(since, since - length, *wait_causes) == {"a pilot": 0}


def test_where_pilots_that_fit_are_served_it_is_the_turn_that_counts():
    limits, turn = wait_cause("limits", 10, 50), wait_cause("its turn", 40, 60)
    assert seconds_by(0, 100, limits, turn) == {"limits": 30, "its turn": 20, "a pilot": 50}


def test_only_the_wait_for_a_pilot_is_split():
    log = [
        entry(0, JobStatus.RECEIVED),
        entry(10, JobStatus.WAITING, "Pilot Agent Submission"),
        entry(40, JobStatus.MATCHED),
        entry(50, JobStatus.RUNNING),
        entry(60, JobStatus.DONE),
    ]
    spent = sum_by_cause(log, now=START + timedelta(days=1), causes=[wait_cause("banned", 0, 30)])
    assert spent == {"banned": 20, "a pilot": 10, "optimizers": 10, "start of the pilot's job": 10}
