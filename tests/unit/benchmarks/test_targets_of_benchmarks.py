from benchmarks import targets
from benchmarks.results import Result
from benchmarks.targets import TARGETS


def result(name: str, value: float, note: str = "") -> Result:
    return Result(values={}, targets={name: value}, note=note)


def test_a_number_is_to_be_reached_or_not_to_be_exceeded():
    met = [TARGETS[name].met(value) for name in ("submit", "refresh") for value in (7_999, 8_000, 10, 10.1)]
    assert met == [False, True, False, False, False, False, True, False]


def test_of_several_measurements_the_worst_counts_with_its_note():
    measured = [result("http 64", 3_000, "1 process"), result("http 64", 2_000, "2 processes")]
    [verdict] = [each for each in targets.verdicts(measured, ["match"]) if each.target is TARGETS["http 64"]]
    assert (verdict.measured, verdict.note) == (2_000, "2 processes")
    assert verdict.row()["met"] == "no"
    small = targets.verdicts([result("nothing p99", 3), result("nothing p99", 12)], ["nothing"])
    assert next(each.measured for each in small if each.target.at_most) == 12


def test_what_was_not_measured_is_neither_met_nor_missed():
    [verdict] = targets.verdicts([], ["pools"])
    assert verdict.row() == {
        "what": TARGETS["refresh"].text,
        "target": "≤ 10 s",
        "measured": "not measured",
        "met": "",
        "note": "",
    }
