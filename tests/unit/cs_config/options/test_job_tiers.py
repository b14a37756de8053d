"""Tiers of job types: how they are written, and the order in which chance puts the types of one."""

from collections import Counter
from collections.abc import Iterator
from math import log
from random import Random

import pytest

from cs_config import validate
from cs_config.options.job_tiers import JobTiers, find_tier
from cs_config.options.operations import options_for


def _tiers(written: str) -> JobTiers:
    config = validate.parse(f"Operations: {{cms: {{JobScheduling: {{JobPriorities: {written}}}}}}}")
    return options_for(config, "cms").job_scheduling.job_priorities


def _errors(written: str) -> list[str]:
    text = f"Operations: {{cms: {{JobScheduling: {{JobPriorities: {written}}}}}}}\n"
    return [str(problem) for problem in validate.report(text, "o.yaml").errors]


def test_a_tier_is_a_type_or_types_with_weights() -> None:
    tiers = _tiers("[MC, '{WG: 100, Fast: 50}', Merge]")
    assert [dict(tier.weights) for tier in tiers] == [{"MC": 1}, {"WG": 100, "Fast": 50}, {"Merge": 1}]
    assert list(map(str, tiers)) == ["MC", "{WG: 100, Fast: 50}", "Merge"]
    assert [find_tier(tiers, types) for types in (["mc"], ["FAST"], ["Merge"], ["User"], [])] == [
        1,
        2,
        3,
        4,
        4,
    ]


def test_without_the_option_there_is_no_tier() -> None:
    assert options_for(validate.parse("Operations: {}"), "cms").job_scheduling.job_priorities == ()
    assert _tiers("[]") == ()


def test_one_type_alone_may_be_written_without_a_list() -> None:
    assert [dict(tier.weights) for tier in _tiers("Test")] == [{"Test": 1}]


def test_a_vo_has_its_own_list_in_place_of_that_for_all() -> None:
    config = validate.parse(
        "Operations: {Defaults: {JobScheduling: {JobPriorities: [A, B]}},"
        " cms: {JobScheduling: {JobPriorities: [C]}}}"
    )
    of_cms, of_lhcb = (options_for(config, vo).job_scheduling.job_priorities for vo in ("cms", "lhcb"))
    assert list(map(str, of_cms)) == ["C"]
    assert list(map(str, of_lhcb)) == ["A", "B"]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[MC, mc]", "mc is in it twice"),
        ("['{A: 1, A: 2}']", "A is in it twice"),
        ("['{A: 1, B}']", "'B' is no type with its weight, allowed are a job type, or '{type: weight"),
        ("['{}']", "is no type with its weight"),
        ("['{A: much}']", "the weight of A, 'much', is no number"),
        ("['{A: 0}']", "the weight of A, 0, is out of bounds, allowed are 1e-09 to 1e+09"),
        ("['{A: nan}']", "the weight of A, nan, is out of bounds"),
        ("['{A: -1}']", "the weight of A, -1, is out of bounds"),
        ("['']", "'' is no tier, allowed are"),
        ("['{A: 1', 'B: 2}']", "'{A: 1' is no tier, allowed are a job type, or"),
        ("['A: 3']", "'A: 3' is no tier"),
        ("[3]", "3 is no tier"),
        ("{A: 1}", "is no tier"),
        (str([f"T{number}" for number in range(101)]), "101 job types, 100 are allowed"),
    ],
)
def test_a_wrong_list_is_refused_with_its_place(written: str, message: str) -> None:
    [error] = _errors(written)
    assert "Operations/cms/JobScheduling/JobPriorities" in error
    assert message in error


def test_types_in_a_list_that_are_not_in_quotes_are_refused_with_the_remedy() -> None:
    found = _errors("[{A: 1, B: 2}]")
    assert any("in quotes" in error for error in found), found


class _Evenly(Random):
    """A source whose numbers are given, each as the fraction of the distribution below it."""

    def __init__(self, fractions: Iterator[float]) -> None:
        super().__init__(1)
        self._fractions = fractions

    def expovariate(self, lambd: float = 1.0) -> float:
        return -log(1 - next(self._fractions)) / lambd


#: The middles of as many equal parts of a distribution: sums over them differ little from its integrals.
_PARTS = [(number + 0.5) / 60 for number in range(60)]


def test_types_of_a_tier_come_first_as_often_as_they_weigh() -> None:
    [tier] = _tiers("['{A: 100, B: 50}']")
    first = Counter(tier.draw_types(_Evenly(iter((of_a, of_b))))[0] for of_a in _PARTS for of_b in _PARTS)
    assert first["a"] / first.total() == pytest.approx(2 / 3, abs=0.01)


def test_of_those_that_have_jobs_each_comes_first_as_often_as_it_weighs_among_them() -> None:
    [tier] = _tiers("['{A: 5, B: 3, C: 1}']")
    parts = _PARTS[1::3]
    orders = [
        tier.draw_types(_Evenly(iter((of_a, of_b, of_c))))
        for of_a in parts
        for of_b in parts
        for of_c in parts
    ]
    without_a = Counter(next(name for name in order if name != "a") for order in orders)
    assert without_a["b"] / without_a.total() == pytest.approx(3 / 4, abs=0.02)
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
