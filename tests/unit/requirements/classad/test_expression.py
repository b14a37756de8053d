import re

import classad2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from requirements.classad import evaluation, parser
from requirements.classad.expression import Expression, canonical_text, parse_expression
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import parts_of
from requirements.classad.syntax_tree import SourceText, render
from requirements.errors import InvalidInput
from requirements.values import Value

GLITE = (
    "other.GlueHostBenchmarkSI00 > 500"
    " ? other.GlueCEPolicyMaxCPUTime > 1000 : other.GlueCEPolicyMaxCPUTime > 2000"
)


def value(text: str, **resource: Value) -> object:
    return evaluation.read(SourceText(text=text, path="x")).value(resource)


def refused(text: str) -> str:
    with pytest.raises(InvalidInput) as error:
        parse_expression(text)
    return str(error.value)


@pytest.mark.parametrize(
    ("speed", "time", "true"),
    [(400, 1500, False), (400, 2500, True), (600, 1500, True), (600, 500, False), (None, 9999, False)],
)
def test_the_expression_of_glite_is_evaluated(speed: int | None, time: int, true: bool) -> None:
    resource: dict[str, Value] = {"gluecepolicymaxcputime": time}
    if speed is not None:
        resource["GlueHostBenchmarkSI00"] = speed
    assert evaluation.is_true(GLITE, resource) is true


@pytest.mark.parametrize("scope", ["other.", "OTHER.", "TARGET.", "target . ", ""])
def test_the_resource_has_three_spellings(scope: str) -> None:
    assert value(f"{scope}MaxRAM >= 2000", maxram=2048) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('other.Model == "INTEL xeon"', True),
        ('other.Model =?= "INTEL xeon"', False),
        ("other.Absent > 1", classad2.Value.Undefined),
        ("other.Absent =?= undefined", True),
        ("isUndefined(other.Absent)", True),
        ("other.Absent > 1 || other.Cores == 8", True),
        ("other.Absent > 1 && other.Cores == 7", False),
        ('other.Cores + "x" == 1', classad2.Value.Error),
        ("other.Cores == 8.0", True),
        ('member("B", other.Tags)', True),
        ('identicalMember("B", other.Tags)', False),
        ('other.Tags == "a"', classad2.Value.Error),
        ("size(other.Tags) == 2", True),
        ('other.Tags[0] == "a"', True),
        ("other.Cores > 4 ? other.Outbound : false", True),
        ("other.Absent ?: true", True),
        ('stringListMember("a", "b,a")', True),
        ('strcat("VO:", other.Model) == "vo:intel xeon"', True),
        ('versionGE("3.10", "3.9")', True),
        ("other.'a name' == 1", True),
        ("quantize(other.Cores, 3) == 9", True),
        ("other.Cores is 8", True),
        ("other.Cores isnt 8", False),
        ("5/2 == 2 && 5.0/2 == 2.5", True),
        ("1/0 == 1", classad2.Value.Error),
        ("other.expression =?= undefined", True),
        ('other.Model // the model\n == /* is */ "intel xeon"', True),
        ("other.N\u00e9", None),
    ],
)
def test_expressions_mean_what_the_library_says(text: str, expected: object) -> None:
    resource: dict[str, Value] = {
        "Model": "Intel Xeon",
        "Cores": 8,
        "Tags": ("a", "b"),
        "Outbound": True,
        "a name": 1,
    }
    if expected is None:
        refused(text)
        return
    assert value(text, **resource) is expected


@pytest.mark.parametrize("text", ['substr("\u00e9", 0, 1)', 'regexp("a", substr("\u00e9", 0, 1))'])
def test_half_a_character_is_an_error(text: str) -> None:
    assert value(text) is classad2.Value.Error


