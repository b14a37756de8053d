import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cs_config import validate
from cs_config.source import yaml_reader
from cs_config.source.sections import to_plain
from cs_config.source.yaml_reader import read_yaml
from cs_config.source.yaml_writer import to_yaml


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("4000", 4000),
        ("-1", -1),
        ("0", 0),
        ("4e3", 4000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_words_are_values(word: str, value: object) -> None:
    assert yaml_reader.resolve_word(word) == value
    assert type(yaml_reader.resolve_word(word)) is type(value)


@pytest.mark.parametrize(
    "word", ["NO", "yes", "off", "y", "12:30", "2020-01-01", "1.2.3", "-", ".", "4000MB", "+x", "="]
)
def test_words_that_yaml_1_1_would_change_stay_texts(word: str) -> None:
    assert yaml_reader.resolve_word(word) == word


@pytest.mark.parametrize(
    "word",
    ["010", "0x10", "0o17", "0b1", "1_000", ".inf", "-.inf", ".nan", "1e999", "9007199254740992", "9" * 5000],
)
def test_numbers_that_are_not_the_same_everywhere_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"number|range"):
        yaml_reader.resolve_word(word)


TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)
SCALARS = (
    TEXTS
    | st.sampled_from(["NO", "1e3", "010", "0x1", "12:30", ".inf", "null", "<<", "=", "1_0", "-", "true"])
    | st.booleans()
    | st.integers(-(2**53 - 1), 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
NAMES = st.text("abXY019._:@+-/ é", min_size=1, max_size=6)
TREES = st.recursive(
    st.dictionaries(NAMES, SCALARS | st.lists(SCALARS, max_size=3), max_size=3),
    lambda below: st.dictionaries(NAMES, below, max_size=3),
    max_leaves=6,
)


@given(tree=TREES)
def test_a_tree_that_is_written_reads_back_the_same(tree: dict[str, object]) -> None:
    reading = read_yaml(to_yaml({"a": tree}), "api")
    faults = [each for each in reading.problems if "case makes no difference" not in each.message]
    assert faults == []
    if not reading.problems:
        assert to_plain(reading.root) == {"a": tree}


@given(text=st.text("a1:-[]{}&*!|>'\"#%@,\n ?~.<", max_size=40))
def test_no_text_brings_the_reading_down(text: str) -> None:
    report = validate.report(text, "a.yaml")
    assert report.errors or report.configuration is not None


def test_the_example_reads_as_pyyaml_reads_it(osg_text: str) -> None:
    assert to_plain(read_yaml(osg_text, "resources.yaml").root) == yaml.load(
        osg_text, Loader=yaml.CSafeLoader
    )
