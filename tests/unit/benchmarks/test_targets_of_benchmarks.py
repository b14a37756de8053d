from benchmarks import targets
from benchmarks.results import Result
from benchmarks.targets import TARGETS


def result(name: str, value: float, note: str = "") -> Result:
    return Result(values={}, targets={name: value}, note=note)


def test_a_number_that_shall_be_reached_is_met_from_there_on():
    assert TARGETS["submit"].met(8_000)
    assert not TARGETS["submit"].met(7_999)


def test_a_number_that_shall_not_be_exceeded_is_met_up_to_there():
    assert TARGETS["refresh"].met(10)
    assert not TARGETS["refresh"].met(10.1)


def test_of_several_measurements_the_worst_counts_with_its_note():
    measured = [result("http 64", 3_000, "1 process"), result("http 64", 2_000, "2 processes")]

    [verdict] = [each for each in targets.verdicts(measured, ["match"]) if each.target is TARGETS["http 64"]]

    assert (verdict.measured, verdict.note) == (2_000, "2 processes")
    assert verdict.row()["met"] == "no"


def test_the_worst_of_what_shall_be_small_is_the_largest():
    measured = [result("nothing p99", 3), result("nothing p99", 12)]

    verdict = next(each for each in targets.verdicts(measured, ["nothing"]) if each.target.at_most)

    assert verdict.measured == 12


def test_what_was_not_measured_is_neither_met_nor_missed():
    [verdict] = targets.verdicts([], ["pools"])

    assert verdict.row() == {
        "what": TARGETS["refresh"].text,
        "target": "≤ 10 s",
        "measured": "not measured",
        "met": "",
        "note": "",
    }


def test_targets_of_benchmarks_that_did_not_run_are_left_out():
    assert {each.target.benchmark for each in targets.verdicts([], ["mixed", "submit"])} == {
        "mixed",
        "submit",
    }
