"""Expressions over tags: their normal form, and what they are true of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from requirements.diracx import tag_expression
from requirements.diracx.tag_expression import MOST_TEXT, TagExpressionError, holds, normalise, parse

TAGS = st.sampled_from(["a", "b", "os:el9"])
expressions = st.recursive(
    TAGS,
    lambda inner: st.one_of(
        inner.map("~({})".format),
        st.tuples(inner, st.sampled_from(["&", " | "]), inner).map("".join),
        inner.map("( {} )".format),
    ),
    max_leaves=8,
)


@given(expressions, st.frozensets(TAGS))
def test_the_normal_form_is_true_of_the_same_tags(text: str, tags: frozenset[str]) -> None:
    assert holds(parse(normalise(text)), tags) == holds(parse(text), tags)
    assert normalise(normalise(text)) == normalise(text)
    assert tag_expression.list_tags(normalise(text)) == tag_expression.list_tags(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("b&a", "a & b"),
        ("a|(b & a)|a", "a | a & b"),
        ("(a | b) & ~~c", "(a | b) & c"),
        ("~(a & b)", "~(a & b)"),
        ("((a))", "a"),
    ],
)
def test_spellings_have_one_normal_form(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ends where a tag, ~ or ( is needed"),
        ("a &", "ends where a tag, ~ or ( is needed"),
        ("a b", "has 'b' at character 3, where & or | is needed"),
        ("(a | b", "ends where & or | or ) is needed"),
        ("a)", "has ')' at character 2, where & or | is needed"),
        ("a & -b", "has '-' at character 5, where a tag, ~ or ( is needed"),
        ("é", "has 'é' at character 1, where a tag, ~ or ( is needed"),
        ("(" * 60 + "a" + ")" * 60, "is nested too deeply, allowed are 50 levels"),
        ("a & " * MOST_TEXT + "a", f"has {4 * MOST_TEXT + 1} characters, allowed are {MOST_TEXT}"),
    ],
)
def test_anything_else_is_refused_at_its_place(text: str, message: str) -> None:
    with pytest.raises(TagExpressionError) as refused:
        normalise(text)
    assert str(refused.value) == message


def test_a_normal_form_is_never_too_long_to_be_read_again() -> None:
    pairs = [
        first + second for first in "abcdefghijklmnop" for second in "0123456789abcdefghijklmnopqrstuvwxyz"
    ]
    fitting = "|".join(pairs)
    assert len(fitting) < len(normalise(fitting)) < MOST_TEXT
    assert normalise(normalise(fitting)) == normalise(fitting)
    longer = "|".join(f"{first}{second}" for first in pairs for second in "01")
    with pytest.raises(TagExpressionError, match=f"has [0-9]+ characters, allowed are {MOST_TEXT}"):
        normalise(longer[: MOST_TEXT - 1])


@pytest.mark.parametrize(
    ("text", "requires"),
    [
        ("arch:ppc64le", True),
        ("~arch:ppc64le", False),
        ("~~arch:ppc64le", True),
        ("os:el9 & (arch:riscv64 | arch:ppc64le)", True),
        ("os:el9 | arch:ppc64le", False),
        ("~(os:el9 | ~arch:ppc64le)", True),
        ("~(arch:ppc64le & os:el9)", False),
        ("os:el9", False),
    ],
)
def test_a_tag_is_required_where_nothing_else_makes_the_expression_true(text: str, requires: bool) -> None:
    assert tag_expression.requires_one(text, lambda tag: tag.startswith("arch:")) is requires
