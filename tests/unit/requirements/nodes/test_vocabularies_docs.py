"""The examples of the documentation say what it says that they say."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from requirements import evaluator
from requirements.classad.expression import parse_expression
from requirements.nodes.flags import compile_flags
from requirements.nodes.lrms_vocabulary import VOCABULARIES
from requirements.nodes.node_attributes import parse_node_attributes
from requirements.nodes.site_mapping import parse_mapping
from requirements.record import Declarations

TEXT = (Path(__file__).parents[4] / "docs" / "site-admin" / "vocabularies.md").read_text(encoding="utf-8")
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
NODES = next(parse_node_attributes(block["NodeAttributes"]) for block in BLOCKS if "NodeAttributes" in block)
FORWARDINGS = [block["Forwarding"] for block in BLOCKS if "Forwarding" in block]
MAPPINGS = {each["Vocabulary"]: each for each in FORWARDINGS if isinstance(each["Vocabulary"], str)}
COMMANDS = re.findall(r"^\*\*.*\*\*: `(\w+) (.*)`$", TEXT, re.MULTILINE)


def said(vocabulary: str, requirements: str) -> tuple[str, ...]:
    expression = parse_expression(requirements)
    decision = evaluator.decide_at_queue(expression, {}, Declarations(), NODES)
    return compile_flags(decision, parse_mapping(MAPPINGS[vocabulary])).arguments


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_each_batch_system_has_an_example_with_the_flags_that_follow(vocabulary: str) -> None:
    asked = re.search(r'^`Requirements = "(.*)"`$', TEXT, re.MULTILINE)
    assert asked
    commands = dict(zip(MAPPINGS, COMMANDS, strict=True))

    found = said(vocabulary, asked[1].replace(r"\"", '"'))

    assert list(found) == shlex.split(commands[vocabulary][1])


def test_the_vocabulary_of_a_site_has_the_flags_that_follow() -> None:
    [own] = [each for each in FORWARDINGS if not isinstance(each["Vocabulary"], str)]
    expression = parse_expression('other.Memory >= 4000 && other.OS == "el9"')
    decision = evaluator.decide_at_queue(expression, {}, Declarations(), NODES)
    found = compile_flags(decision, parse_mapping(own)).arguments
    assert f"`nqsub {' '.join(found)}`" in TEXT
    assert (
        yaml.safe_load(re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[-1])["dialect"]["vocabulary"]
        == (own["Vocabulary"])
    )


def test_only_some_languages_have_an_or_of_different_things() -> None:
    either = 'other.Memory >= 4000 || other.OS == "el9"'
    assert "`select[os==rocky9 || maxmem>=4000]`" in TEXT
    assert said("LSF", either) == ("-R", "select[os==rocky9 || maxmem>=4000]")
    assert "||" in said("HTCondor", either)[1]
    assert not any(said(name, either) for name in ("Slurm", "GridEngine", "PBS"))
