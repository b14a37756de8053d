import pytest

from requirements.classad.expression import parse_expression
from requirements.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("floor(1e300) > 1", 1, "floor of 1e+300 is out of range"),
        ("other.X > round(-1e19)", 11, "round of -1e+19 is out of range"),
        ("1 < Int(9.3e18)", 5, "Int of 9.3e+18 is out of range"),
        ('int("99999999999999999999") > 1', 1, "int of 1e+20 is out of range"),
        ('ceiling("inf") > 1', 1, "ceiling of inf is out of range"),
        ("other.MaxRAM << 70 > 1", 17, "a shift by 70 is out of range, allowed are 0 to 63"),
        ("other.MaxRAM >> -1 > 1", 17, "a shift by -1 is out of range"),
        ("1 >>> 2 >>> 64 == 0", 13, "a shift by 64 is out of range"),
        ("9007199254740991 * 9007199254740991 > 0", 1, "the result is out of range"),
        ("-9007199254740991 * 4096 < 0", 1, "the result is out of range"),
    ],
)
def test_constants_that_would_wrap_around_are_refused_with_their_place(
    text: str, column: int, why: str
) -> None:
    with pytest.raises(InvalidInput, match="Requirements: ") as error:
        parse_expression(text)
    (problem,) = error.value.problems
    assert problem.message.startswith(why)
    assert problem.column == column


@pytest.mark.parametrize(
    "text",
    [
        "floor(9.2e18) > 1",
        'int("12") > 1',
        'int("twelve") > 1',
        "other.X << 63 > 1",
        "other.X << 0 > 1",
        "other.X << other.Y > 1",
        "9007199254740991 * 2 > 1",
        "9007199254740991 * 9007199254740991.0 > 1",
        "floor(other.X) > 1",
    ],
)
def test_what_fits_is_taken(text: str) -> None:
    assert parse_expression(text).text == text
