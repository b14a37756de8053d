"""What is decided at a queue, against the truth for each of many facts that its nodes may have."""

import itertools
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad.expression import Expression
from requirements.nodes.node_attributes import NodeAttributes, Option, merge_facts, parse_node_attributes
from requirements.nodes.resolution import QueueDecision
from requirements.record import Declaration, Declarations, MatchRule, Record, ValueKind
from requirements.values import Value

NOTHING_DECLARED = Declarations()
#: What a node of which nothing is known may turn out to have.
ANY_FACT: tuple[Option, ...] = (None, 0, 1, 2, 3, -1, 2.5, True, False, "a", "A", "b", ("a", "b"), (2,), ())


def facts_of(nodes: NodeAttributes) -> Iterator[dict[str, Value]]:
    options = [ANY_FACT if said is None else said for _, said in nodes.declared]
    for combination in itertools.product(*options):
        yield {name: fact for name, fact in zip(nodes.names, combination, strict=True) if fact is not None}


def check(
    requirements: Requirements,
    resource: dict[str, Value],
    nodes: NodeAttributes,
    declarations: Declarations = NOTHING_DECLARED,
) -> None:
    decision = evaluator.decide_at_queue(requirements, resource, declarations, nodes)
    truths = []
    for facts in facts_of(nodes):
        truth = evaluator.eligible(requirements, merge_facts(resource, nodes, facts), declarations)
        assert decision.eligible or not truth, facts
        assert truth or decision.undecided or not decision.eligible, facts
        truths.append(truth)
    assert evaluator.eligible(requirements, resource, declarations, nodes) is decision.eligible
    assert (evaluator.failing(requirements, resource, declarations, nodes) == ()) is decision.eligible
    if all(said is not None for _, said in nodes.declared):
        assert decision.eligible is any(truths)
        assert bool(decision.undecided) is (any(truths) and not all(truths))


LEAVES: tuple[str, ...] = (
    *("n < 2", "2 >= n", "m > n", "n =?= m", 's == "a"', 's != "a"', '"A" =!= s', "n != 2.5"),
    *("member(s, l)", 'member("a", l)', "isUndefined(n)", "n > 1.5", "b == true", "n + m > 3"),
    *("b", "c", "b", "c", "n", "s", "l", '"a"', "true", "false", "undefined", "0", "3", "-1", "2.5"),
    *("n + 1", "l[0]", "size(l)", 'regexp("^a", s)', 'real("nan") < n', "error", 'strcat(s, "x")'),
)
EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda each: "({}) && ({})".format(*each)),
        st.tuples(inner, inner).map(lambda each: "({}) || ({})".format(*each)),
        st.tuples(inner, inner, inner).map(lambda each: "({}) || ({}) && ({})".format(*each)),
        st.tuples(inner, inner, inner).map(lambda each: "({}) || ({}) || ({})".format(*each)),
        inner.map("!({})".format),
        st.tuples(inner, inner, inner).map(lambda each: "({}) ? ({}) : ({})".format(*each)),
        st.tuples(inner, st.sampled_from(["==", "!=", "=?=", "=!=", "<", "+"]), inner).map(
            lambda each: "({}) {} ({})".format(*each)
        ),
        st.tuples(inner, inner).map(lambda each: "({}) ?: ({})".format(*each)),
        inner.map("isUndefined({})".format),
        st.tuples(inner, inner, inner).map(lambda each: "ifThenElse({}, {}, {})".format(*each)),
    ),
    max_leaves=10,
)
KNOWN = st.dictionaries(
    st.sampled_from("nmbcsl"), st.sampled_from([each for each in ANY_FACT if each is not None])
)
OPTIONS = st.lists(st.sampled_from(ANY_FACT), min_size=1, max_size=3).map(
    lambda each: [list(one) if isinstance(one, tuple) else one for one in each]
)
NODES = st.dictionaries(st.sampled_from("nmbcsl"), OPTIONS | st.just("unknown"), min_size=1, max_size=3).map(
    parse_node_attributes
)
ALL_LISTED = st.dictionaries(st.sampled_from("nmbcsl"), OPTIONS, min_size=1, max_size=4).map(
    parse_node_attributes
)


