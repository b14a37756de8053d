import ast
import math
import sys
import warnings
from fractions import Fraction
from itertools import pairwise, product

import classad2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from requirements.classad.lexer import TokenKind, scan
from requirements.classad.syntax_tree import SourceText
from requirements.errors import InvalidInput

SIGNS = st.sampled_from(
    [*"aZ_019.eE+-\"'\\/*#\n \t\r[]{}();,=?!<>&|^~%:\0\ud800é\u00a0", "0x", "//", "/*", "*/"]
)


def words(text: str) -> list[object]:
    return [token.value for token in scan(SourceText(text=text, path="x"))][:-1]


def refused(text: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as error:
        words(text)
    return error.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4000", 4000),
        ("9007199254740991", 2**53 - 1),
        ("1.5", 1.5),
        (".5", 0.5),
        ("4e3", 4000.0),
        ("1E-7", 1e-7),
        ("1.5e+2", 150.0),
        ("007.5", 7.5),
    ],
)
def test_numbers_are_read(text: str, value: float) -> None:
    (word,) = words(text)
    assert word == value
    assert type(word) is type(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0x10", "is hexadecimal"),
        ("0XfF", "is hexadecimal"),
        ("0b11", "is binary"),
        ("010", "would make it octal"),
        ("08", "would make it octal"),
        ("00", "would make it octal"),
        ("9007199254740992", "is out of range"),
        ("99999999999999999999", "is out of range"),
        ("9" * 5000, "is out of range"),
        ("1e400", "is out of range"),
        ("1e-400", "is out of range, numbers with a point or exponent reach from 4.9e-324 to 1.8e+308"),
        ("1.", "is not a number"),
        ("1.e3", "is not a number"),
        ("1e", "is not a number"),
        ("1..2", "is not a number"),
        ("1K", "is not a number"),
        ("12abc", "is not a number"),
        ("1e5.0", "is not a number"),
    ],
)
def test_literals_that_programs_read_differently_are_refused(text: str, why: str) -> None:
    assert why in str(refused(f" {text} "))


def test_literals_inside_texts_names_and_comments_are_nobodys_business() -> None:
    text = '"0x10 // 010" a0x10 \'99999999999999999999\' // 0x10\n/* 010 " */ # 1\n# 0x10 "\n'
    with pytest.raises(InvalidInput, match="'#' has no meaning here"):
        words(text)
    assert words(text.replace("# 1", "")) == ["0x10 // 010", "a0x10", "99999999999999999999"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\n\t\\\"b"', 'a\n\t\\"b'),
        (r'"\101\303\251"', "Aé"),
        ('"line\nline"', "line\nline"),
        ("'a \"b\" \\'c\\''", "a \"b\" 'c'"),
        (r"""'a"b\"c\\'""", 'a"b"c\\'),
        ('"%s %n %(x)s"', "%s %n %(x)s"),
    ],
)
def test_texts_are_unquoted(text: str, value: str) -> None:
    assert words(text) == [value]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"abc', "the text is not ended"),
        ('"abc\\"', "the text is not ended"),
        ("'abc", "the name is not ended"),
        ("/* abc", "the comment is not ended"),
        (r'"\000"', "has an escape that is not a character"),
        (r'"\377"', "has an escape that is not a character"),
        (r'"\355\240\200"', "has an escape that is not a character"),
        (r'"\777"', r"\777 is beyond \377"),
        (r'"\400"', r"\400 is beyond \377"),
        (r'"\x41"', r"\x41 is not an escape; write the character itself"),
        (r'"a\qb"', r"\q is not an escape; write \\ for a backslash"),
        (r'"el\.9"', r"\. is not an escape"),
        (r'"\8"', r"\8 is not an escape"),
        ('"a\\\nb"', r"a backslash before '\n' is not an escape"),
        (r"'a\qb'", r"\q is not an escape"),
        ("''", "a name is empty"),
        ("é", "'é' has no meaning here"),
        ("$", "'$' has no meaning here"),
        ("a\0", "is not a valid character"),
        ('"\ud800"', "is not a valid character"),
    ],
)
def test_what_is_no_word_is_refused(text: str, why: str) -> None:
    assert why in str(refused(text))


