from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from requirements.classad.expression import Expression
from requirements.evaluator import Reason, decide_at_queue, eligible, failing
from requirements.nodes.node_attributes import parse_node_attributes
from requirements.record import Declaration, Declarations, MatchRule, ReasonKind, Record, ValueKind
from requirements.values import Value, normal

NOTHING_DECLARED = Declarations()


def why(
    wanted: Value, has: Value | None, declaration: Declaration | None = None, name: str = "Name"
) -> ReasonKind | None:
    declarations = Declarations.find([declaration]) if declaration else NOTHING_DECLARED
    resource = {} if has is None else {name: has}
    reasons = failing(Record(values=((name, wanted),)), resource, declarations)
    return reasons[0].kind if reasons else None


def declared(kind: ValueKind | None = None, match: MatchRule = MatchRule.ANY) -> Declaration:
    return Declaration(name="name", kind=kind, match=match)


@pytest.mark.parametrize(
    ("wanted", "has", "kind"),
    [
        (4000, None, ReasonKind.ABSENT),
        (4000, 4000, None),
        (4000, 4000.5, None),
        (4000, 3999.9, ReasonKind.TOO_SMALL),
        (4000, (2000, 4000.0), None),
        (4000, (2000, 8000), ReasonKind.NOT_AMONG),
        (4000, (8000,), ReasonKind.NOT_AMONG),
        (4000, (), ReasonKind.NOT_AMONG),
        (4000, "4000", ReasonKind.TYPE),
        (4000, ("4000",), ReasonKind.TYPE),
        (1, True, ReasonKind.TYPE),
        (True, 1, ReasonKind.TYPE),
        (True, (1, 0), ReasonKind.TYPE),
        ("Intel Xeon", "INTEL XEON", None),
        ("Intel Xeon", "AMD EPYC", ReasonKind.DIFFERENT),
        ("Intel Xeon", ("AMD EPYC", "intel xeon"), None),
        ("Intel Xeon", ("AMD EPYC",), ReasonKind.NOT_AMONG),
        ("true", True, ReasonKind.TYPE),
        (True, True, None),
        (True, False, ReasonKind.DIFFERENT),
        (False, (True, False), None),
        (("a", "b"), "B", None),
        (("a", "b"), "c", ReasonKind.NOT_AMONG),
        (("a", "b"), ("c", "A"), None),
        (("a", "b"), ("c", "d"), ReasonKind.NOT_AMONG),
        (("a", "b"), (), ReasonKind.NOT_AMONG),
        (("a", "b"), 5, ReasonKind.TYPE),
        ((1, 2), 2, None),
        ((1, 2), 3, ReasonKind.NOT_AMONG),
        ((1, "b"), ("B",), None),
        # A list of one is its value, so equal pools give equal answers.
        ((4000,), 8000, None),
        ((4000, 4000.0), 8000, None),
        (("A", "a"), "A", None),
    ],
)
def test_undeclared_names_follow_the_kinds_of_the_two_values(
    wanted: Value, has: Value | None, kind: ReasonKind | None
) -> None:
    assert why(wanted, has) is kind


@pytest.mark.parametrize(
    ("wanted", "has", "kind"),
    [
        ("4000", 4000, None),
        (4000, "4000", None),
        ("4000", "3e3", ReasonKind.TOO_SMALL),
        (("2000", 4000), 2000, None),
        (4000, ("4000", "8000"), None),
        ("much", 4000, ReasonKind.TYPE),
        ("much", "much", ReasonKind.TYPE),
        (4000, "much", ReasonKind.TYPE),
        (True, True, ReasonKind.TYPE),
    ],
)
def test_a_number_written_as_text_counts_where_the_name_is_declared_a_number(
    wanted: Value, has: Value, kind: ReasonKind | None
) -> None:
    assert why(wanted, has, declared(ValueKind.NUMBER)) is kind


