import pytest

from requirements.errors import InvalidInput
from requirements.record import Declaration, Declarations, Record, ValueKind, parse_record, record_problems

DECLARED = Declarations.find(
    [
        Declaration(name="Memory", kind=ValueKind.NUMBER, unit="MB", minimum=0, maximum=1_000_000),
        Declaration(name="CPUModel", kind=ValueKind.STRING),
        Declaration(name="SoftwareTag", kind=ValueKind.LIST),
        Declaration(name="Outbound", kind=ValueKind.BOOLEAN),
    ]
)


def problems(raw: dict[str, object]) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        parse_record(raw, DECLARED)
    return [str(problem) for problem in refused.value.problems]


def test_the_record_of_the_rfc_keeps_its_spelling() -> None:
    raw: dict[str, object] = {
        "SoftwareTag": ["AppVersion1", "AppVersion2"],
        "CPUModel": "Intel Xeon",
        "Memory": 4000,
    }
    assert parse_record(raw, DECLARED) == Record(
        values=(
            ("CPUModel", "Intel Xeon"),
            ("Memory", 4000),
            ("SoftwareTag", ("AppVersion1", "AppVersion2")),
        )
    )


def test_any_name_is_legal() -> None:
    assert parse_record({"GPU model/2": "A100", "été": True}, DECLARED).values


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"Memory": "much"}, "Requirements/Memory: 'much' is a string, Memory is a number of MB"),
        ({"CPUModel": 7}, "Requirements/CPUModel: '7' is a number, CPUModel is a string"),
        ({"Memory": -1}, "Requirements/Memory: -1 is too small, allowed is at least 0"),
        ({"Memory": "2e6"}, "Requirements/Memory: 2000000 is too large, allowed is at most 1000000"),
        ({"Memory": [1, -5]}, "Requirements/Memory: -5 is too small, allowed is at least 0"),
        ({"Memory": 1, "memory": 2}, "Requirements/memory: named twice, the other time as Memory"),
        ({}, "Requirements: is empty; leave it out"),
        ({" ": 1}, "Requirements: a name is empty"),
        ({"\ud800": 1}, r"Requirements: '\ud800' is not valid Unicode text"),
    ],
)
def test_what_is_no_record_of_requirements_is_refused(raw: dict[str, object], problem: str) -> None:
    assert problems(raw) == [problem]


def test_a_number_written_as_text_is_one_where_declared() -> None:
    assert parse_record({"Memory": "4000"}, DECLARED).values == (("Memory", "4000"),)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x" * 4097, "has 4097 characters, allowed are 4096"),
        (["a", "x" * 4097], "has 4097 characters in one item, allowed are 4096"),
        ([1] * 10_001, "has 10001 items, allowed are 10000"),
    ],
)
def test_values_that_are_too_long_are_refused_unless_they_were_accepted_before(
    value: object, message: str
) -> None:
    assert problems({"SoftwareTag": value, "CPUModel": value}) == [
        f"Requirements/{name}: {message}" for name in ("SoftwareTag", "CPUModel")
    ]
    stored = parse_record({"CPUModel": value}, DECLARED, is_accepted=True)
    assert stored.values == (("CPUModel", tuple(value) if isinstance(value, list) else value),)


def test_a_name_that_is_too_long_is_refused_unless_it_was_accepted_before() -> None:
    long = {"x" * 4097: "x"}
    assert problems(long) == ["Requirements: a name has 4097 characters, allowed are 4096"]
    assert parse_record(long, DECLARED, is_accepted=True).values


def test_all_problems_are_listed() -> None:
    seen = problems({"Memory": "x", "CPUModel": 1, "Outbound": "yes", "Other": None, "Empty": []})
    assert len(seen) == 5


def test_a_misspelt_name_with_a_problem_gets_the_name_that_was_meant() -> None:
    assert problems({"Memmory": []})[0].endswith("did you mean Memory?")


def test_a_stored_record_is_judged_by_the_declarations_of_today() -> None:
    record = parse_record({"Disk": "large"}, DECLARED)
    today = Declarations.find([Declaration(name="Disk", kind=ValueKind.NUMBER)])
    assert record_problems(record, DECLARED) == []
    assert [str(problem) for problem in record_problems(record, today)] == [
        "Requirements/Disk: 'large' is a string, Disk is a number"
    ]
