import pytest

from cs_config.source import yaml_reader
from cs_config.source.sections import Leaf, to_plain


def problems(text: str | bytes) -> list[str]:
    return [str(problem) for problem in yaml_reader.read_yaml(text, "a.yaml").problems]


def test_every_name_knows_its_line() -> None:
    root = yaml_reader.read_yaml(
        "Resources:\n  Sites:\n    A:\n      MaxRAM: 4000\n      Tag: [x,\n        y]\n", "a.yaml"
    ).root
    site = root.section("Resources").section("Sites").section("A")
    assert site.line == 3
    assert site.entries["MaxRAM"] == Leaf(4000, 4)
    assert site.entries["Tag"] == Leaf(["x", "y"], 5)


def test_duplicate_names_are_refused_with_both_lines() -> None:
    assert problems("A:\n  x: 1\n  y: 2\n  x: 3\n") == [
        "A/x: named twice, the first time in line 2 (a.yaml:4)"
    ]


def test_names_that_differ_in_case_only_are_refused() -> None:
    assert problems("MaxRAM: 1\nmaxram: 2\n") == [
        "maxram: named twice, the other time as MaxRAM; case makes no difference (a.yaml:2)"
    ]


@pytest.mark.timeout(300)
def test_a_million_aliases_are_refused_at_once() -> None:
    text = "a: &a [x]\nb: [" + "*a, " * 1_000_000 + "]\n"
    found = problems(text)
    assert found[0] == "a: anchors (&a) are not supported: write the value out (a.yaml:1)"
    assert found[1] == "b: aliases (*a) are not supported: write the value out (a.yaml:2)"
    assert len(found) == 200


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "&a a: *a\n", "&top\na: *top\n"])
def test_a_cycle_by_anchors_is_refused(text: str) -> None:
    found = problems(text)
    assert any("anchors" in each for each in found)
    assert any("aliases" in each for each in found)


@pytest.mark.parametrize("bracket", ["[", "{", "a: [", "? "])
@pytest.mark.timeout(300)
def test_deep_nesting_is_refused_at_once(bracket: str) -> None:
    assert problems(bracket * 100_000)


def test_bytes_that_are_not_utf8_are_named_with_their_line() -> None:
    assert problems("A: 1\nB: Orléans\n".encode("latin-1")) == [
        "/: byte 0xe9 is not UTF-8, which the file has to be (a.yaml:2)"
    ]


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert to_plain(yaml_reader.read_yaml(b"\xef\xbb\xbfa: 1\n", "a.yaml").root) == {"a": 1}


@pytest.mark.parametrize("text", ["", b"", " \n\n", "\ufeff", "---\n", "# only a comment\n"])
def test_an_empty_file_says_what_is_needed(text: str | bytes) -> None:
    assert any("Resources, Operations" in each for each in problems(text))


def test_a_file_without_end_is_refused() -> None:
    assert "too many" in problems(b"#" * (yaml_reader.MAX_BYTES + 1))[0]


def test_a_syntax_error_shows_its_line() -> None:
    assert problems("A:\n  b: c: d\n") == [
        "/: not YAML: mapping values are not allowed in this context (a.yaml:2:7)\n    b: c: d"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "a list instead of sections"),
        ("word\n", "'word' instead of sections"),
        ("a: [{b: c}]\n", "a: a list holds texts, numbers and booleans only"),
        ("a: [[b]]\n", "a: a list holds texts, numbers and booleans only"),
        ("? [a, b]\n: c\n", "a name is a text"),
        ("? {a: b}\n: {c: d}\n", "a name is a text"),
        ("*a : b\n", "aliases (*a) are not supported"),
        ("<<: {a: 1}\n", "merge keys are not supported"),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "tags (tag:yaml.org,2002:python/object/apply:os.system)",
        ),
        ("a: !mine b\n", "tags (!mine) are not supported"),
        ("a: 1\n---\nb: 1\n", "a second document begins here"),
        ('a: "x\\0y"\n', "the character NUL is not allowed"),
        ("a: x\x01y\n", "character"),
        ("a: \ud800\n", "not Unicode"),
    ],
)
def test_what_is_no_configuration_is_refused_in_words(text: str, said: str) -> None:
    assert any(said in each for each in problems(text))


def test_reading_goes_on_after_a_fault() -> None:
    reading = yaml_reader.read_yaml("a: [{b: c}, d]\ne: *f\n? [g]\n: h\ni: 1\n", "a.yaml")
    assert len(reading.problems) == 3
    assert reading.root.entries["i"] == Leaf(1, 5)


def test_quoted_words_are_texts() -> None:
    assert to_plain(yaml_reader.read_yaml("a: '1'\nb: \"true\"\nc: |\n  10\n", "a.yaml").root) == {
        "a": "1",
        "b": "true",
        "c": "10\n",
    }
