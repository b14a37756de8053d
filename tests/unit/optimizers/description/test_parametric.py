import pytest

from optimizers.description import parametric
from requirements.errors import InvalidJob
from taskqueue.jobs import placeholders


def expand(most: int = 1000, **raw: object) -> list[parametric.MemberValues]:
    split = parametric.split_description({name.replace("__", "."): value for name, value in raw.items()})
    return parametric.expand_parameters(split, most=most)


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        ({"Parameters": ["first", 2, 2.5]}, ["first", "2", "2.5"]),
        (
            {"Parameters": [0.1234567890123456, 1234567890123.5, 2.0]},
            ["0.1234567890123456", "1234567890123.5", "2"],
        ),
        ({"Parameters": 3}, ["0", "1", "2"]),
        ({"Parameters": 4, "ParameterStep": 0.1}, ["0", "0.1", "0.2", "0.3"]),
        (
            {"Parameters": 4, "ParameterStart": 1, "ParameterStep": 2, "ParameterFactor": 3},
            ["1", "5", "17", "53"],
        ),
        ({"PARAMETERS": 2, "parameterstart": 5}, ["5", "6"]),
    ],
)
def test_a_list_or_a_progression_makes_a_member_of_each_value(
    raw: dict[str, object], values: list[str]
) -> None:
    assert expand(**raw) == [{"n": str(number), "s": value} for number, value in enumerate(values)]  # type: ignore[arg-type]


def test_numbers_of_members_have_leading_zeros_so_that_names_sort() -> None:
    numbers = [member["n"] for member in expand(Parameters=12)]
    assert numbers[0] == "00"
    assert numbers == sorted(numbers)
    assert [member["n"] for member in expand(Parameters=10)] == list("0123456789")  # as in DIRAC


def test_several_parameters_have_names_of_their_own() -> None:
    members = expand(Parameters__A=["x", "y"], Parameters__B=2, ParameterStart__B=10)
    assert members == [{"n": "0", "A": "x", "B": "10"}, {"n": "1", "A": "y", "B": "11"}]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"Parameters": []}, "the list is empty"),
        ({"Parameters": 0}, "at least 1"),
        ({"Parameters": -1}, "at least 1"),
        ({"Parameters": "many"}, "is not a number"),
        ({"Parameters": True}, "is not a number"),
        ({"Parameters": 2.5}, "at least 1"),
        ({"Parameters": 1001}, "allowed are 1000"),
        ({"Parameters": ["a"] * 1001}, "allowed are 1000"),
        ({"Parameters": [{"a": 1}]}, "allowed is a text, a number, or a list of these"),
        ({"Parameters": [[["a"]]]}, "allowed is a text, a number, or a list of these"),
        ({"Parameters": 3, "ParameterStart": "x"}, "is not a number"),
        ({"Parameters": 900, "ParameterFactor": 10, "ParameterStart": 1}, "grow beyond"),
        ({"Parameters.A": ["x"], "Parameters.B": ["x", "y"]}, "A has 1, B has 2"),
        ({"Parameters": 2, "ParameterStart.A": 1}, "has no effect without Parameters.A"),
        ({"ParameterStart": 1, "Parameters.A": 1}, "has no effect without Parameters"),
        ({"Parameters": ["a\0"]}, "NUL"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(raw: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parametric.expand_parameters(parametric.split_description(raw), most=1000)
    assert message in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    raw = {"Parameters.A": "x", "Parameters.B": [], "ParameterStep.C": 1}
    with pytest.raises(InvalidJob) as caught:
        parametric.expand_parameters(parametric.split_description(raw), most=10)
    assert {problem.path for problem in caught.value.problems} >= {
        "Parameters.A",
        "Parameters.B",
        "ParameterStep.C",
    }


def test_placeholders_are_filled_at_any_depth() -> None:
    body = {
        "Arguments": "%s-%n-%(A)s",
        "OutputSandbox": ["out_%n"],
        "Requirements": {"Tag": "v%s"},
        "CPUTime": 5,
    }
    filled = placeholders.fill_placeholders(body, {"s": "x", "n": "3", "A": "y"})
    assert filled == {
        "Arguments": "x-3-y",
        "OutputSandbox": ["out_3"],
        "Requirements": {"Tag": "vx"},
        "CPUTime": 5,
    }


def test_a_value_that_looks_like_a_placeholder_is_not_filled_again() -> None:
    assert placeholders.fill_placeholders({"a": "%s"}, {"s": "%n", "n": "1"}) == {"a": "%n"}


def test_unknown_placeholders_and_other_percent_signs_stay() -> None:
    assert placeholders.fill_placeholders({"a": "%(B)s 100% %j %d"}, {"s": "x", "n": "1"}) == {
        "a": "%(B)s 100% %j %d"
    }


def test_without_parameters_percent_signs_are_the_jobs_own() -> None:
    assert placeholders.fill_placeholders({"a": "date +%s"}, None) == {"a": "date +%s"}
