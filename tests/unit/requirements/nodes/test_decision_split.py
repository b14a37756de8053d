import pytest

from requirements import evaluator
from requirements.classad.expression import Expression
from requirements.nodes.flags import compile_flags
from requirements.nodes.forwarding import Forwarding, split_requirements
from requirements.nodes.node_attributes import NO_NODE_ATTRIBUTES, parse_node_attributes
from requirements.nodes.site_mapping import parse_mapping
from requirements.record import Declaration, Declarations, Record, ValueKind

DECLARED = Declarations.find(
    [Declaration(name="Memory", kind=ValueKind.NUMBER, resource="MaxRAM", unit="MB")]
)
NODES = parse_node_attributes({"MaxRAM": "unknown", "Model": ["PIII", "P4"]})
SLURM = parse_mapping(
    {
        "Vocabulary": "Slurm",
        "Attributes": {"MaxRAM": {"min": "mem"}, "Model": {"features": {"P4": "p4", "PIII": "p3"}}},
    }
)


def test_each_requirement_is_told_where_it_is_decided() -> None:
    asks = Record(values=(("Memory", 4000), ("Model", "P4"), ("SoftwareTag", ("A", "B"))))
    found = split_requirements(asks, {"SoftwareTag": "A", "Model": "P5"}, DECLARED, NODES, SLURM)
    assert found is not None
    assert found == Forwarding(
        at_queue=("SoftwareTag: one of A, B",),
        flags=("--mem=4000M", "--constraint=p4"),
        left="Memory: at least 4000 MB; Model: P4",
        sufficient=True,
    )


def test_the_operands_of_an_expression_are_told_one_by_one() -> None:
    asks = Expression(text='other.Q > 3 && (other.Model == "P4" || other.Slow) && other.Model != "P5"')
    found = split_requirements(asks, {"Q": 4, "Slow": False}, DECLARED, NODES, SLURM)
    assert found is not None
    assert found.at_queue == ("other.Q > 3", 'other.Model != "P5"')
    assert found.flags == ("--constraint=p4",)
    assert found.left == '(other.Model == "P4" || other.Slow)'


def test_what_the_queue_decides_leaves_nothing() -> None:
    found = split_requirements(Expression(text="other.Q > 3"), {"Q": 4}, DECLARED, NO_NODE_ATTRIBUTES, None)
    assert found is not None
    assert (found.at_queue, found.flags, found.left) == (("other.Q > 3",), (), None)


def test_what_no_language_says_is_left_to_the_matcher_alone() -> None:
    found = split_requirements(Expression(text="size(other.MaxRAM) > 3"), {}, DECLARED, NODES, SLURM)
    assert found is not None
    assert found.flags == ()
    assert found.left == "size(other.MaxRAM) > 3"


def test_a_queue_that_is_not_eligible_forwards_nothing() -> None:
    assert (
        split_requirements(Record(values=(("Model", "P5"),)), {"Model": "P5"}, DECLARED, NODES, SLURM) is None
    )


@pytest.mark.parametrize(
    "text",
    [
        " && ".join("(" + " || ".join(f"x{i} > {j}" for j in range(60)) + ")" for i in range(20)),
        " || ".join("(" + " && ".join(f"x{j} > {i + j}" for j in range(20)) + ")" for i in range(60)),
        "x1 > 1 ? x2 > 1 : " * 50 + "x3 > 1",
        "!" * 115 + "(x1 > 2)",
        "(" * 100 + "x1 > 1" + " ? x2 > 1 : x3 > 2)" * 100,
        " + ".join(f"x{step % 20}" for step in range(380)) + " > 5",
    ],
)
@pytest.mark.parametrize("said", ["unknown", list(range(100))])
@pytest.mark.timeout(300)
def test_a_hostile_expression_is_forwarded_soon(text: str, said: object) -> None:
    nodes = parse_node_attributes({f"x{number}": said for number in range(20)})
    mapping = parse_mapping(
        {
            "Vocabulary": "HTCondor",
            "Attributes": {f"x{number}": {"min": f"X{number}"} for number in range(20)},
        }
    )
    decision = evaluator.decide_at_queue(Expression(text=text), {}, DECLARED, nodes)
    compile_flags(decision, mapping)
    assert decision.eligible or not decision.undecided
