from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Evidence,
    Handle,
    JobReport,
    ReliableSystem,
    State,
    SubmissionUncertain,
)
from pilotage.fabric.batch.shell import NoAnswer
from tests.support.clocks import ManualClock

JOB = Handle(stamp="stamp-0001")
EVIDENCE = Evidence(listings=3, seconds=300)


class Scripted:
    """A batch system that says what it is told to, and counts how often it is asked."""

    def __init__(self, *answers: State | Exception) -> None:
        self._answers: Iterator[State | Exception] = iter(answers)
        self.asked = 0

    def _next(self) -> State:
        self.asked += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def status(self, handles: Sequence[Handle]) -> Mapping[str, JobReport]:
        report = JobReport(state=self._next())
        return {handle.stamp: report for handle in handles}

    def submit(self, job: BatchJob) -> str:
        return f"{job.stamp} {self._next()}"


def idealized(clock: ManualClock, *answers: State | Exception) -> tuple[Any, Scripted]:
    system: Any = Scripted(*answers)
    return ReliableSystem(system=system, evidence=EVIDENCE, clock=clock, name="farm"), system


def states(ideal: ReliableSystem, clock: ManualClock, times: int, *, every: float) -> list[State]:
    found = []
    for _ in range(times):
        found.append(ideal.status([JOB])[JOB.stamp].state)
        clock.now += every
    return found


def test_a_job_is_gone_after_enough_listings_over_enough_time() -> None:
    clock = ManualClock(1000.0)
    ideal, _ = idealized(clock, *[State.MISSING] * 4)
    assert states(ideal, clock, 4, every=150) == [State.MISSING, State.MISSING, State.GONE, State.GONE]


def test_many_listings_at_once_are_no_evidence() -> None:
    clock = ManualClock(1000.0)
    ideal, _ = idealized(clock, *[State.MISSING] * 20)
    assert set(states(ideal, clock, 20, every=1)) == {State.MISSING}


def test_a_long_silence_between_two_listings_is_no_evidence() -> None:
    clock = ManualClock(1000.0)
    ideal, _ = idealized(clock, State.MISSING, State.MISSING)
    assert states(ideal, clock, 2, every=86_400) == [State.MISSING, State.MISSING]


def test_a_job_that_is_seen_again_has_never_been_away() -> None:
    clock = ManualClock(1000.0)
    seen = [State.MISSING, State.MISSING, State.RUNNING, State.MISSING, State.MISSING]
    ideal, _ = idealized(clock, *seen)
    assert states(ideal, clock, 5, every=200) == seen


def test_a_listing_that_failed_counts_neither_way_and_its_error_names_the_system() -> None:
    clock = ManualClock(1000.0)
    ideal, system = idealized(clock, State.MISSING, NoAnswer("squeue"), State.MISSING, State.MISSING)
    found = states(ideal, clock, 1, every=200)
    with pytest.raises(NoAnswer, match=r"^farm: squeue$"):
        ideal.status([JOB])
    clock.now += 200
    found += states(ideal, clock, 2, every=200)
    assert found == [State.MISSING, State.MISSING, State.GONE]
    assert system.asked == 4, "nothing is repeated before the next cycle"


@pytest.mark.parametrize("error", [BatchSystemAway("x"), SubmissionUncertain("x")])
def test_a_submission_is_never_repeated(error: Exception) -> None:
    clock = ManualClock(1000.0)
    ideal, system = idealized(clock, error, State.RUNNING)
    with pytest.raises(type(error)):
        ideal.submit(BatchJob(stamp=JOB.stamp, script="", queue="x"))
    assert system.asked == 1
