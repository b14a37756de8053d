from contextlib import suppress
from typing import Any

import classad2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from requirements.classad import classad_files
from requirements.classad.classad_files import parse_ad
from requirements.classad.syntax_tree import Literal, render
from requirements.errors import InvalidInput
from requirements.values import Unevaluated

GLITE_CE = """
[ id = "atlfarm006.mi.infn.it:2119/blah-pbs-long"; update_time = 1128351882; expiry_time = 300;
  info = [ GlueCEInfoGatekeeperPort = 2119; GlueCESEBindGroupSEUniqueID = { "gridftp05.cern.ch" };
    AuthorizationCheck = member(other.CertificateSubject,GlueCEAccessControlBaseRule)
      || member(strcat("VO:",other.VirtualOrganisation), GlueCEAccessControlBaseRule);
    CloseStorageElements = { [ mount = "/mn/SE2"; name = gridftp05.cern.ch ] };
    GlueHostNetworkAdapterOutboundIP = true; GlueInformationServiceURL = { undefined, undefined };
    GlueCEAccessControlBaseRule = { "VO:EGEE" } ] ]
"""


def refused(text: str) -> str:
    with pytest.raises(InvalidInput) as error:
        parse_ad(text, "job.jdl", "JDL")
    return str(error.value)


def test_a_job_without_brackets_is_read() -> None:
    text = """
    # a usual job
    JobName = "test_%n";
    Parameters = {"first", "second"};   // two
    Parameters.Seed = {1, -2, +3.5};
    ParameterStart = 0;
    Arguments = "%s" " %(Seed)s";
    Debug = TRUE; Nothing = Undefined;
    """
    assert parse_ad(text) == {
        "JobName": "test_%n",
        "Parameters": ["first", "second"],
        "Parameters.Seed": [1, -2, 3.5],
        "ParameterStart": 0,
        "Arguments": "%s %(Seed)s",
        "Debug": True,
        "Nothing": None,
    }


def test_a_computing_elements_ad_is_read() -> None:
    info: Any = parse_ad(GLITE_CE)["info"]
    assert info["CloseStorageElements"] == [{"mount": "/mn/SE2", "name": Unevaluated("gridftp05.cern.ch")}]
    assert info["GlueInformationServiceURL"] == [None, None]
    assert info["AuthorizationCheck"].text.startswith("member(other.CertificateSubject,")
    assert info["AuthorizationCheck"].text.endswith("GlueCEAccessControlBaseRule)")


@pytest.mark.parametrize("_time", ["first", "again"])
def test_parts_of_lists_keep_their_place_also_when_the_value_was_read_before(_time: str) -> None:
    ad = parse_ad('A = {1, "b"};\n  B = ({other.X, 2});\n C = -other.X + 1 ;', "job.jdl")
    assert ad == {"A": [1, "b"], "B": [Unevaluated("other.X"), 2], "C": Unevaluated("-other.X + 1")}
    b: Any = ad["B"]
    c: Any = ad["C"]
    assert [(each.line, each.column) for each in (b[0], c)] == [(2, 9), (3, 6)]


def test_an_expression_stays_as_it_is_written_and_knows_its_place() -> None:
    ad = parse_ad('A = 1;\n  Requirements = (other.X > 3) /* a */ &&\n other.Y == "b;]" ;', "job.jdl")
    expression = ad["Requirements"]
    assert isinstance(expression, Unevaluated)
    assert expression.text == '(other.X > 3) /* a */ &&\n other.Y == "b;]"'
    assert (expression.file, expression.line, expression.column) == ("job.jdl", 2, 18)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A = 1\nB = 2", "JDL: B where a semicolon after the value of A should stand (job.jdl:2:1)"),
        ("A = 1;\na = 2;", "JDL: a is named twice, the first time as A (job.jdl:2:1)"),
        ("A = [ b = 1; B = 1 ]", "JDL: B is named twice, the first time as b (job.jdl:1:14)"),
        ("A = 0x10", "JDL: 0x10 is hexadecimal; numbers are written in decimal (job.jdl:1:5)"),
        ("A = {1, inf}", "JDL: inf is not a number to compare with (job.jdl:1:9)"),
        ("A = NaN", "JDL: NaN is not a number to compare with (job.jdl:1:5)"),
        ("[ A = 1", "JDL: the end where ] should stand (job.jdl:1:8)"),
        ("[ A = 1 ] ]", "JDL: ] where the end should stand (job.jdl:1:11)"),
        ("A = {1,}", "JDL: } where a value should stand (job.jdl:1:8)"),
        ("A == 1", "JDL: == where = after the name A should stand (job.jdl:1:3)"),
        ("true = 1", "JDL: true where a name should stand (job.jdl:1:1)"),
        ("A.b. = 1", "JDL: = where a name after the dot should stand (job.jdl:1:6)"),
        (
            "A = other.x and 1",
            "JDL: and where a semicolon after the value of A should stand, did you mean &&?",
        ),
        ("A = x ? 1", "JDL: the end where : of the condition should stand (job.jdl:1:10)"),
        ("A = is", "JDL: is where a value should stand (job.jdl:1:5)"),
        (" \n", "JDL: there is nothing to read (job.jdl:2:1)"),
        ("/bin/ls", "JDL: / where a name should stand (job.jdl:1:1)"),
        ("A = " + "{" * 200, "JDL: nested deeper than 120 levels (job.jdl:1:"),
        ("A = " + "[a=" * 200, "JDL: nested deeper than 120 levels (job.jdl:1:"),
        ("A = x" + "[0]" * 200, "JDL: nested deeper than 120 levels (job.jdl:1:"),
        ("A = x" + ".y" * 200, "JDL: nested deeper than 120 levels (job.jdl:1:"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, message: str) -> None:
    assert refused(text).startswith(message)


