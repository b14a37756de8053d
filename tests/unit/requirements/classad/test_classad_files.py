"""Files of ads: several ads, both syntaxes, every fault with its line."""

import pytest

from requirements.classad import classad_files
from requirements.errors import InvalidInput
from requirements.values import Unevaluated


def names(text: str) -> list[list[str]]:
    return [[entry.name for entry in ad.entries] for ad in classad_files.read_ad_file(text, "ces.ad")]


@pytest.mark.parametrize(
    "text",
    [
        "[a = 1; b = 2] [c = 3]",
        "[a = 1; b = 2;];\n\n[c = 3];\n",
        "{ [a = 1; b = 2], [c = 3] }",
        "# two CEs\n[a = 1; b = 2]\n// the second\n[c = 3]",
        "a = 1\nb = 2\n\nc = 3",
        "\n\na = 1\r\nb = 2\r\n\r\n\r\n# the second\r\nc = 3\r\n",
    ],
)
def test_several_ads_stand_in_one_file(text: str) -> None:
    assert names(text) == [["a", "b"], ["c"]]


def test_an_ad_without_brackets_is_one_if_semicolons_end_its_attributes() -> None:
    assert names("a = 1;\n\nb = 2;\nc = [x = 1; y = 2]\n;") == [["a", "b", "c"]]


def test_an_attribute_knows_its_value_its_text_and_its_line() -> None:
    [_, ad] = classad_files.read_ad_file(
        '[a = 1]\n[\n  b = {1, "x"};\n  c = [\n    d = other.A  >  2 ] ]', "ces.ad"
    )
    [b, c] = ad.entries
    assert (ad.line, b.line, c.line) == (2, 3, 4)
    assert (b.value, b.text) == ([1, "x"], '{1, "x"}')
    [d] = c.entries
    assert (d.name, d.line, d.text) == ("d", 5, "other.A  >  2")
    assert d.value == Unevaluated("other.A  >  2")


@pytest.mark.parametrize(
    "text",
    [
        "(a && b) && c",
        "((a) && (b)) && (c)",
        "((a + b) + c) + d > (1 + 2) + 3",
        "(a || b) ? c : d",
        "(a ?: b) ?: c",
        "-(a) * b",
        "(a).b",
        "({1, 2})[0] + x",
        "!(a && b) && c",
    ],
)
def test_the_text_of_an_expression_is_all_of_it(text: str) -> None:
    [value] = classad_files.parse_ad(f"X = {text};").values()
    assert str(value) == text


def test_in_the_old_syntax_a_line_is_an_attribute() -> None:
    [first, second] = classad_files.read_ad_file(
        'MyType = "Machine"\nStart = Memory > 5 && x\n\nA = -1', "ces.ad"
    )
    assert [(entry.name, entry.text, entry.line) for entry in first.entries] == [
        ("MyType", '"Machine"', 1),
        ("Start", "Memory > 5 && x", 2),
    ]
    assert (second.line, second.entries[0].value) == (4, -1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"there is no ad.*ces.ad:1"),
        ("# nothing\n", r"there is no ad"),
        ("[a = 1]\nb = 2", r"b where an ad should stand \(ces.ad:2:1\)"),
        ("[a = 1]\n[b = ;]", r"ces.ad:2:6"),
        ("[a = 1]\n[b = 2", r"ces.ad:2"),
        ("{[a = 1]\n", r"the end where } or an ad should stand"),
        ("[a = 1; A = 2]", r"A is named twice"),
        ("a = 1\nb = 2\nA = 3", r"A is named twice, the first time in line 1 \(ces.ad:3"),
        ("a = 1\nb c", r"c where = after the name b should stand \(ces.ad:2:3\)"),
        ('[a = 1]\n[b = "x]', r"not ended.*ces.ad:2"),
        ("[a = 1]\n[b = " + "(" * 200 + "]", r"nested deeper"),
        ("[a = 1" + "+1" * 5000 + "]", r"too many operations|nested"),
    ],
)
def test_what_is_no_ad_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        classad_files.read_ad_file(text, "ces.ad")


@pytest.mark.parametrize("text", ["a = 1\nb = 0x10", "[a = 1; b = {2, -0x10};]"])
def test_a_number_that_programs_read_differently_is_a_fault_of_its_attribute(text: str) -> None:
    [ad] = classad_files.read_ad_file(text)
    assert [(each.name, each.fault) for each in ad.entries] == [
        ("a", None),
        ("b", "0x10 is hexadecimal; numbers are written in decimal"),
    ]


def test_a_file_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classad_files, "MAX_FILE", 10)
    with pytest.raises(InvalidInput, match="14 characters, allowed are 10"):
        classad_files.read_ad_file("[a = 1] [b = 2", "ces.ad")
