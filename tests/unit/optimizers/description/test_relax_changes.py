"""What rules of relaxation make of descriptions."""

from collections.abc import Mapping

import pytest

from cs_config import validate
from cs_config.options.operations import options_for
from cs_config.options.options import VoOptions
from optimizers.description import changes, relax_changes
from requirements.classad import parser

HOUR = 3600
RULES = [
    "after 1 h: without CPUModel",
    "after 2 h: Memory x 0.5, Tags without gpu",
    "after 3 h: Memory x 0.5",
]
ASKED = {"CPUModel": "Xeon", "Memory": 4000}


def options(rules: str = "") -> VoOptions:
    default = f", Relax: {{default: '{rules}'}}" if rules else ""
    text = f"Operations: {{cms: {{JobDescription: {{CPUModel: {{type: string}}{default}}}}}}}"
    return options_for(validate.parse(f"Registry: {{VO: {{cms: {{}}}}}}\n{text}", "grid.yaml", 1), "cms")


def relax(body: Mapping[str, object], hours: float, rules: str = "") -> dict[str, object] | None:
    step = relax_changes.find_step(body, options(rules), waited=hours * HOUR)
    return None if step is None else dict(step.values)


def test_a_step_takes_its_rule_with_it():
    body = {"Executable": "a.sh", "Requirements": ASKED, "Tags": ["gpu", "ssd"], "Relax": RULES}
    assert relax(body, 0.9) is None
    step = relax_changes.find_step(body, options(), waited=HOUR)
    assert step is not None
    assert step.note == "after 1 h: CPUModel Xeon → none"
    assert dict(step.values) == {"CPUModel": None, "Relax": RULES[1:]}
    changed = changes.change_body(body, step.values, options()).body
    assert relax(changed, 2) == {"Memory": 2000, "Tags": ["ssd"], "Relax": RULES[2:]}


def test_steps_that_are_due_at_once_are_made_in_their_order():
    body = {"Executable": "a.sh", "Requirements": ASKED, "Tags": ["gpu"], "Relax": RULES}
    assert relax(body, 5) == {"CPUModel": None, "Memory": 1000, "Tags": None, "Relax": []}


def test_a_part_of_an_expression_may_be_less():
    body = {"Requirements": "other.Memory >= 4000 && other.Ghz > 2", "Relax": ["after 1 h: Memory x 0.5"]}
    step = relax_changes.find_step(body, options(), waited=HOUR)
    assert step is not None
    changed = changes.change_body(body, step.values, options()).body
    assert changed["Requirements"] == "other.Memory >= 2000 && other.Ghz > 2"


def test_memory_is_that_of_the_keywords_where_the_requirements_have_none():
    assert relax({"MinRAM": 3000, "Relax": ["after 1 h: Memory x 0.5"]}, 1) == {"MinRAM": 1500, "Relax": []}


def test_what_a_document_states_may_be_less():
    architecture = {"name": "aarch64", "profile": "armv8.0-a", "required_features": ["sve", "mte"]}
    body = {
        "Executable": "a.sh",
        "requirements": {"wall_time": 60, "cpu": {"architecture": architecture}, "io": {"scratch_mb": 90}},
        "Relax": ["after 1 h: MinScratch x 0.5, CPUFeatures without mte", "after 2 h: without CPUFeatures"],
    }
    assert relax(body, 1) == {"MinScratch": 45, "CPUFeatures": ["sve"], "Relax": body["Relax"][1:]}
    assert relax(body, 2) == {"MinScratch": 45, "CPUFeatures": None, "Relax": []}


def test_rules_of_a_vo_pass_over_what_a_job_does_not_ask_for():
    rules = "after 1 h: without CPUModel; after 2 h: without Platform; after 3 h: Memory x 0.5"
    assert relax({"MinRAM": 3000}, 2.5, rules) is None
    assert relax({"MinRAM": 3000}, 3, rules) == {"MinRAM": 1500, "Relax": []}
    body = {"MinRAM": 3000, "Requirements": {"CPUModel": "Xeon"}}
    assert relax(body, 1, rules) == {"CPUModel": None, "Relax": ["after 3 h: Memory x 0.5"]}


def test_a_description_may_refuse_the_rules_of_its_vo():
    assert relax({"MinRAM": 3000, "Relax": []}, 9, "after 1 h: Memory x 0.5") is None


def test_rules_that_an_older_version_stored_and_nobody_can_read_change_nothing():
    assert relax({"MinRAM": 3000, "Relax": ["after a while: Memory x 0.5"]}, 9) is None


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (["after 1 h: without Platform"], ("Relax/Platform", "is not in the description")),
        (["after 1 h: Memory x 0.5"], ("Relax/Memory", "is not a number in the description")),
        (["after 1 h: Tags without gpu"], ("Relax/Tags", "has no value gpu in the description")),
        (["after 1 h: without Owner"], ("Relax/Owner", "is not changed: a job keeps its owner")),
        (["after 1 h: AfterPolicy = any"], ("Relax/AfterPolicy", "a job waits for those that it was submi")),
        (["after 1 h: CPUTime = long"], ("Relax/CPUTime", "allowed is a whole number")),
        (["after 1 h: without Site", "after 2 h: without Site"], ("Relax/Site", "is not in the description")),
    ],
)
def test_rules_that_fit_no_description_of_this_kind_are_named(rules: list[str], problem: tuple[str, str]):
    body = {"Executable": "a.sh", "Site": ["A.B.ch"], "Tags": ["ssd"]}
    [found] = relax_changes.find_unfit_rules(body, rules, options())
    assert found.path == problem[0]
    assert problem[1] in found.message


def test_rules_parse_an_expression_once_while_they_are_checked(monkeypatch: pytest.MonkeyPatch):
    parsed = []
    parse = parser.read_expression
    monkeypatch.setattr(
        "requirements.classad.expression.read_expression", lambda it: parsed.append(it) or parse(it)
    )
    changes.read_comparisons.cache_clear()
    text = " && ".join(f"other.Attr{number} >= {number}" for number in range(100))
    rules = [f"after {hours} h: Attr{hours} x 0.5, Attr{hours} x 0.5" for hours in range(1, 21)]
    body = {"Executable": "a.sh", "Requirements": text}
    assert not list(relax_changes.find_unfit_rules(body, rules, options()))
    assert len(parsed) == 1