def test_names_and_texts_beyond_ascii_compare_in_their_composed_form() -> None:
    assert evaluation.is_true("other.'caf\u00e9' == \"cr\u00e8me\"", {"cafe\u0301": "cre\u0300me"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time() > 1", "the function time is not allowed"),
        ("random(5) > 1", "the function random is not allowed"),
        ('eval("1")', "the function eval is not allowed"),
        ('userHome("root") == "x"', "the function userHome is not allowed"),
        ('join(",", split("a b"))', "the function join is not allowed"),
        ("CurrentTime > 1", "CurrentTime is not an attribute of the resource, allowed is other.<Name>"),
        ("other.CurrentTime > 1", "other.CurrentTime is not an attribute of the resource"),
        ("MY.Memory > 1", "MY.Memory is not an attribute of the resource"),
        ("self.x", "self.x is not an attribute"),
        ("parent.x", "parent.x is not an attribute"),
        (".x", ".x is not an attribute"),
        ("other", "other is not an attribute"),
        ("other.a.b", "other.a.b is not an attribute"),
        ("size(TARGET) > 1", "TARGET is not an attribute"),
        ("[a = 1].a == 1", "a record is not allowed here"),
        ("isUndefnd(other.x)", "the function isUndefnd is not allowed, did you mean isUndefined?"),
        ("member(1)", "member has 1 arguments, allowed are 2"),
        ("substr(other.x)", "substr has 1 arguments, allowed are 2 to 3"),
        ("strcat()", "strcat has 0 arguments, allowed are 1 or more"),
        ("other.x = 1", "= where the end should stand, did you mean ==?"),
        ("not other.x", "other where the end should stand"),
        ("other.x or other.y", "or where the end should stand, did you mean ||?"),
        ("other.x > 0x10", "0x10 is hexadecimal"),
        ("other.x > 99999999999999999999", "is out of range"),
        ("other.x < inf", "inf is not a number"),
        ("1]; [b = 2", "] where the end should stand"),
        ("true] ; x = [y = 1", "] where the end should stand"),
        ("", "the end where a value should stand"),
        ('regexp(other.x, "a")', "regexp: pattern and options must be written out as text"),
        ('regexp("a", "b", other.x)', "regexp: pattern and options must be written out as text"),
        ('regexp(strcat("a", "b"), other.x)', "regexp: pattern and options must be written out as text"),
        (f'regexp("{"a" * 201}", other.x)', "regexp: the pattern has 201 characters, allowed are 200"),
        ('regexp("(a", other.x)', "regexp: the pattern is refused: missing ): (a"),
        ('regexp("(?=a)b", other.x)', "regexp: the pattern is refused: invalid perl operator"),
        ('regexp("(a)\\\\1", other.x)', "regexp: the pattern is refused: invalid escape sequence"),
        ('regexpMember("(?<!a)b", other.x)', "regexpMember: the pattern is refused"),
        ('regexp("a", other.x, "x")', "regexp: the options are 'x', allowed are i, m and s"),
        ('regexp("(((.{9}){9}){9}){9}", other.x)', "regexp: the pattern is refused"),
    ],
)
def test_what_a_user_may_not_evaluate_is_refused_with_the_reason(text: str, message: str) -> None:
    assert message in refused(text)


def test_every_forbidden_part_is_named_with_its_place() -> None:
    with pytest.raises(InvalidInput) as error:
        parse_expression("time() > 1 &&\n  MY.x && random()", file="job.jdl", line=7, column=16)
    places = [(problem.line, problem.column) for problem in error.value.problems]
    assert places == [(7, 16), (8, 3), (8, 11)]
    assert {problem.file for problem in error.value.problems} == {"job.jdl"}


def terms(count: int, term: str = "other.x == {}") -> str:
    return " || ".join(term.format(number) for number in range(1, count + 1))


def test_as_many_terms_in_a_row_as_allowed_are_evaluated() -> None:
    assert value(terms(399), x=399) is True
    assert value(terms(399, "(other.x == {})"), x=1) is True


def test_more_terms_are_refused() -> None:
    assert "400 terms in a row, allowed are 399" in refused(terms(400))


def test_member_takes_any_number_of_values() -> None:
    items = ", ".join(str(number) for number in range(2000))
    assert value(f"member(other.x, {{{items}}})", x=1999) is True


@pytest.mark.parametrize(
    "template", ["{}true{}", "{}other.x{} == 1", "!{}false{}", "{}1 == 1 ? true : false{}"]
)
def test_parentheses_nest_as_deep_as_allowed(template: str) -> None:
    assert value(template.format("(" * 110, ")" * 110), x=1) is True


DEEP = [
    "(" * 121 + "true" + ")" * 121,
    "(" * 5_900,
    "!" * 121 + "true",
    "-" * 5_900 + "1",
    "{" * 121 + "1" + "}" * 121,
    "int(" * 121 + "1" + ")" * 121,
    "true ? " * 121 + "true" + " : 1" * 121,
    "false ? 1 : " * 121 + "true",
    "other.x" + "[0]" * 121,
    "other" + ".x" * 4_000,
    "(1 || " * 200 + "1" + ")" * 200,
    "(" * 118 + "1" + "*1+1<<1<1==1&1^1|1&&1||1)" * 118,
    "[a = " * 200 + "1" + "]" * 200,
]


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_deeper_nesting_is_refused(text: str) -> None:
    assert "nested deeper than 120 levels" in refused(text)


def test_a_text_of_more_than_the_allowed_size_is_refused_unread() -> None:
    assert "characters, allowed are 20000" in refused("(" * 20_001)


