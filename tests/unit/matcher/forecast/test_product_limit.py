"""The product-limit estimate, by published figures and by hand."""

import pytest

from matcher.forecast.product_limit import ProductLimit

#: Weeks of remission of 21 patients (Freireich and others, Blood 21, 1963); those with + were still in it.
WEEKS = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+"
PATIENTS = ProductLimit((float(each.rstrip("+")), not each.endswith("+")) for each in WEEKS.split())


def test_it_is_that_of_the_literature() -> None:
    found = {time: round(1 - share, 3) for time, share in zip(PATIENTS.times, PATIENTS.shares, strict=True)}
    assert found == {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert PATIENTS.find(0.5) == 23
    assert PATIENTS.mean == pytest.approx(359 / 9)


def test_half_of_an_even_number_is_half_however_shares_are_rounded() -> None:
    for number in range(2, 1001, 2):
        assert ProductLimit((float(each), True) for each in range(1, number + 1)).find(0.5) == number / 2


def test_what_is_not_known_is_not_made_up() -> None:
    assert PATIENTS.find(0.56) is None  # 45 % were in remission for longer than anybody was seen
    assert ProductLimit([]).find(0.1) is None
    assert ProductLimit([(5.0, False)]).mean is None


def test_those_that_take_longer_than_a_time_are_all_there_is_then() -> None:
    """25 is known to be longer, and which of the later ones it will be is even."""
    known = ProductLimit([*((float(each), True) for each in (10, 20, 30, 40, 50, 60)), (25.0, False)])
    assert [known.find(each, longer_than=25) for each in (0.25, 0.26, 0.5, 0.75, 1.0)] == [30, 40, 40, 50, 60]
    assert known.find(0.01, longer_than=30) == 40
    assert known.find(0.5, longer_than=60) is None
    assert [known.count_longer(each) for each in (0, 10, 59, 60)] == [6, 5, 1, 0]
