"""Version functions see numbers as people write them."""

import pytest

from requirements.classad.evaluation import read
from requirements.classad.expression import Expression
from requirements.classad.syntax_tree import SourceText
from requirements.evaluator import decide_at_queue
from requirements.nodes.node_attributes import parse_node_attributes
from requirements.nodes.resolution import QueueDecision
from requirements.record import Declarations
from requirements.values import Value


@pytest.mark.parametrize(
    ("text", "value", "wanted"),
    [
        ('versionGE(other.V, "9.5")', 9.4, False),
        ('versionGE(other.V, "9.3")', 9.4, True),
        ('versionEQ(other.V, "9.4")', 9.4, True),
        ('versionEQ(other.V, "10.0")', 10.0, True),
        ('versionEQ(other.V, "9")', 9, True),
        ('version_in_range(other.V, "9.4", "9.5")', 9.4, True),
        ('version_in_range(other.V, "9.5", "9.6")', 9.4, False),
        ('versioncmp(other.V, "9.4") == 0', 9.4, True),
        ("versionGE(other.V, 9.4)", "9.4", True),
        ('versionLT("9.4", 9.5)', 0, True),
        ('versionGE(other.V, "9.5")', "9.10", True),
        ('versionGE(other.V, "9.4.1")', "9.4.2", True),
        ('versionEQ(true ? other.V : "1", "9.4")', 9.4, True),
        ('versionEQ(other.Missing ?: other.V, "9.4")', 9.4, True),
        ('versionEQ(other.V[1], "9.4")', ("1", 9.4), True),
        ('versionGE(other.V, "9.4") && regexp("^9", other.W)', 9.4, True),
        ('versionEQ(other.V + 0, "9.4")', 9.4, True),
        ('isUndefined(versionEQ(other.Missing, "9.4"))', 9.4, True),
    ],
)
def test_versions_are_compared_as_texts(text: str, value: Value, wanted: object) -> None:
    program = read(SourceText(text=text, path="Requirements"))
    assert program.value({"V": value, "W": "9x"}) is wanted


def test_versions_of_nodes_are_compared_as_texts() -> None:
    nodes = parse_node_attributes({"V": [9.4, 9.5]})

    def decide(text: str) -> QueueDecision:
        return decide_at_queue(Expression(text=text), {}, Declarations(), nodes)

    assert decide('versionGE(other.V, "9.5")').undecided
    assert not decide('versionGE(other.V, "9.6")').eligible
