import classad2
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from requirements.classad import evaluation
from requirements.classad.expression import Expression, canonical_text, parse_expression
from requirements.classad.parser import read_expression
from requirements.classad.restrictions import MAX_TERMS, parts_of
from requirements.classad.syntax_tree import SourceText, render
from requirements.errors import InvalidInput
from requirements.values import Value


def normal(text: str) -> str:
    return canonical_text(Expression(text=text))


def value(text: str, resource: dict[str, Value]) -> object:
    return evaluation.read(SourceText(text=text, path="x")).value(resource)


def has_error(text: str, resource: dict[str, Value]) -> bool:
    """Whether any part of the expression is Error, also one that is not evaluated."""
    tree = read_expression(SourceText(text=text, path="x"))
    return any(value(render(part), resource) is classad2.Value.Error for part in parts_of(tree))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("other.B && other.A", "a && b"),
        ("a > 1 && (b > 1 && a > 1)", "a > 1 && b > 1"),
        ("b == 1 || (a == 1 || b == 1)", "a == 1 || b == 1"),
        ("2 * 1024 <= other.MaxRAM", "maxram >= 2048"),
        ('"x" == other.A', 'a == "x"'),
        ("-3 < x", "x > -3"),
        ("b =?= a", "a =?= b"),
        ("true && a > 1 || false", "a > 1"),
        ("a > 1 || 2 > 1", "true"),
        ("a > 1 && false", "false"),
        ("!!(a > 1)", "a > 1"),
        ("!(a > 1)", "a <= 1"),
        ("!(a =?= undefined)", "a =!= undefined"),
        ("true ? a > 1 : b > 1", "a > 1"),
        ("c > 1 ? a > 1 : b > 1", "a > 1 && c > 1 || b > 1 && c <= 1"),
        ("c ? a > 1 : false", "a > 1 && c"),
        ("ifThenElse(c, a > 1, false)", "a > 1 && c"),
        ("memory >= 4e3", "memory >= 4000"),
        ("4000.0 <= memory", "memory >= 4000"),
        ("a == -2.0 || b != -0.0", "a == -2 || b != 0"),
        ("isUndefined(a)", "a =?= undefined"),
        ("!isUndefined(a)", "a =!= undefined"),
    ],
)
def test_the_usual_ways_to_write_the_same_have_one_form(text: str, expected: str) -> None:
    assert normal(text) == normal(expected) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a && a", "true && a"),  # 3 is not `true`, but counts as true
        ("!!a", "true && a"),
        ("b || a", "b || a"),  # a text that is evaluated makes `||` an Error
        ('!(real("nan") < a)', '!(a > real("nan"))'),
        ("!(c ? a > 1 : b > 1)", "!(c ? a > 1 : b > 1)"),
        ("c ? a : b", "c ? a : b"),
        ("1/0 == 1", "1 / 0 == 1"),
        ("5/2 == 2", "true"),
        ("4503599627370496 * 4503599627370496 == 0", "4503599627370496 * 4503599627370496 == 0"),
        ("a - (1 < 2)", "a - true"),
        ("a == (b == c)", "a == (b == c)"),
    ],
)
def test_what_would_not_be_the_same_stays(text: str, expected: str) -> None:
    assert normal(text) == expected


LEAVES = st.sampled_from(
    [
        *("n < 2", "2 >= n", "m > n", "n =?= m", 's == "a"', '"A" =!= s', "member(s, l)", "isUndefined(n)"),
        *("b", "c", "b", "c", "n", "s", "l", '"a"', "true", "false", "undefined", "0", "3", "-1", "2.5"),
        *("n < 2.0", "-1.0 == m", "n =?= 2.0", "2 * n >= 4e0", "n + 1", "1 + 1", 'real("nan") < n', "error"),
    ]
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda each: "({}) && ({})".format(*each)),
        st.tuples(inner, inner).map(lambda each: "({}) || ({})".format(*each)),
        st.tuples(inner, inner, inner).map(lambda each: "({}) || ({}) || ({})".format(*each)),
        inner.map("!({})".format),
        st.tuples(inner, inner, inner).map(lambda each: "({}) ? ({}) : ({})".format(*each)),
        st.tuples(inner, st.sampled_from(["==", "=?=", "=!=", "<", "+"]), inner).map(
            lambda each: "({}) {} ({})".format(*each)
        ),
        st.tuples(inner, inner).map(lambda each: "({}) ?: ({})".format(*each)),
        inner.map("isUndefined({})".format),
        st.tuples(inner, inner, inner).map(lambda each: "ifThenElse({}, {}, {})".format(*each)),
    ),
    max_leaves=10,
)
NUMBERS = st.sampled_from([None, 0, 1, 2, 2.0, 3, -1, 2.5])
TRUTHS = st.sampled_from([None, True, False, True, False, 0, 3, "a"])
RESOURCES = st.fixed_dictionaries(
    {
        "n": NUMBERS,
        "m": NUMBERS,
        "b": TRUTHS,
        "c": TRUTHS,
        "s": st.sampled_from([None, "a", "A", "b"]),
        "l": st.sampled_from([None, ("a", "b")]),
    }
).map(lambda each: {name: has for name, has in each.items() if has is not None})


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, RESOURCES)
@example("(b) || (c)", {"b": True, "c": "a"})
@example("!(false && s)", {"s": "a"})
@example("true && (b && b)", {"b": 3})
@example("(b ? n < 2 : 2 >= n) || c", {"n": 1, "c": True})
@example("isUndefined(b ? false : false)", {})
def test_the_normal_form_is_true_exactly_where_the_original_is(text: str, resource: dict[str, Value]) -> None:
    assume(not has_error(text, resource))
    assert (value(normal(text), resource) is True) is (value(text, resource) is True)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS)
def test_the_normal_form_of_a_normal_form_is_itself(text: str) -> None:
    assert normal(normal(text)) == normal(text)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS)
def test_both_orders_of_and_share_a_form(one: str, other: str) -> None:
    assert normal(f"({one}) && ({other})") == normal(f"({other}) && ({one})")


def test_nested_terms_that_would_be_too_many_in_a_row_stay_nested() -> None:
    half = " || ".join(f"a == {number}" for number in range(MAX_TERMS - 100))
    rest = " || ".join(f"b == {number}" for number in range(200))
    form = normal(f"({half}) || ({rest})")
    parse_expression(form)
    assert normal(form) == form


@pytest.mark.parametrize(
    "text",
    [
        "(" * 110 + "a > 1" + " ? b > 1 : c > 2)" * 110,
        "a > 1 ? b > 1 : " * 50 + "c > 1",
        "!" * 115 + "a",
        "*".join(["99999.0"] * 390) + " == x",
        " && ".join("(" + " || ".join(f"x{i}y{j} > {j}" for j in range(60)) + ")" for i in range(20)),
        f'(x == "{"a" * 19_000}" ? y > 1 : z > 1) ? b > 1 : c > 1',
    ],
)
@pytest.mark.timeout(300)
def test_a_hostile_expression_has_a_normal_form_soon(text: str) -> None:
    form = normal(text)
    parse_expression(form)
    assert normal(form) == form


def test_what_is_refused_is_refused_before_the_normal_form_is_built() -> None:
    with pytest.raises(InvalidInput):
        parse_expression(" || ".join(["a"] * (MAX_TERMS + 1)))
