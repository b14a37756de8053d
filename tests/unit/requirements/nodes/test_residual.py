"""For all facts of a node: the requirement is true of queue and facts if and only if the residue is."""

import itertools
from collections.abc import Iterator

import classad2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from requirements import evaluator
from requirements.canonical import Requirements
from requirements.classad.expression import Expression
from requirements.classad.parser import read_expression
from requirements.classad.syntax_tree import AND, OR, SourceText
from requirements.nodes import partial_evaluation
from requirements.nodes.node_attributes import NodeAttributes, Option, merge_facts, parse_node_attributes
from requirements.nodes.partial_evaluation import MAX_COMBINATIONS, Care, EvaluationBudget, TruthValue
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
    standing = evaluator.decide_at_queue(requirements, resource, declarations, nodes)
    truths = []
    for facts in facts_of(nodes):
        whole = merge_facts(resource, nodes, facts)
        truth = evaluator.eligible(requirements, whole, declarations)
        left = standing.residue is None or evaluator.eligible(standing.residue, facts, declarations)
        assert truth is (standing.eligible and left), facts
        truths.append(truth)
    assert evaluator.eligible(requirements, resource, declarations, nodes) is standing.eligible
    assert (evaluator.failing(requirements, resource, declarations, nodes) == ()) is standing.eligible
    if all(said is not None for _, said in nodes.declared):
        assert standing.eligible is any(truths)
        assert (standing.residue is None) is (all(truths) or not any(truths))


LEAVES = st.sampled_from(
    [
        *("n < 2", "2 >= n", "m > n", "n =?= m", 's == "a"', 's != "a"', '"A" =!= s', "n != 2.5"),
        *("member(s, l)", 'member("a", l)', "isUndefined(n)", "n > 1.5", "b == true", "n + m > 3"),
        *("b", "c", "b", "c", "n", "s", "l", '"a"', "true", "false", "undefined", "0", "3", "-1", "2.5"),
        *("n + 1", "l[0]", "size(l)", 'regexp("^a", s)', 'real("nan") < n', "error", 'strcat(s, "x")'),
    ]
)
EXPRESSIONS = st.recursive(
    LEAVES,
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
def test_the_residue_of_an_expression_is_true_where_the_whole_is(
    text: str, resource: dict[str, Value], nodes: NodeAttributes
) -> None:
    check(Expression(text=text), resource, nodes)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, KNOWN, ALL_LISTED)
