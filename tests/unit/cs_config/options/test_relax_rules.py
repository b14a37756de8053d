"""Rules of relaxation: after how long, and what is given up."""

import pytest

from cs_config.options import bounds, relax_rules
from cs_config.options.job_rules import ChangeKind, JobRuleError, ValueChange

TWO = ("after 90 min: without CPUModel", "after 6 h: Memory x 0.5")


@pytest.mark.parametrize(
    "raw",
    [
        "after 6 h:  Memory x 0.5; after 90 min: without CPUModel",
        ["after 6 h: Memory x 0.5", "after 90 min: without CPUModel"],
        {"after 6 h": "Memory x 0.5", "after 90 min": "without CPUModel"},
    ],
)
def test_rules_are_in_the_order_of_their_times(raw: object):
    assert relax_rules.read_rules(raw) == TWO
    assert relax_rules.find_first(TWO) == 5400


def test_no_rules_have_no_first_one():
    assert relax_rules.read_rules({}) == ()
    assert relax_rules.find_first(()) == 0


def test_a_rule_has_a_time_and_changes():
    rule = relax_rules.parse_rule(
        "after 2h: Tags without gpu, without Platform, Memory x 0.5, System = Linux"
    )
    assert rule.after == 7200
    assert rule.changes == "Tags without gpu, without Platform, Memory x 0.5, System = Linux"
    assert rule.values == (
        ValueChange(name="Tags", kind=ChangeKind.REMOVE, value="gpu"),
        ValueChange(name="Platform", kind=ChangeKind.DROP),
        ValueChange(name="Memory", kind=ChangeKind.SCALE, value=0.5),
        ValueChange(name="System", kind=ChangeKind.SET, value="Linux"),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (42, "is no text, such as 'after 2 h"),
        ("after 2 h", "allowed is 'after 2 h: changes'"),
        ("137: Memory x 0.5", "'137' is no time to wait, allowed is 'after 2 h'"),
        ("after 59 s: without Tags", "is too short, allowed are 60 s at least"),
        ("after 1000 h: without Tags", "allowed are 168 h"),
        ("after 2 h: without Tags, Memory x 1", "'Memory x 1' changes nothing"),
        ("after 2 h: twice", "'twice' is no change, allowed are Name x 1.5"),
        ("after 2 h: " + "a" * bounds.JOB_RULE, "characters, allowed are"),
        (";".join(f"after {hours} h: without Tags" for hours in range(1, 22)), "21 rules are too many"),
        (
            "; ".join(f"never {number}: at all" for number in range(21)),
            "21 rules are too many",
        ),  # counted before they are read
        (
            ["after 2 h: " + ",".join(["without A"] * 20), "after 3 h: " + ",".join(["without A"] * 21)],
            "41 changed values are too many",
        ),
    ],
)
def test_what_is_no_rule_of_relaxation_is_refused(text: object, problem: str):
    with pytest.raises(JobRuleError, match=problem):
        relax_rules.read_rules(text)
