import pytest

from benchmarks import against


def turn(rate: float, *others: dict[str, object]) -> list[dict[str, object]]:
    return [{"what": "match", "clients": 16, "per second": rate}, *others]


def test_numbers_of_two_trees_are_compared_by_their_medians() -> None:
    ours = [turn(90.0), turn(100.0), turn(400.0)]
    theirs = [turn(190.0), turn(200.0), turn(210.0)]
    [line] = against.compare(ours, theirs)
    assert line == {"what": "match · per second", "this tree": "100", "the other": "200", "ratio": "0.50"}


def test_rows_with_equal_texts_are_compared_in_their_order() -> None:
    ours = [turn(10.0, {"what": "match", "clients": 64, "per second": 30.0})]
    theirs = [turn(10.0, {"what": "match", "clients": 64, "per second": 15.0})]
    [line] = against.compare(ours, theirs)
    assert line["what"] == "match · 2 · per second"
    assert line["ratio"] == "2.00"


@pytest.mark.parametrize("theirs", [[turn(5.0)[1:]], [[{"what": "other", "per second": 5.0}]]])
def test_what_one_tree_has_not_measured_is_left_out(theirs: list[list[dict[str, object]]]) -> None:
    assert list(against.compare([turn(5.0)], theirs)) == []