def test_where_all_values_are_listed_nothing_decided_is_left_open(
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
def test_the_residue_of_a_record_is_fulfilled_where_the_whole_is(
    record: Record, resource: dict[str, Value], nodes: NodeAttributes, declarations: Declarations
) -> None:
    check(record, resource, nodes, declarations)


@settings(deadline=None)
@given(RECORDS, KNOWN, DECLARED)
def test_a_queue_without_node_attributes_decides_all(
    record: Record, resource: dict[str, Value], declarations: Declarations
) -> None:
    standing = evaluator.decide_at_queue(record, resource, declarations, NodeAttributes())
    assert standing.residue is None
    assert standing.eligible is evaluator.eligible(record, resource, declarations)


def residue(text: str, resource: dict[str, Value], **nodes: object) -> str | None:
    standing = evaluator.decide_at_queue(
        Expression(text=text), resource, NOTHING_DECLARED, parse_node_attributes(nodes)
    )
    assert standing.eligible
    assert standing.residue is None or isinstance(standing.residue, Expression)
    return standing.residue and standing.residue.text


EXAMPLE = (
    "other.GlueHostBenchmarkSI00 > 500 ? other.GlueCEPolicyMaxCPUTime > 1000 "
    ": other.GlueCEPolicyMaxCPUTime > 2000"
)


@pytest.mark.parametrize(
    ("si00", "left"),
    [(400, "other.GlueCEPolicyMaxCPUTime > 2000"), (600, "other.GlueCEPolicyMaxCPUTime > 1000")],
)
def test_a_known_condition_leaves_the_arm_that_it_selects(si00: int, left: str) -> None:
    assert residue(EXAMPLE, {"GlueHostBenchmarkSI00": si00}, GlueCEPolicyMaxCPUTime="unknown") == left


@pytest.mark.parametrize(
    ("cpu_time", "left"),
    [
        (1500, "other.GlueHostBenchmarkSI00 > 500"),
        # A node that does not say how fast it is makes the whole undefined.
        (172800, "other.GlueHostBenchmarkSI00 > 500 ? true : true"),
    ],
)
def test_an_unknown_condition_stays_as_far_as_the_arms_differ(cpu_time: int, left: str) -> None:
    assert residue(EXAMPLE, {"GlueCEPolicyMaxCPUTime": cpu_time}, GlueHostBenchmarkSI00="unknown") == left


def test_listed_values_may_decide_an_unknown_condition() -> None:
    assert residue(EXAMPLE, {"GlueCEPolicyMaxCPUTime": 3000}, GlueHostBenchmarkSI00=[400, 600]) is None
    assert residue(EXAMPLE, {"GlueCEPolicyMaxCPUTime": 1500}, GlueHostBenchmarkSI00=[600, 700]) is None


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
    names = [f"n{position}" for position in range(7)]
    options = list(range(4))
    assert len(options) ** len(names) > MAX_COMBINATIONS
    nodes = parse_node_attributes(dict.fromkeys(names, options))
    total = " + ".join(names)
    for text in (f"{total} == 21", f"{total} >= 0", f"{total} > 99"):
        standing = evaluator.decide_at_queue(Expression(text=text), {}, NOTHING_DECLARED, nodes)
        assert standing.eligible
        assert standing.residue is not None


@pytest.mark.parametrize(
    "of_queue",
    [
        *("pow(9007199254740991, other.A)", "-pow(9007199254740991, other.A)", "pow(2, 60 + other.A) + 5"),
        *("0 - pow(2, 60 + other.A) - 5", 'real("inf") + other.A', 'real("nan") * other.A'),
        *('-(real("inf") * other.A)', "pow(2, 52 + other.A)"),
    ],
)
def test_a_value_of_the_queue_that_is_no_plain_number_is_kept_in_the_residue(of_queue: str) -> None:
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
    options = list(range(64))
    assert len(options) ** 2 <= MAX_COMBINATIONS
    nodes = parse_node_attributes({"A": options, "B": options})
    queue = evaluator.decide_at_queue(Expression(text=text), {}, NOTHING_DECLARED, nodes)
    assert queue.eligible
    assert queue.residue is not None
    assert not evaluator.eligible(queue.residue, {"A": 1, "B": 2}, NOTHING_DECLARED)


def test_what_is_tried_of_an_expression_is_bounded_whatever_its_shape() -> None:
    text = " || ".join(f"other.A * other.B == {number}" for number in range(50))
    node = read_expression(SourceText(text=text, path="Requirements"))
    effort = EvaluationBudget(left=100_000)
    assert not effort.spend(node, names=2, combinations=4_000)
    assert effort.left == 100_000
    spent = [effort.spend(node, names=2, combinations=1) for _ in range(20)]
    assert spent[0]
    assert not spent[-1]
    assert effort.left >= 0


def test_a_residue_that_could_not_be_read_again_is_the_whole() -> None:
    text = " && ".join(f"member(other.Model, other.List{number % 2})" for number in range(20))
    lists = {f"List{number}": tuple(f"{'model' * 20}{item}" for item in range(50)) for number in range(2)}
    assert residue(text, lists, Model="unknown") == text


def test_an_attribute_of_the_nodes_hides_the_parameter_of_the_queue() -> None:
    nodes = parse_node_attributes({"model": ["P4"]})
    assert not evaluator.eligible(
        Expression(text='other.Model == "PIII"'), {"MODEL": "PIII"}, NOTHING_DECLARED, nodes
    )
    assert merge_facts({"MODEL": "PIII", "RAM": 1}, nodes, {"Model": "P5", "Other": 3}) == {
        "RAM": 1,
        "model": "P5",
    }


@pytest.mark.parametrize(
    ("left", "right"),
    list(itertools.product(["true", "false", "undefined", "error", "3", "0", '"a"'], repeat=2)),
)
def test_the_outcomes_of_logic_are_those_of_the_library(left: str, right: str) -> None:
    def seen(text: str) -> TruthValue:
        return partial_evaluation.outcome_of_value(classad2.ExprTree(text).eval(classad2.ClassAd()))

    one, two = frozenset({seen(left)}), frozenset({seen(right)})
    assert partial_evaluation.join_outcomes(one, two, AND) == {seen(f"{left} && {right}")}
    assert partial_evaluation.join_outcomes(one, two, OR) == {seen(f"{left} || {right}")}
    assert partial_evaluation.negated(one) == {seen(f"!{left}")}
    arms = frozenset({seen("true")}), frozenset({seen("7")})
    assert partial_evaluation.chosen(one, *arms) == {seen(f"{left} ? true : 7")}
    assert partial_evaluation.split_options(seen(left), Care.TRUTH) in partial_evaluation.LOGICAL
