"""What is measured of a batch system: load per core, duration and failures of submissions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pilotage.fabric.batch import measurements
from pilotage.fabric.batch.batch_system import BatchSystemAway, SubmissionRefused, SubmissionUncertain
from pilotage.fabric.batch.measurements import Measurements
from pilotage.fabric.batch.shell import Completed, LocalShell, NoAnswer
from requirements.measured_values import MEASURED, WINDOW


@dataclass
class Instant:
    """A clock that tests set."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_during(self, seconds: float, error: Exception | None = None) -> Callable[[], str]:
        """A submission that takes so long."""

        def submit() -> str:
            self.now += seconds
            if error is not None:
                raise error
            return "17"

        return submit


@dataclass
class ShellWithLoad:
    """Prints what is set, or raises it."""

    answers: list[str | Exception]
    commands: list[Sequence[str]] = field(default_factory=list)

    def run(self, command: Sequence[str], **_: object) -> Completed:
        self.commands.append(command)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Completed(status=0, stdout=answer, stderr="")


@pytest.fixture
def clock() -> Instant:
    return Instant()


@pytest.fixture
def measured(clock: Instant) -> Measurements:
    return Measurements(clock=clock)


def test_the_load_of_this_host_is_measured() -> None:
    load = measurements.measure_load(LocalShell())
    assert load is not None
    assert load >= 0


@pytest.mark.parametrize(
    ("printed", "load"),
    [
        ("40.10 12.00 8.00 3/400 4711\n2\n", 20.05),
        ("0.00 0.00 0.00 1/2 3\n128\n", 0.0),
        ("", None),
        ("cat: /proc/loadavg: No such file\n", None),
        ("\n4\n", None),
        ("1.00 1 1 1/1 1\n0\n", None),
    ],
)
def test_the_load_is_that_of_a_core_or_not_known(printed: str, load: float | None) -> None:
    shell: Any = ShellWithLoad([printed])
    assert measurements.measure_load(shell) == load


def test_the_load_is_measured_when_due_and_the_value_before_lasts_for_the_window(
    measured: Measurements, clock: Instant
) -> None:
    shell: Any = ShellWithLoad(["4.00 1 1 1/1 1\n2\n", NoAnswer("sh gave no answer in 5 s")])
    measured.measure_load_if_due(shell)
    measured.measure_load_if_due(shell)
    assert (len(shell.commands), measured.read()["Load"]) == (1, 2.0)
    clock.now += WINDOW - 1
    with pytest.raises(BatchSystemAway):
        measured.measure_load_if_due(shell)
    assert measured.read()["Load"] == 2.0
    clock.now += 1
    assert "Load" not in measured.read()


def test_nine_of_ten_submissions_take_at_most_what_is_stated(measured: Measurements, clock: Instant) -> None:
    for seconds in (1, 2, 3, 4, 5, 6, 7, 8, 9, 30):
        assert measured.measure_submission(clock.pass_during(seconds)) == "17"
    assert measured.read() == {"SubmitSeconds": 9.0, "SubmitErrors": 0}


@pytest.mark.parametrize(
    "error", [BatchSystemAway("away"), SubmissionRefused("no"), SubmissionUncertain("perhaps")]
)
def test_a_failed_submission_counts_until_the_window_has_passed(
    measured: Measurements, clock: Instant, error: Exception
) -> None:
    with pytest.raises(type(error)):
        measured.measure_submission(clock.pass_during(40, error))
    assert measured.read() == {"SubmitSeconds": 40.0, "SubmitErrors": 1}
    clock.now += WINDOW
    assert measured.read() == {"SubmitSeconds": 0, "SubmitErrors": 0}


def test_only_the_latest_submissions_are_kept(measured: Measurements, clock: Instant) -> None:
    with pytest.raises(SubmissionRefused):
        measured.measure_submission(clock.pass_during(50, SubmissionRefused("no")))
    for _ in range(measurements.MOST_SUBMISSIONS):
        measured.measure_submission(clock.pass_during(0.5))
    assert measured.read() == {"SubmitSeconds": 0.5, "SubmitErrors": 0}


def test_of_several_systems_the_highest_values_count_and_the_sum_of_failures() -> None:
    found = [
        {"SubmitSeconds": 2.0, "SubmitErrors": 1, "Load": 0.5},
        {"SubmitSeconds": 3.0, "SubmitErrors": 2},
    ]
    combined = measurements.combine_measurements(found)
    assert combined == {"SubmitSeconds": 3.0, "SubmitErrors": 3, "Load": 0.5}
    assert set(combined) == set(MEASURED)