@settings(max_examples=200, deadline=None)
@given(EXPRESSIONS, KNOWN, NODES)
@example("(b) || (s)", {"s": "a"}, parse_node_attributes({"b": "unknown"}))
@example("b && true", {}, parse_node_attributes({"b": "unknown"}))
@example("b ? c : false", {}, parse_node_attributes({"b": "unknown", "c": "unknown"}))
@example("(b && false) || c", {"c": True}, parse_node_attributes({"b": "unknown"}))
@example("!(b ? c : false)", {"c": True}, parse_node_attributes({"b": "unknown"}))
@example("false || b || false", {}, parse_node_attributes({"b": "unknown"}))
def test_an_expression_is_excluded_or_decided_only_where_this_holds_of_all_nodes(
    text: str, resource: dict[str, Value], nodes: NodeAttributes
) -> None:
    check(Expression(text=text), resource, nodes)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, KNOWN, ALL_LISTED)
def test_where_all_values_are_listed_the_decision_is_exact(
    text: str, resource: dict[str, Value], nodes: NodeAttributes
) -> None:
    check(Expression(text=text), resource, nodes)


ASKED = st.sampled_from(["a", "A", "b", "2", 2, 2.0, 3, -1, True, False])
RECORDS = st.dictionaries(
    st.sampled_from("nmbcsl"), ASKED | st.lists(ASKED, min_size=1, max_size=3).map(tuple), min_size=1
).map(lambda each: Record(values=tuple(sorted(each.items()))))
DECLARED = st.lists(
    st.builds(
        Declaration,
        name=st.sampled_from("nmbcsl"),
        kind=st.none() | st.sampled_from(ValueKind),
        match=st.sampled_from(MatchRule),
        resource=st.none() | st.sampled_from("nms"),
    ),
    unique_by=lambda declaration: declaration.name,
).map(Declarations.find)


@settings(deadline=None)
@given(RECORDS, KNOWN, NODES, DECLARED)
def test_a_record_is_excluded_or_decided_only_where_this_holds_of_all_nodes(
    record: Record, resource: dict[str, Value], nodes: NodeAttributes, declarations: Declarations
) -> None:
    check(record, resource, nodes, declarations)


@settings(deadline=None)
@given(RECORDS, KNOWN, DECLARED)
def test_a_queue_without_node_attributes_decides_all(
    record: Record, resource: dict[str, Value], declarations: Declarations
) -> None:
    decision = evaluator.decide_at_queue(record, resource, declarations, NodeAttributes())
    assert not decision.undecided
    assert decision.eligible is evaluator.eligible(record, resource, declarations)


def decide(text: str, resource: dict[str, Value] | None = None, **nodes: object) -> QueueDecision:
    return evaluator.decide_at_queue(
        Expression(text=text), resource or {}, NOTHING_DECLARED, parse_node_attributes(nodes)
    )


#: Comparisons with literals, of which there is always a value between, beyond or beside.
COMPARED = st.recursive(
    st.one_of(
        st.tuples(
            st.sampled_from("nm"),
            st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "=?=", "=!="]),
            st.sampled_from(["0", "1", "1.5", "-3", "2000", "2000.5", "true", "false"]),
        ).map(" ".join),
        st.tuples(
            st.sampled_from("st"),
            st.sampled_from(["<", ">=", "==", "!=", "=?=", "=!="]),
            st.sampled_from(['"a"', '"A"', '"b c"', '""']),
        ).map(" ".join),
        st.sampled_from(["n", "!n", 'member(s, {"a", "b"})', "member(n, {1, 2})", "isUndefined(s)"]),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda each: "({}) && ({})".format(*each)),
        st.tuples(inner, inner).map(lambda each: "({}) || ({})".format(*each)),
        inner.map("!({})".format),
        st.tuples(inner, inner, inner).map(lambda each: "({}) ? ({}) : ({})".format(*each)),
    ),
    max_leaves=6,
)
#: Few of them are literals of the above, but some are of every kind that a literal distinguishes.
OUTSIDE: tuple[Option, ...] = (
    *(None, True, False, 0, 1, 1.0, 1.5, 2, -3, -3.0, 2000, 2000.5, "a", "A", "b c", "B C", ""),
    *(0.25, 1.25, 1.75, -1, -7.5, 3, 1999.5, 2000.25, 1e12, "+", "a+", "b", "zebra", (), ("a",), ("q", 7)),
)