@pytest.mark.parametrize(
    "text",
    [
        " + ".join(["other.x"] * 400) + " > 1",
        " || ".join(["x + 1 + 1 + 1 == 5"] * 399),
        "1 + (" * 59 + " || ".join(["false"] * 399) + ")" * 59,
        " - ".join(["1"] * 2400),
        " ?: ".join(["other.y"] * 399),
    ],
    ids=range(5),
)
def test_what_the_library_cannot_descend_is_refused(text: str) -> None:
    assert "too many operations inside each other" in refused(text)


DEEPEST = [
    " + ".join(["other.x"] * 399) + " == 399",
    " || ".join(["other.x == 2"] * 398 + ["other.x == 1"]),
    "(" * 100 + " && ".join(["other.x == 1"] * 298) + ")" * 100,
    " && ".join(["!(other.x == 2)"] * 396),
    "other.x == 1 && " * 20 + "(" * 50 + " || ".join(["false"] * 320 + ["true"]) + ")" * 50,
    " && ".join(["other.x == (1 ? 1 : 2)"] * 390),
    " && ".join(["member(other.x, {1 + 0 * 3})"] * 390),
]


@pytest.mark.parametrize("text", DEEPEST, ids=range(len(DEEPEST)))
def test_what_is_accepted_is_never_too_deep_for_the_library(text: str) -> None:
    assert value(text, x=1) is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('regexp("^lcg\\\\..*", other.Site, "i")', True),
        ('regexp("cern$", other.Site)', False),
        ('regexp("a.b", "a\\nb")', False),
        ('regexp("a.b", "a\\nb", "s")', True),
        ('regexp("^b", "a\\nb", "m")', True),
        ('regexp("x", other.Absent)', classad2.Value.Undefined),
        ('regexp("x", 5)', classad2.Value.Error),
        ('regexp("x", other.Tags)', classad2.Value.Error),
        ('regexp("A", toUpper(other.Site)) || regexp("CERN", other.Site)', True),
        ('regexp("^x", strcat("x", string(regexp("CERN", other.Site))))', True),
        ('regexp("true", string(regexp("CERN", other.Site)))', True),
        ('regexpMember("^GP", other.Tags)', True),
        ('regexpMember("^Q", other.Tags)', False),
        ('regexpMember("^C", {other.Site, other.Absent})', classad2.Value.Undefined),
        ('regexpMember("^L", {other.Absent, other.Site})', True),
        ('regexpMember("^L", {5, other.Site})', classad2.Value.Error),
        ('regexpMember("^L", other.Absent)', classad2.Value.Undefined),
        ('regexpMember("^L", other.Site)', classad2.Value.Error),
        ('other.regexp_0 =?= undefined && regexp("CERN", other.Site)', True),
        ('regexp("\u00e9", "caf\u00e9")', True),
        ('regexp("^cafe\u0301$", "caf\u00e9")', True),
    ],
)
def test_regular_expressions_are_matched(text: str, expected: object) -> None:
    assert value(text, Site="LCG.CERN.ch", Tags=("SSD", "GPU")) is expected


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
@pytest.mark.timeout(300)
def test_a_pattern_that_backtracks_for_ever_elsewhere_answers_at_once(pattern: str) -> None:
    text = " || ".join([f'regexp("{pattern}", other.x)'] * 20)
    assert value(text, x="a" * 4000 + "!") is False


def test_more_regular_expressions_than_allowed_are_refused() -> None:
    assert "more than 20 regular expressions" in refused(" || ".join(['regexp("a", other.x)'] * 21))


def test_a_text_too_long_to_match_is_an_error() -> None:
    assert value('regexp("a", other.x)', x="a" * 5000) is classad2.Value.Error


# The grammar and the rendering against the library: what both read must mean the same.

