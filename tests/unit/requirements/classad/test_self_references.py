from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from requirements.canonical import pool_id
from requirements.classad import match_expression
from requirements.classad.evaluation import read
from requirements.classad.expression import parse_expression
from requirements.classad.syntax_tree import SourceText
from requirements.errors import InvalidInput
from requirements.values import Unevaluated, Value


def substituted(text: str, **own: object) -> str:
    by_name = {name.lower(): value for name, value in own.items()}
    return parse_expression(text, own=lambda name: by_name.get(name.lower())).text


def refused(text: str, **own: object) -> str:
    with pytest.raises(InvalidInput) as error:
        substituted(text, **own)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("other.MaxRAM > MY.Memory", "other.MaxRAM > 2000"),
        ("other.MaxRAM > self . MEMORY", "other.MaxRAM > 2000"),
        ("other.A -MY.Low", "other.A -(-5)"),
        ("other.OS == (My.OS)", 'other.OS == "el9"'),
        ("member(other.OS, MY.Several)", 'member(other.OS, {"a", 1, true})'),
        ("isUndefined(MY.Nothing)", "isUndefined(undefined)"),
        ("other.A > MY.Twice * 2", "other.A > (2000 + 2000) * 2"),
        ("Memory > 'MY'.Memory", "Memory > 2000"),
        ('"MY.Memory" == other.A // MY.Memory', '"MY.Memory" == other.A // MY.Memory'),
        ("other.X>1&&Memory<2", "other.X>1&&Memory<2"),
    ],
)
def test_what_is_asked_of_the_job_itself_is_put_in(text: str, seen: str) -> None:
    twice = Unevaluated("MY.Memory + self.memory")
    assert substituted(text, Memory=2000, Low=-5, OS="el9", Several=("a", 1, True), Twice=twice) == seen


def test_the_text_of_the_user_is_kept_beside() -> None:
    asked = parse_expression("other.A > MY.B", own={"B": 1}.get)
    assert (asked.text, asked.original_text) == ("other.A > 1", "other.A > MY.B")
    plain = parse_expression("other.A > 1", own={"B": 1}.get)
    assert (plain.text, plain.original_text) == ("other.A > 1", "other.A > 1")
    assert pool_id(asked, "cms") == pool_id(plain, "cms")


def test_without_a_description_nothing_of_its_own_is_in_scope() -> None:
    with pytest.raises(InvalidInput, match=r"MY\.B is not an attribute of the resource"):
        parse_expression("other.A > MY.B")


def test_what_refers_to_itself_is_refused_with_the_way() -> None:
    ring = {"A": Unevaluated("MY.B + 1", "x.jdl", 3), "B": Unevaluated("2 * self.a", "x.jdl", 4)}
    assert "B: refers to itself: Requirements -> A -> B -> a (x.jdl:4:5)" in refused("other.X > MY.A", **ring)
    own = Unevaluated("other.X > 1 && MY.Requirements")
    assert "refers to itself: Requirements -> Requirements" in refused(own.text, Requirements=own)


def test_a_long_way_is_refused() -> None:
    chain = {f"A{step}": Unevaluated(f"MY.A{step + 1}") for step in range(20)}
    assert "more than 10 expressions refer to each other" in refused("MY.A0", **chain)


def test_what_would_grow_without_bounds_is_refused() -> None:
    twice = {f"A{step}": Unevaluated(f"MY.A{step + 1} + MY.A{step + 1}") for step in range(8)}
    assert "more than 20000 characters" in refused(" + ".join(["MY.A0"] * 300), **twice, A8="x" * 100)


def test_of_a_long_chain_no_more_is_read_than_an_expression_may_have() -> None:
    read: list[str] = []

    def own(name: str) -> Unevaluated:
        read.append(name)
        return Unevaluated(" + ".join([f"MY.a{int(name[1:]) + 1}"] * 1500))

    with pytest.raises(InvalidInput, match="allowed are 6000 names"):
        parse_expression("MY.a0 > 0", own=own)
    assert read == ["a0", "a1"]


def test_what_is_put_in_is_checked_like_the_rest() -> None:
    assert "the function random is not allowed" in refused("other.A > MY.B", B=Unevaluated("random(3)"))
    assert "a record, allowed is text" in refused("other.A > MY.B", B={"a": 1})


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, -2.5]),
    st.sampled_from(["", "a", "A"]),
)
NAMES = ("a", "b", "c")
SIDES = st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES))
OPERANDS = st.one_of(
    st.tuples(st.sampled_from(["MY.", "self.", "other.", "TARGET."]), st.sampled_from(NAMES)).map("".join),
    st.sampled_from(["1", "-2", "true", "undefined", '"a"']),
)


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["&&", "||", "<", "==", "=?=", "!=", "+", "-", "*", "?:"])
    return st.one_of(
        st.tuples(parts, operators, parts).map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
        st.tuples(parts, parts, parts).map(lambda each: f"({each[0]}) ? ({each[1]}) : ({each[2]})"),
        parts.map(lambda each: f"isUndefined({each})"),
        parts.map(lambda each: f"-{each}" if each[0] not in "-(" else f"!({each})"),
    )


@given(st.recursive(OPERANDS, joined, max_leaves=8), SIDES, SIDES)
def test_put_in_it_is_what_it_is_with_the_job_in_scope(
    text: str, job: Mapping[str, Value | None], queue: Mapping[str, Value | None]
) -> None:
    own = {name: value for name, value in job.items() if value is not None}
    other = {name: value for name, value in queue.items() if value is not None}
    in_scope = match_expression.parse_match_expression(text).value(own, other)
    put_in = read(SourceText(text=substituted(text, **own), path="Requirements")).value(other)
    assert (type(put_in), put_in) == (type(in_scope), in_scope)