@settings(max_examples=150, deadline=None)
@given(COMPARED)
@example("n > 2000 && n < 1.5")
@example('s > "a" && s < "b c"')
@example("n =!= 1 && n == 1")
@example("n =!= true && n == true")
@example('s == "a" && s =!= "a" && s =!= "A"')
def test_what_unknown_attributes_are_compared_with_is_decided_exactly(text: str) -> None:
    nodes = parse_node_attributes(dict.fromkeys("nmst", "unknown"))
    names = sorted(
        {name for name in "nmst" if name in evaluator.parameters(Expression(text=text), Declarations())}
    )
    random = Random(text)
    facts = list(itertools.product(OUTSIDE, repeat=len(names)))
    truths = {
        evaluator.eligible(
            Expression(text=text),
            {name: fact for name, fact in zip(names, each, strict=True) if fact is not None},
            NOTHING_DECLARED,
        )
        for each in (facts if len(names) < 3 else random.sample(facts, 3_000))
    }
    decision = evaluator.decide_at_queue(Expression(text=text), {}, NOTHING_DECLARED, nodes)
    if True in truths:
        assert decision.eligible
    if len(names) < 3:
        assert decision.eligible is (True in truths)
        assert bool(decision.undecided) is (truths == {True, False})


def test_bounds_that_exclude_each_other_exclude_the_queue() -> None:
    assert not decide("other.Memory > 4000 && other.Memory < 2000", Memory="unknown").eligible
    assert not decide("other.Memory > 2000 && other.Memory < 2000.0", Memory="unknown").eligible
    assert decide("other.Memory > 2000 && other.Memory < 2001", Memory="unknown").undecided


@pytest.mark.parametrize(
    "text",
    [
        *('regexp("^P", other.Model)', "other.Memory * 2 > 3000", "other.Memory > other.Disk"),
        *('strcat(other.Model, "x") == "ax"', "other.Memory + 1", "size(other.Model) > 3 || other.Slow"),
    ],
)
def test_an_unknown_attribute_that_is_used_in_another_way_may_do(text: str) -> None:
    decision = decide(text, {"Slow": False}, Model="unknown", Memory="unknown", Disk="unknown")
    assert decision.eligible
    assert decision.undecided


def test_the_same_part_has_one_outcome() -> None:
    part = 'regexp("^P", other.Model)'
    assert not decide(f"{part} && !{part}", Model="unknown").eligible


EXAMPLE = (
    "other.GlueHostBenchmarkSI00 > 500 ? other.GlueCEPolicyMaxCPUTime > 1000 "
    ": other.GlueCEPolicyMaxCPUTime > 2000"
)


def test_listed_values_may_decide_an_unknown_condition() -> None:
    for cpu_time, speeds, eligible, undecided in (
        (3000, [400, 600], True, False),
        (1500, [600, 700], True, False),
        (1500, [400, 600], True, True),
        (1500, [400, 500], False, False),
    ):
        decision = decide(EXAMPLE, {"GlueCEPolicyMaxCPUTime": cpu_time}, GlueHostBenchmarkSI00=speeds)
        assert (decision.eligible, bool(decision.undecided)) == (eligible, undecided), (cpu_time, speeds)


def test_parts_that_all_nodes_fulfil_are_decided() -> None:
    decision = decide(
        'other.OS != "el7" && other.Cores > 4 && (other.OS == "el8" || other.Memory > 2000)',
        OS=["el8", "el9"],
        Cores=[8, 16],
        Memory="unknown",
    )
    assert decision.parts == (Expression(text='(other.OS == "el8" || other.Memory > 2000)'),)


