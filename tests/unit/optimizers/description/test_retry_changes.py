"""Values that rules of retry give a description."""

import pytest

from cs_config import validate
from cs_config.options.operations import options_for
from optimizers.description import changes, retry_changes
from requirements.classad import parser


def options():
    return options_for(validate.parse("Registry: {VO: {cms: {}}}", "grid.yaml", 1), "cms")


def test_rules_parse_an_expression_once_whatever_they_change(monkeypatch):
    parsed = []
    parse = parser.read_expression
    monkeypatch.setattr(
        "requirements.classad.expression.read_expression", lambda it: parsed.append(it) or parse(it)
    )
    changes.read_comparisons.cache_clear()
    names = ["".join(pair) * 4 for pair in zip("ABCDEFGHIJ", "klmnopqrst", strict=True)]
    rules = [f"{code}: {', '.join(f'{name} = 1' for name in names)}" for code in range(4)]
    text = " || ".join(f"other.Attr{number} == {number}" for number in range(200))
    body = {"Executable": "a.sh", "Requirements": text}
    assert not list(retry_changes.find_unfit_rules(body, rules, options()))
    assert len(parsed) == 1


@pytest.mark.parametrize("change", ["After = 1", "without AfterPolicy", "Owner = eve"])
def test_rules_change_nothing_that_a_job_keeps(change):
    body = {"Executable": "a.sh", "After": [1], "AfterPolicy": "any"}
    [found] = retry_changes.find_unfit_rules(body, [f"1: {change}"], options())
    assert found.message.startswith("is not changed: ")