@pytest.mark.parametrize("word", ["undefined", "error", "true"])
def test_a_word_of_the_language_in_quotes_is_a_text(word: str) -> None:
    assert parse_ad(f'[ A = "{word}"; B = {{ "{word}" }} ]') == {"A": word, "B": [word]}


def test_an_error_shows_the_line() -> None:
    assert refused("A = 1;\n  B = 08;").endswith("\n    B = 08;")


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name.lower() not in {"is", "isnt", "true", "false", "undefined", "error"}
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
SCALARS = st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e300, 1e300) | TEXTS
ADS = st.recursive(
    st.dictionaries(NAMES, SCALARS, max_size=4),
    lambda ads: st.dictionaries(NAMES, SCALARS | ads | st.lists(SCALARS | ads, max_size=3), max_size=4),
    max_leaves=8,
)


def without_case(ad: dict[str, Any]) -> dict[str, Any]:
    """The library minds no case of names, so neither may a generated ad."""
    return {
        name: value
        for place, (name, value) in enumerate(ad.items())
        if name.lower() not in [other.lower() for other in list(ad)[:place]]
    }


def deeply(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: deeply(item) for name, item in without_case(value).items()}
    return [deeply(item) for item in value] if isinstance(value, list) else value


@given(ADS)
def test_what_the_library_writes_is_read_as_what_it_means(raw: dict[str, Any]) -> None:
    ad = deeply(raw)
    assert parse_ad(str(classad2.ClassAd(ad))) == _as_printed(ad)


def _as_printed(value: Any) -> Any:
    """The library prints reals with 16 digits only, and sorts nothing that matters here."""
    if isinstance(value, dict):
        return {name: _as_printed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_printed(item) for item in value]
    return float(f"{value:.15E}") if isinstance(value, float) else value


SIGNS = st.sampled_from(
    [
        *("a", "B", "a.b", "=", ";", "[", "]", "{", "}", ",", "1", "2.5", '"t"', "'q'", "(", ")", "&&", "||"),
        *("?", ":", "==", "<", "-", "!", ".", "is", "true", "error", "member", "\n", "/* c */", "// d\n"),
        *("# e", "1*1+1<<1<1==1&1^1|1&&1||"),
    ]
)


@given(st.lists(SIGNS, max_size=30).map(" ".join))
def test_any_words_are_an_ad_or_refused(text: str) -> None:
    with suppress(InvalidInput):
        parse_ad(text)


@given(st.text())
def test_any_text_is_an_ad_or_refused(text: str) -> None:
    try:
        parse_ad(text)
    except InvalidInput as error:
        str(error).encode()


@pytest.mark.parametrize(
    "text",
    ["A = " + "1+" * 5_000 + "1", "A = {" + "x || " * 5_000 + "x}", "A = x ?: " + "y ?: " * 4_000 + "z"],
    ids=range(3),
)
def test_what_would_overrun_the_librarys_stack_never_reaches_it(text: str) -> None:
    assert "too many operations inside each other" in refused(text)


def test_an_ad_of_more_than_the_allowed_size_is_refused_unread() -> None:
    assert "1000001 characters, allowed are 1000000" in refused(";" * 1_000_001)


@pytest.mark.parametrize(
    "text",
    [
        "A = " + "1+" * 300_000 + "1",
        "A = {" + "{}," * 300_000 + "{}}",
        "A = " + '""' * 400_000,
        ";".join(f"A{number} = 1" for number in range(90_000)),
        "A = " + "/*" * 400_000,
    ],
    ids=range(5),
)
def test_what_would_take_long_to_read_is_refused_where_it_becomes_too_much(text: str) -> None:
    assert "too long, allowed are 12000 names, numbers, operators and brackets (job.jdl:1:" in refused(text)


def test_a_brace_in_a_text_with_an_escape_does_not_end_the_list() -> None:
    assert parse_ad(r'A = {"", "}\134"}; B = 1') == {"A": ["", "}\\"], "B": 1}


@given(st.lists(st.text(alphabet='a ,"\\{}/*#\n', max_size=6), max_size=6))
def test_a_list_of_texts_is_read_as_any_other_list(texts: list[str]) -> None:
    written = ", ".join(render(Literal(value=text, start=0, end=0)) for text in texts)
    assert parse_ad(f"A = {{{written}}}; B = 1") == {"A": texts, "B": 1}
    assert parse_ad(f"A = {{1, {written or 2}}}; B = 1") == {"A": [1, *(texts or [2])], "B": 1}


def test_what_follows_a_list_of_texts_has_its_place() -> None:
    assert "job.jdl:2:" in refused('A = {"x", "y"};\nB = 0x10')


def test_long_lists_are_read() -> None:
    names = [f"value {number}" for number in range(10_000)]
    written = ", ".join(f'"{name}"' for name in names)
    assert parse_ad(f"Parameters = {{{written}}}") == {"Parameters": names}


def test_trees_of_long_values_are_not_kept() -> None:
    classad_files._find_fault.cache_clear()
    for number in range(3):
        parse_ad(f'Short = strcat("{number}"); Long = strcat("{number}{"x" * 100_000}");')
    assert classad_files._find_fault.cache_info().currsize == 3