@pytest.mark.parametrize(
    ("wanted", "has", "kind"),
    [
        (("a", "b"), ("B", "A", "c"), None),
        (("a", "b"), ("a", "c"), ReasonKind.NOT_ALL),
        (("a", "b"), "a", ReasonKind.NOT_ALL),
        (("a", "b"), "c", ReasonKind.NOT_AMONG),
        (("a", "b"), (), ReasonKind.NOT_AMONG),
        (("a", "A"), "a", None),
        ("a", ("a", "b"), None),
        (4000, 8000, None),
    ],
)
def test_every_value_must_be_there_where_declared(wanted: Value, has: Value, kind: ReasonKind | None) -> None:
    assert why(wanted, has, declared(match=MatchRule.ALL)) is kind


def test_a_number_of_a_declared_list_is_a_list_of_one() -> None:
    assert why(4, 8, declared(ValueKind.LIST)) is ReasonKind.NOT_AMONG
    assert why(4, (8, 4), declared(ValueKind.LIST)) is None


@pytest.mark.parametrize(
    ("kind", "value"), [(ValueKind.STRING, 7), (ValueKind.BOOLEAN, "true"), (ValueKind.NUMBER, "x")]
)
def test_a_value_of_another_kind_than_declared_fits_nowhere(kind: ValueKind, value: Value) -> None:
    assert why(value, value, declared(kind)) is ReasonKind.TYPE


def test_a_name_may_be_compared_with_a_parameter_of_another_name() -> None:
    memory = Declarations.find(
        [Declaration(name="Memory", kind=ValueKind.NUMBER, resource="MaxRAM", unit="MB")]
    )
    asks = Record(values=(("MEMORY", 4000),))
    assert eligible(asks, {"maxram": 4096}, memory)
    assert failing(asks, {"Memory": 9000, "MaxRAM": 2000.0}, memory) == (
        Reason(requirement="MEMORY", wanted="at least 4000 MB", has="2000", kind=ReasonKind.TOO_SMALL),
    )
    assert failing(asks, {"Memory": 9000}, memory)[0].kind is ReasonKind.ABSENT


@pytest.mark.parametrize(
    ("wanted", "has", "shown"),
    [
        (4000, "4000", "4000 (string)"),
        ("4000", 4000, "4000 (number)"),
        (True, 1, "1 (number)"),
        (2000, (4000,), "4000 (list of number)"),
        (4000, ("4000", True), "4000, true (list of boolean and string)"),
        (4000, 2000, "2000"),
        ("a", ("b",), "b"),
    ],
)
def test_a_value_of_another_kind_is_shown_with_its_kind(wanted: Value, has: Value, shown: str) -> None:
    [reason] = failing(Record(values=(("Memory", wanted),)), {"Memory": has}, Declarations())
    assert reason.has == shown


def test_every_failing_requirement_is_a_reason() -> None:
    asks = Record(values=(("CPUModel", "Intel Xeon"), ("Memory", 4000), ("SoftwareTag", ("A", "B"))))
    reasons = failing(asks, {"cpumodel": "intel xeon", "Memory": 2000}, NOTHING_DECLARED)
    assert [str(reason) for reason in reasons] == [
        "Memory: wanted at least 4000, has 2000 (too_small)",
        "SoftwareTag: wanted one of A, B, has nothing of that name (absent)",
    ]


VALUES = st.sampled_from(["a", "A", "b", "4000", 4000, 4000.0, 8, True, False])
LISTS = VALUES | st.lists(VALUES, max_size=3).map(tuple)
NAMES = st.sampled_from(["x", "y", "z"])
RECORDS = st.dictionaries(NAMES, LISTS, min_size=1).map(
    lambda each: Record(values=tuple(sorted(each.items())))
)
RESOURCES = st.dictionaries(st.sampled_from(["x", "Y", "z"]), LISTS)
DECLARED = st.lists(
    st.builds(
        Declaration,
        name=NAMES,
        kind=st.none() | st.sampled_from(ValueKind),
        match=st.sampled_from(MatchRule),
        resource=st.none() | NAMES,
    ),
    unique_by=lambda declaration: declaration.name,
).map(Declarations.find)


@given(RECORDS, RESOURCES, DECLARED)
def test_eligible_is_without_reasons(
    record: Record, resource: dict[str, Any], declarations: Declarations
) -> None:
    assert eligible(record, resource, declarations) is (failing(record, resource, declarations) == ())


