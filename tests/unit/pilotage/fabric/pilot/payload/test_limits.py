from pilotage.fabric.pilot.payload import description, monitor
from pilotage.fabric.pilot.payload.monitor import Limits

MB = 1 << 20


def of(*, seconds_left: float | None = None, max_ram: int | None = None, **body: object) -> Limits:
    asked = description.read_description({"Executable": "x", **body})
    return monitor.job_limits(asked, seconds_left=seconds_left, max_ram=max_ram)


def test_without_any_word_there_is_no_limit() -> None:
    assert of() == Limits(wall_time=None, memory=None)


def test_the_smaller_of_job_and_slot_holds() -> None:
    assert of(MaxRAM=100, max_ram=200).memory == 100 * MB
    assert of(MaxRAM=300, max_ram=200).memory == 200 * MB
    assert of(MaxWallClockTime=60, seconds_left=10_000).wall_time == 60


def test_a_slot_keeps_time_for_the_output() -> None:
    assert of(seconds_left=10_000).wall_time == 9_880
    assert of(seconds_left=100).wall_time == 90


def test_time_is_passed_only_beyond_the_limit() -> None:
    allowed = Limits(wall_time=60, memory=None)

    assert allowed.passed_by_time(60) is None
    excess = allowed.passed_by_time(60.1)
    assert excess is not None
    assert excess.minor_status == "Job has exceeded maximum wall clock time"
    assert excess.detail == "allowed 60 s"


def test_memory_that_processes_share_counts_once() -> None:
    allowed = Limits(wall_time=None, memory=100 * MB)

    assert allowed.passed_by_memory(300 * MB, lambda: 80 * MB) is None


def test_memory_beyond_the_limit_is_told_with_both_numbers() -> None:
    excess = Limits(wall_time=None, memory=100 * MB).passed_by_memory(300 * MB, lambda: 150 * MB)

    assert excess is not None
    assert excess.minor_status == "Job has exceeded its memory limit"
    assert excess.detail == "allowed 100 MB, used 150 MB"


def test_where_the_host_cannot_tell_what_is_shared_everything_counts() -> None:
    assert Limits(wall_time=None, memory=100 * MB).passed_by_memory(101 * MB, lambda: None) is not None
