"""The tables of states."""

import pytest

from requirements.states import (
    FINAL,
    HELD,
    JOB_STEPS,
    PILOT_STEPS,
    PREPARING,
    JobStatus,
    PilotStatus,
    may_become,
    may_come_from,
    pilot_may_become,
)

S = JobStatus


def test_every_state_is_in_the_tables() -> None:
    assert set(JOB_STEPS) == set(S)
    assert set(PILOT_STEPS) == set(PilotStatus)


def test_every_state_is_final_or_prepared_or_held_or_waits() -> None:
    groups = [FINAL, PREPARING, HELD, {S.WAITING}]
    assert sorted(status for group in groups for status in group) == sorted(S)


@pytest.mark.parametrize("status", S)
def test_a_job_may_always_stay_where_it_is(status: JobStatus) -> None:
    assert may_become(status, status)
    assert status not in may_come_from(status)


@pytest.mark.parametrize("status", sorted(set(S) - FINAL))
def test_every_job_that_has_not_ended_can_be_killed(status: JobStatus) -> None:
    assert may_become(status, S.KILLED)


@pytest.mark.parametrize("status", sorted(HELD))
def test_what_ends_an_attempt_is_a_step_from_every_state_in_which_there_is_one(status: JobStatus) -> None:
    assert may_become(status, S.FAILED)


@pytest.mark.parametrize(
    ("current", "wanted"),
    [(S.MATCHED, S.WAITING), (S.RUNNING, S.RESCHEDULED), (S.STALLED, S.RESCHEDULED), (S.STALLED, S.RUNNING)],
)
def test_the_steps_that_leases_need_are_there(current: JobStatus, wanted: JobStatus) -> None:
    assert may_become(current, wanted)


@pytest.mark.parametrize(
    "status", [PilotStatus.DONE, PilotStatus.FAILED, PilotStatus.ABORTED, PilotStatus.DELETED]
)
def test_a_pilot_that_has_ended_stays_so(status: PilotStatus) -> None:
    assert not any(pilot_may_become(status, wanted) for wanted in PilotStatus if wanted is not status)


def test_a_pilot_of_which_nothing_is_known_may_still_be_anywhere() -> None:
    reachable = {wanted for wanted in PilotStatus if pilot_may_become(PilotStatus.UNKNOWN, wanted)}
    assert reachable == set(PilotStatus) - {PilotStatus.SUBMITTED}
