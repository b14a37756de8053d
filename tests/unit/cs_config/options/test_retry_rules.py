"""Rules of retry: which ends they name, and what they change."""

import pytest

from cs_config.options import bounds, retry_rules
from cs_config.options.job_rules import ChangeKind, JobRuleError, ValueChange
from cs_config.options.retry_rules import Ending, parse_rule
from pilotage.fabric.pilot.payload import monitor, payload

KILLED = Ending(reason="Application Finished With Errors", exit_code=137)
LOST = Ending(reason=retry_rules.PILOT_LOST)


def find(text: str, ending: Ending) -> str | None:
    rules = [parse_rule(each) for each in retry_rules.read_rules(text)]
    found = retry_rules.find_rule(rules, ending)
    return None if found is None else found.text


@pytest.mark.parametrize(
    "raw",
    [
        "137 or  memory limit: Memory x 1.5, twice; 65: another site",
        ["137 or memory limit: Memory x 1.5, twice", "65: another site"],
        {"137 or memory limit": "Memory x 1.5, twice", 65: "another site"},
        [{"137 or memory limit": "Memory x 1.5, twice"}, {65: "another site"}],
    ],
)
def test_rules_are_a_text_a_list_or_a_record(raw: object):
    assert retry_rules.read_rules(raw) == ("137 or memory limit: Memory x 1.5, twice", "65: another site")


def test_a_rule_has_ends_changes_a_delay_and_a_number_of_times():
    rule = parse_rule("64-78, Pilot Lost: CPUTime × 2, Tags = 'big', after 3 min, another site, 4 times")
    assert (rule.codes, rule.reasons, rule.times) == (((64, 78),), ("pilot lost",), 4)
    assert rule.values == (
        ValueChange(name="CPUTime", kind=ChangeKind.SCALE, value=2.0),
        ValueChange(name="Tags", kind=ChangeKind.SET, value="big"),
    )
    assert (rule.delay, rule.is_elsewhere) == (180, True)


def test_the_first_rule_that_names_an_end_decides():
    rules = "137: once; any failure: twice; pilot lost: never"
    assert find(rules, KILLED) == "137: once"
    assert find(rules, Ending(reason="Application not found")) == "any failure: twice"
    assert find(rules, LOST) == "pilot lost: never"
    assert find("1: once; 1 or 137: twice", KILLED) == "1 or 137: twice"


def test_a_lost_pilot_is_no_failure():
    assert find("any failure: twice", LOST) is None


def test_uses_are_the_ends_that_a_rule_decided_about():
    rules = [parse_rule("137: once"), parse_rule("any failure: twice")]
    before = [KILLED, Ending(reason="Application not found"), KILLED, LOST]
    assert [retry_rules.count_uses(rules, each, before) for each in rules] == [2, 1]


def test_reasons_are_those_that_pilots_report():
    reported = {
        *(monitor.OUT_OF_MEMORY, monitor.OUT_OF_TIME, monitor.OUT_OF_SCRATCH),
        *(payload.NO_SANDBOX, payload.NO_OUTPUT, payload.NOT_FOUND),
    }
    assert {each[0] for each in retry_rules.REASONS.values()} == {*reported, retry_rules.PILOT_LOST}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (42, "is no text"),
        ("137", "allowed is"),
        ("137:", "allowed is"),
        (": twice", "allowed is"),
        ("9-2: twice", "9 is more than 2"),
        ("memory limmit: twice", "did you mean memory limit"),
        ("1: Memory x 10.5", "allowed are factors up to 10"),
        ("1: Memory x 0", "allowed are factors up to 10"),
        ("1: sometimes", "'sometimes' is no change"),
        ("1: after 1000 h", "allowed are 168 h"),
        ("1: 11 times", "allowed are 10"),
        ("1: Memory = ", "is no change"),
        ("1: Memory x 1.0, twice", "'Memory x 1.0' changes nothing"),
        ("1: once, 3 times", "allowed is one number of times, not once and 3 times"),
        ("1: after 1 min, after 2 h", "allowed is one time to wait"),
        ("1: never, another site", "what never runs again has no other changes"),
        ("1: Memory x 2, 0 times", "what never runs again has no other changes"),
        ("1 or 2: once; 3: once; 3 or 1: twice", "'3 or 1: twice' never applies"),
        ("any failure: once; 137 or memory limit: Memory x 2", "'137 or memory limit: Memory x 2' never"),
        ("1: " + "a" * bounds.JOB_RULE, "characters, allowed are"),
        (";".join(f"{code}: once" for code in range(21)), "21 rules are too many"),
        (";" * 100_000, "has 100000 characters, allowed are"),
        (
            "; ".join(f"{code}: no change" for code in range(21)),
            "21 rules are too many",
        ),  # counted before they are read
    ],
)
def test_what_is_no_rule_is_refused_with_what_is_allowed(text: object, problem: str):
    with pytest.raises(JobRuleError, match=problem):
        retry_rules.read_rules(text)