@given(RECORDS, RESOURCES, DECLARED)
def test_requirements_of_one_pool_have_one_answer(
    record: Record, resource: dict[str, Any], declarations: Declarations
) -> None:
    same = Record(values=tuple((name.upper(), normal(value)) for name, value in record.values))
    kinds = [reason.kind for reason in failing(record, resource, declarations)]
    assert [reason.kind for reason in failing(same, resource, declarations)] == kinds


@given(RECORDS, RESOURCES, DECLARED)
def test_a_record_holds_where_each_of_its_values_holds(
    record: Record, resource: dict[str, Any], declarations: Declarations
) -> None:
    singles = [Record(values=(entry,)) for entry in record.values]
    assert eligible(record, resource, declarations) is all(
        eligible(single, resource, declarations) for single in singles
    )


PARTS = st.sampled_from(
    ["other.x > 4", 'TARGET.y == "a"', "z", "!other.z", 'other.x + 1 == "a"', "member(4000, other.y)", "1"]
)
EXPRESSIONS = st.recursive(
    PARTS,
    lambda parts: st.tuples(parts, st.sampled_from(["&&", "||"]), parts).map(lambda p: f"({' '.join(p)})"),
)


@given(EXPRESSIONS, RESOURCES)
def test_an_expression_is_eligible_without_reasons(text: str, resource: dict[str, Any]) -> None:
    expression = Expression(text=text)
    reasons = failing(expression, resource, NOTHING_DECLARED)
    assert eligible(expression, resource, NOTHING_DECLARED) is (reasons == ())


def test_every_operand_of_the_outermost_and_is_a_reason() -> None:
    expression = Expression(text='other.A > 3 && (other.B == "x" || other.C) && other.D && 1/0 == other.A')
    reasons = failing(expression, {"a": 2, "B": "y", "C": False, "D": True}, NOTHING_DECLARED)
    assert [(reason.requirement, reason.wanted, reason.has, reason.kind) for reason in reasons] == [
        ("Requirements", "other.A > 3", "A = 2", ReasonKind.EXPRESSION),
        ("Requirements", '(other.B == "x" || other.C)', "B = y; C = false", ReasonKind.EXPRESSION),
        ("Requirements", "1/0 == other.A", "A = 2", ReasonKind.ERROR),
    ]


def test_what_a_resource_does_not_say_is_named() -> None:
    (reason,) = failing(Expression(text="other.A > 3"), {}, NOTHING_DECLARED)
    assert (reason.has, reason.kind) == ("A is absent", ReasonKind.UNDEFINED)


@pytest.mark.parametrize("text", ["other.A", "5", '"true"', "undefined", "error", "{true}"])
def test_only_true_is_true(text: str) -> None:
    assert not eligible(Expression(text=text), {"A": 1}, NOTHING_DECLARED)


def test_a_stored_text_that_is_no_expression_any_more_is_a_reason() -> None:
    (reason,) = failing(Expression(text="other.A >"), {"A": 1}, NOTHING_DECLARED)
    assert reason.kind is ReasonKind.ERROR
    assert reason.has is not None
    assert "the end where a value should stand" in reason.has


@pytest.mark.parametrize("has", [None, "x", "x" * 4097])
def test_a_stored_value_that_is_too_long_is_fulfilled_nowhere_and_says_so(has: str | None) -> None:
    [reason] = failing(Record(values=(("OS", "x" * 4097),)), {"OS": has} if has else {}, NOTHING_DECLARED)
    assert (reason.kind, reason.wanted) == (
        ReasonKind.ERROR,
        "a value that has 4097 characters, allowed are 4096",
    )


def test_nodes_do_not_fulfil_a_value_that_is_too_long() -> None:
    asked = Record(values=(("OS", "x" * 4097),))
    for options in ("unknown", ["x", "y"]):
        nodes = parse_node_attributes({"OS": options})
        assert not decide_at_queue(asked, {}, NOTHING_DECLARED, nodes).eligible
        assert [reason.kind for reason in failing(asked, {}, NOTHING_DECLARED, nodes)] == [ReasonKind.ERROR]