NUMBERS = st.sampled_from(["0", "1", "2", "3", "7", "2.5", ".5", "1e2"])
TEXTS = st.sampled_from(['"a"', '"A"', '"b\\"c"', '"x\\ny"', '""', '"a" "b"'])
NAMES = st.sampled_from(["x", "y", "t", "u", "other.x", "TARGET.Y", "'odd name'"])
LITERALS = st.sampled_from(["true", "FALSE", "undefined", "Error"])
ATOMS = NUMBERS | TEXTS | NAMES | LITERALS
OPERATORS = st.sampled_from(
    [
        *("||", "&&", "|", "^", "&", "==", "!=", "=?=", "=!=", "is", "isnt", "<", "<=", ">", ">="),
        *("<<", ">>", ">>>", "+", "-", "*", "/", "%"),
    ]
)
CALLS = st.sampled_from(["isUndefined({})", "size({})", "member(1, {})", "ifThenElse({}, 1, 2)", "{{{}, 1}}"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, OPERATORS, inner).map(" ".join),
        st.tuples(inner, OPERATORS, inner).map(" ".join),
        st.tuples(inner, OPERATORS, inner, OPERATORS, inner).map(" ".join),
        st.tuples(st.sampled_from(["!", "-", "+", "~"]), inner).map(" ".join),
        inner.map("({})".format),
        st.tuples(inner, inner, inner).map(lambda each: "{} ? {} : {}".format(*each)),
        st.tuples(ATOMS, inner).map(lambda each: "{} ?: ({})".format(*each)),
        st.tuples(CALLS, inner).map(lambda each: each[0].format(each[1])),
        st.tuples(inner, inner).map(lambda each: "({})[{}]".format(*each)),
    ),
    max_leaves=12,
).filter(lambda text: not re.search(r"(?:<<|>>)[ (+-]*-", text))  # a shift by less than 0 is refused
RESOURCE: dict[str, Value] = {"X": 3, "y": "a", "T": True, "odd name": 2.5}


def as_the_library_reads(text: str) -> object:
    """The text as it is written, with its own scopes, evaluated by the library alone."""
    ad = classad2.ClassAd(RESOURCE)
    return classad2.ExprTree(text.replace("other.", "TARGET.")).eval(classad2.ClassAd(), ad)


@given(EXPRESSIONS)
@example("1 ? 2 : 3 ? 4 : 5")
@example("- - 1")
@example("-undefined ?: 5 ?: 6 + 1")
@example("u ?: -1 ? y : x")
@example("1 < 2 < 3 == true")
@example("(1 - 2) - (3 - 4)")
def test_a_text_means_to_us_what_it_means_to_the_library(text: str) -> None:
    assert _answer(value(text, **RESOURCE)) == _answer(as_the_library_reads(text))


def _answer(value: object) -> str:
    """A list is as good as its length: the library leaves its items unevaluated."""
    return f"list of {len(value)}" if isinstance(value, list) else repr(value)


@given(EXPRESSIONS)
def test_the_canonical_text_reads_as_the_same_tree(text: str) -> None:
    once = canonical_text(Expression(text=text))
    assert canonical_text(Expression(text=once)) == once
    tree = read_expression(SourceText(text=text, path="x"))
    assert read_expression(SourceText(text=render(tree), path="x")) == read_expression(
        SourceText(text=render(read_expression(SourceText(text=render(tree), path="x"))), path="x")
    )


@given(EXPRESSIONS)
def test_expressions_of_one_pool_are_true_of_the_same(text: str) -> None:
    tree = read_expression(SourceText(text=text, path="x"))
    if any(value(render(part), **RESOURCE) is classad2.Value.Error for part in parts_of(tree)):
        return
    same = canonical_text(Expression(text=text))
    assert (value(same, **RESOURCE) is True) is (value(text, **RESOURCE) is True)


WORDS = st.sampled_from(
    [
        *("other.x", "TARGET", "MY.y", "1", "2.5", '"t"', "(", ")", "&&", "||", "?", ":", "==", "<", "-"),
        *("!", ".", "is", "member(", "regexp(", "time(", "{", "}", ",", "[", "]", "true", "error", "'q'"),
        *("=", ";", "'"),
    ]
)


@given(st.lists(WORDS, max_size=20).map(" ".join) | st.text(max_size=50))
def test_any_text_is_evaluated_or_refused(text: str) -> None:
    try:
        read = evaluation.read(SourceText(text=text, path="x"))
    except InvalidInput as error:
        str(error).encode()
        return
    read.value(RESOURCE)


def test_a_text_is_parsed_and_compiled_once_by_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "other.ParsedOnce >= 3000 && other.Disk < 5"
    parsed: list[str] = []
    trees: list[str] = []

    def parse(source: SourceText, parse=parser._parse):  # type: ignore[no-untyped-def]
        parsed.append(source.text)
        return parse(source)

    def build(node: object, text: str, *others: object, build=evaluation._build_program):  # type: ignore[no-untyped-def]
        trees.append(text)
        return build(node, text, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(parser, "_parse", parse)
    monkeypatch.setattr(evaluation, "_build_program", build)
    for _ in range(2):
        asked = parse_expression(text, file="job.jdl", line=7, own=lambda _: None)
        canonical_text(asked)
        evaluation.is_true(asked.text, {})
    assert parsed.count(text) == 1
    assert trees.count(text) == 1


def test_the_second_time_too_a_problem_has_its_position() -> None:
    for line in (3, 8):
        with pytest.raises(InvalidInput) as error:
            parse_expression("other.Memory >= && 5", file="job.jdl", line=line)
        assert error.value.problems[0].line == line
