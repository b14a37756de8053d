"""How much existing pilots count against the waiting jobs."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pilotage.fabric.director import recorded_pilots
from pilotage.fabric.director.recorded_pilots import DirectorPilot, PilotSlot, Status
from tests.support.factories.director_pilots import NOW, pilot

FOUR = PilotSlot(cores=4, lifetime=86_400)


def waiting(minutes: float) -> DirectorPilot:
    return replace(pilot("north.any.1"), created_at=NOW - timedelta(minutes=minutes))


def running(minutes: float, *, jobs: int, open_jobs: int, used_cores: int) -> DirectorPilot:
    counts = {"jobs": jobs, "open_jobs": open_jobs, "used_cores": used_cores}
    return replace(waiting(minutes), status=Status.RUNNING, last_seen_at=NOW, **counts)


@pytest.mark.parametrize(
    ("minutes", "jobs", "open_jobs", "used_cores", "free"),
    [
        (1, 0, 0, 0, 1.0),
        (1, 1, 1, 4, 0.0),
        (14, 1, 1, 4, 0.0),
        (10, 1, 1, 1, 0.75),
        (10, 5, 1, 4, 1.0),
        (600, 5, 1, 4, 0.0),
        (600, 5, 0, 0, 1.0),
        (1440, 5, 0, 0, 0.0),
    ],
    ids=[
        "has just begun",
        "its first job runs for a minute",
        "a job that runs shows nothing about its length",
        "one of four cores is used",
        "four short jobs have ended",
        "its jobs are long",
        "has none now",
        "its time is over",
    ],
)
def test_a_running_pilot_counts_for_what_is_free_now_or_soon(
    minutes: float, jobs: int, open_jobs: int, used_cores: int, free: float
) -> None:
    one = running(minutes, jobs=jobs, open_jobs=open_jobs, used_cores=used_cores)

    assert recorded_pilots.count_free(one, FOUR, NOW) == free


def test_a_waiting_pilot_counts_as_late_where_no_core_is_free_and_less_with_age() -> None:
    full = replace(FOUR, is_full=True)

    assert recorded_pilots.count_slots([waiting(1)] * 3, full, NOW) == (3, 0)
    assert recorded_pilots.count_slots([waiting(5)] * 3, full, NOW) == (0, 3)
    assert recorded_pilots.count_slots([waiting(5)] * 3, FOUR, NOW) == (3, 0)
    assert recorded_pilots.count_slots([waiting(30)] * 4, FOUR, NOW) == (0, 2)
    assert recorded_pilots.count_slots([replace(waiting(1), status=Status.DONE)], FOUR, NOW) == (0, 0)


@pytest.mark.parametrize(
    ("one", "good"),
    [
        (replace(running(5, jobs=1, open_jobs=1, used_cores=1), updated_at=NOW), None),
        (
            replace(running(30, jobs=1, open_jobs=1, used_cores=1), updated_at=NOW - timedelta(minutes=20)),
            True,
        ),
        (replace(running(5, jobs=2, open_jobs=0, used_cores=0), ended_jobs=1), True),
        (replace(running(5, jobs=1, open_jobs=0, used_cores=0), status=Status.FAILED), False),
        (replace(running(5, jobs=3, open_jobs=0, used_cores=0), status=Status.FAILED, ended_jobs=1), True),
        (replace(running(5, jobs=1, open_jobs=0, used_cores=0), status=Status.DONE), True),
        (replace(waiting(5), status=Status.DONE), False),
    ],
    ids=[
        "its first job has just begun",
        "its first job runs for a while",
        "a job ended there",
        "it gave its job back and failed",
        "it failed after a job had ended",
        "it had to end while its job ran",
        "it got no job",
    ],
)
def test_a_pilot_is_a_good_experience_if_jobs_could_run_there(one: DirectorPilot, good: bool | None) -> None:
    trials = list(recorded_pilots.list_trials([one], NOW))

    assert [each.good for each in trials] == [good]


@pytest.mark.parametrize("reason", ["banned", "limits", "throttled"])
def test_a_pilot_that_the_place_gave_no_job_is_no_experience_of_its_queue(reason: str) -> None:
    empty = replace(waiting(5), status=Status.DONE, empty_reason=reason)

    assert list(recorded_pilots.list_trials([empty], NOW)) == []


def test_a_node_that_flags_found_and_that_lacks_what_jobs_need_is_a_bad_experience() -> None:
    empty = replace(waiting(5), status=Status.DONE, empty_reason="node_features")

    assert list(recorded_pilots.list_trials([empty], NOW)) == []
    assert [each.good for each in recorded_pilots.list_trials([empty], NOW, with_flags=True)] == [False]


@pytest.mark.parametrize("status", [Status.RUNNING, Status.FAILED])
def test_a_pilot_that_an_excluded_node_refused_is_no_experience_of_its_queue(status: Status) -> None:
    refused = replace(waiting(5), status=status, empty_reason="node_excluded")

    assert list(recorded_pilots.list_trials([refused], NOW)) == []
    again = replace(refused, jobs=1, status=Status.FAILED)
    assert [each.good for each in recorded_pilots.list_trials([again], NOW)] == [False]


def test_a_result_is_as_new_as_the_last_request_of_its_pilot() -> None:
    one = replace(running(60, jobs=2, open_jobs=1, used_cores=1), ended_jobs=1)
    one = replace(one, updated_at=NOW - timedelta(minutes=59))

    [trial] = recorded_pilots.list_trials([one], NOW + timedelta(minutes=1))

    assert (trial.good, trial.known_at) == (True, NOW)


def test_a_pilot_that_waits_is_a_trial_without_an_outcome() -> None:
    [trial] = recorded_pilots.list_trials([waiting(5)], NOW)

    assert (trial.good, trial.waits, trial.sent_at) == (None, True, NOW - timedelta(minutes=5))
