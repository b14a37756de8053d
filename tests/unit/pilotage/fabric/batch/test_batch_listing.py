"""How a job stands, by what its batch system says and by what it left itself."""

import pytest

from pilotage.fabric.batch import work_area
from pilotage.fabric.batch.batch_system import Handle, State
from pilotage.fabric.batch.work_area import ListedJob, StatusMarks

_STAMP = "director.1234567890"
_HANDLE = Handle(stamp=_STAMP, reference="30")


def _state(said: State, marks: StatusMarks) -> State:
    row = ListedJob(stamp=_STAMP, reference="30", state=said, exit_code=0 if said is State.DONE else None)
    return work_area.job_report(row, marks, _HANDLE).state


@pytest.mark.parametrize("said", [State.DONE, State.FAILED, State.GONE, State.KILLED])
def test_a_job_that_we_killed_and_that_left_no_end_was_killed_whatever_is_said_of_it(said: State) -> None:
    assert _state(said, StatusMarks(killed=True)) is State.KILLED


def test_a_job_that_ended_well_before_its_kill_is_done() -> None:
    assert _state(State.DONE, StatusMarks(killed=True, exit_code=0)) is State.DONE


def test_a_job_of_which_nothing_is_left_is_what_is_said_of_it() -> None:
    assert _state(State.DONE, StatusMarks()) is State.DONE
    assert _state(State.FAILED, StatusMarks()) is State.FAILED


def test_the_node_of_a_job_is_known_by_its_mark_and_by_the_listing() -> None:
    row = ListedJob(stamp=_STAMP, reference="30", state=State.FAILED, node="n1")
    report = work_area.job_report(row, StatusMarks(exit_code=4, host="n1.a.org"), _HANDLE)
    assert (report.host, report.node) == ("n1.a.org", "n1")


def test_a_running_job_runs_although_we_asked_for_its_end() -> None:
    assert _state(State.RUNNING, StatusMarks(killed=True)) is State.RUNNING


def test_a_job_that_was_ended_while_it_waited_is_known_as_such_where_the_batch_system_forgets_it() -> None:
    report = work_area.job_report(None, StatusMarks(killed=True), _HANDLE)
    assert (report.state, report.was_killed) == (State.MISSING, True)
    assert not work_area.job_report(None, StatusMarks(), _HANDLE).was_killed