def test_an_error_says_line_and_column_and_shows_the_line() -> None:
    (problem,) = refused('A = "two\nlines";\n  B = 010; // that\nC = 1').problems
    assert (problem.line, problem.column, problem.excerpt) == (3, 7, "  B = 010; // that")


def test_an_error_in_a_very_long_line_shows_the_place_only() -> None:
    (problem,) = refused("x " * 1000 + "010" + " y" * 1000).problems
    assert problem.column == 2001
    assert problem.excerpt is not None
    assert len(problem.excerpt) < 110
    assert "010" in problem.excerpt


def _as_written(text: str) -> object:
    """What Python, whose escapes of bytes are those of C, makes of a text; None: it refuses it, too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return ast.literal_eval(f"b{text}").decode()
    except (SyntaxError, ValueError):
        return None


def _by_the_library(text: str) -> object:
    try:
        return classad2.ExprTree(text).eval()
    except (classad2.ClassAdException, ValueError):
        return None


def _by_us(text: str) -> object:
    try:
        read = words(text)
    except InvalidInput:
        return None
    return read[0] if len(read) == 1 else None


@pytest.mark.parametrize("tail", ["", "b", "1", '\\"'])
def test_escapes_are_taken_exactly_where_the_library_reads_them_as_written(tail: str) -> None:
    signs = [chr(number) for number in range(1, 128) if chr(number) not in '"\\\r\n']
    octals = ["".join(digits) for size in (2, 3, 4) for digits in product("0123456789", repeat=size)]
    hexadecimals = [f"x{number:02x}" for number in range(256)]
    for escape in (*signs, *octals, *hexadecimals, "u0041", "N{BULLET}", "303\\251", "377\\377"):
        text = f'"a\\{escape}{tail}"'
        read = _by_the_library(text)
        assert _by_us(text) == (read if read == _as_written(text) else None), text


def test_numbers_are_taken_only_where_the_library_reads_the_same() -> None:
    for size in range(1, 5):
        for signs in product("0179.eE+xbFK_", repeat=size):
            text = "".join(signs)
            ours = _by_us(text)
            if isinstance(ours, int | float):
                assert (type(ours), ours) == (type(_by_the_library(text)), _by_the_library(text)), text
                assert ours == Fraction(text) or ours == pytest.approx(float(Fraction(text)), rel=1e-15), text


@pytest.mark.parametrize("sign", ["", "-"])
def test_reals_of_every_size_are_read_as_the_library_does_or_refused(sign: str) -> None:
    for exponent in range(-420, 420):
        text = f"9.87654321e{exponent}"
        ours, exact = _by_us(text), Fraction(text)
        assert (ours is None) == (not math.ulp(0.0) <= exact <= Fraction(sys.float_info.max)), text
        if isinstance(ours, float):
            assert _by_the_library(sign + text) == float(sign + text)
            assert abs(Fraction(ours) - exact) <= Fraction(math.ulp(ours)) / 2


@given(st.text())
def test_any_text_is_scanned_or_refused(text: str) -> None:
    _scan_or_refuse(text)


@given(st.lists(SIGNS).map("".join))
def test_any_text_of_the_languages_own_signs_is_scanned_or_refused(text: str) -> None:
    _scan_or_refuse(text)


def _scan_or_refuse(text: str) -> None:
    try:
        tokens = list(scan(SourceText(text=text, path="x")))
    except InvalidInput as error:
        (problem,) = error.problems
        assert problem.line is not None
        assert problem.column is not None
        line = text.split("\n")[problem.line - 1]
        assert 1 <= problem.column <= len(line) + 1
        str(error).encode()
        return
    assert tokens[-1].kind is TokenKind.END
    assert all(one.end <= other.start for one, other in pairwise(tokens))