def test_what_no_node_fulfils_is_named_with_what_nodes_may_have() -> None:
    nodes = parse_node_attributes({"Model": ["PIII", None], "Cores": "unknown"})
    reasons = evaluator.failing(
        Expression(text='other.Model == "P4" && other.Cores > 4 && other.RAM > 10'),
        {"RAM": 5, "Model": "P4"},
        NOTHING_DECLARED,
        nodes,
    )
    assert [(reason.wanted, reason.has) for reason in reasons] == [
        ('other.Model == "P4"', "Model of a node is one of PIII, none"),
        ("other.RAM > 10", "RAM = 5"),
    ]
    (reason,) = evaluator.failing(Record(values=(("Model", "P4"),)), {}, NOTHING_DECLARED, nodes)
    assert (reason.requirement, reason.wanted, reason.has) == ("Model", "P4", "PIII, none")


def test_conditions_that_no_node_fulfils_together_make_a_queue_not_eligible() -> None:
    nodes = parse_node_attributes({"Model": ["PIII", "P4"]})
    both = Expression(text='other.Model == "P4" && other.Model == "PIII"')
    assert not evaluator.eligible(both, {}, NOTHING_DECLARED, nodes)
    (reason,) = evaluator.failing(both, {}, NOTHING_DECLARED, nodes)
    assert reason.wanted == both.text


def test_more_combinations_than_are_tried_are_never_called_impossible_or_decided() -> None:
    names = [f"n{position}" for position in range(9)]
    nodes = {name: list(range(4)) for name in names}
    total = " + ".join(names)
    for text in (f"{total} == 27", f"{total} >= 0", f"{total} > 99"):
        decision = decide(text, **nodes)
        assert decision.eligible
        assert [part.good for part in decision.undecided] == [None]


def test_few_expressions_exceed_the_budget() -> None:
    random = Random(5)

    def expression(depth: int) -> str:
        if depth == 0:
            return random.choice(LEAVES)
        inner = [f"({expression(depth - 1)})" for _ in range(3)]
        return random.choice(["{} && {}", "{} || {}", "!{}", "{} ? {} : {}", "{} && {} && {}"]).format(*inner)

    exceeded = 0
    for _ in range(500):
        kinds = {name: random.choice(["unknown", "listed", "known"]) for name in "nmsbl"}
        nodes = {
            name: "unknown" if kind == "unknown" else [1, 2, "a"]
            for name, kind in kinds.items()
            if kind != "known"
        }
        decision = decide(expression(random.randrange(1, 4)), {"n": 1, "m": 2, "s": "a"}, **nodes)
        exceeded += any(part.good is None for part in decision.undecided)
    assert exceeded <= 5, exceeded


@pytest.mark.parametrize(
    "of_queue",
    [
        *("pow(9007199254740991, other.A)", "-pow(9007199254740991, other.A)", "pow(2, 60 + other.A) + 5"),
        *("0 - pow(2, 60 + other.A) - 5", 'real("inf") + other.A', 'real("nan") * other.A'),
        *('-(real("inf") * other.A)', "pow(2, 52 + other.A)"),
    ],
)
def test_a_value_of_the_queue_may_be_no_plain_number(of_queue: str) -> None:
    nodes = parse_node_attributes({"B": [0.5, "b", 2**53 - 1, None]})
    for operator in ("<", ">=", "=?=", "=!="):
        for text in (f"(other.B ?: 0) {operator} {of_queue}", f"!((other.B ?: 0) {operator} {of_queue})"):
            check(Expression(text=text), {"A": 2}, nodes)


@pytest.mark.parametrize(
    "text",
    [
        " || ".join(f"other.A * other.B == {number + 100_000}" for number in range(398)),
        " || ".join(f'regexp("c{number}", strcat(string(other.A), string(other.B)))' for number in range(20)),
    ],
)
def test_many_combinations_of_a_long_part_are_left_to_the_nodes(text: str) -> None:
    options = list(range(200))
    decision = decide(text, A=options, B=options)
    assert decision.eligible
    assert decision.undecided


def test_an_attribute_of_the_nodes_hides_the_parameter_of_the_queue() -> None:
    nodes = parse_node_attributes({"model": ["P4"]})
    assert not evaluator.eligible(
        Expression(text='other.Model == "PIII"'), {"MODEL": "PIII"}, NOTHING_DECLARED, nodes
    )
    assert merge_facts({"MODEL": "PIII", "RAM": 1}, nodes, {"Model": "P5", "Other": 3}) == {
        "RAM": 1,
        "model": "P5",
    }
