"""Versions in requirements: what is compared as one, and numbers in its place."""

import copy

import pytest

from cs_config.tree.inheritance import as_tuple
from requirements import versions
from requirements.classad.expression import Expression
from requirements.record import Declarations, Record, parse_record
from requirements.written_reals import LONGEST, WrittenReal, keep_text, read_real


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('versionGE(other.OSVersion, "9.10")', {"osversion"}),
        ('version_in_range(Kernel, "4.1", "5") || other.OSVersion > 9.1', {"kernel"}),
        ('VersionLT(ifThenElse(other.A is undefined, "0", other.B), TARGET.C)', {"a", "b", "c"}),
        ('other.OSVersion == "9.10"', set()),
        ("versionGE(", set()),
    ],
)
def test_names_that_version_functions_read(text: str, names: set[str]) -> None:
    assert versions.compared_names(Expression(text=text)) == names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("other.OSVersion == 9.10", [("OSVersion", "9.10")]),
        (
            "9.10 <= OSVersion && member(8.10, other.OSVersion)",
            [("OSVersion", "9.10"), ("OSVersion", "8.10")],
        ),
        ("versionGE(other.Kernel, 5.10)", [("Kernel", "5.10")]),
        ('versionGE(other.Kernel, "5.10") && other.Memory > 2000', []),
        ("other.Kernel == 5 || other.Kernel ==", []),
    ],
)
def test_reals_in_expressions_as_they_are_written(text: str, found: list[tuple[str, str]]) -> None:
    assert list(versions.find_reals(Expression(text=text))) == found


def test_reals_in_records() -> None:
    record = Record(
        values=(("OSVersion", (9.4, "9.10", 8.1)), ("Memory", 2000), ("Kernel", 5.1), ("GPU", True))
    )
    assert list(versions.find_reals(record)) == [
        ("OSVersion", 9.4),
        ("OSVersion", 8.1),
        ("Kernel", 5.1),
    ]
    assert versions.compared_names(record) == frozenset()


def test_reals_in_records_as_they_are_written_where_they_lose_zeros() -> None:
    raw = {"MySoft": [WrittenReal(5.1, "5.10"), 5.2, "5.30"], "Other": WrittenReal(3.0, "3.0")}
    record = parse_record(raw, Declarations())

    assert list(versions.find_reals(record)) == [("MySoft", "5.10"), ("MySoft", 5.2), ("Other", "3.0")]
    assert record == parse_record({"MySoft": [5.1, 5.2, "5.30"], "Other": 3.0}, Declarations())
    assert not any(isinstance(each, WrittenReal) for _, value in record.values for each in as_tuple(value))


@pytest.mark.parametrize("text", ["other.V == 9.4", "V >= .5", "V < 1e3", "versionGE(V, 9.10)", "V == 2."])
def test_texts_with_reals_are_found_without_reading_them(text: str) -> None:
    assert versions.may_have_reals(Expression(text=text))
    assert not versions.may_have_reals(Expression(text='other.Memory > 4000 && other.OS == "el9"'))


def test_the_text_of_a_number_is_copied_and_bounded() -> None:
    number = copy.deepcopy(read_real("5.10"))
    assert isinstance(number, WrittenReal)
    assert (number, number.text) == (5.1, "5.10")
    digits = "1" * LONGEST
    for longer in (read_real(f"5.{digits}"), keep_text(5.1, f"5.{digits}")):
        assert type(longer) is float
