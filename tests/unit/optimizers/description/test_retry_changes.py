"""Values that rules of retry give a description."""

import pytest

from cs_config import validate
from cs_config.options import retry_rules
from cs_config.options.operations import options_for
from optimizers.description import changes, description, retry_changes
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


def test_rules_change_what_a_document_states():
    ram = {"request": {"overhead": 1000, "per_core": 500}, "limit": {"overhead": 1200, "per_core": 500}}
    cpu = {"ram_mb": ram, "architecture": {"name": "x86_64", "level": "x86-64-v2"}}
    body = {
        "Executable": "a.sh",
        "requirements": {"wall_time": 60, "cpu": cpu},
        "banned_sites": ["LCG.A.org"],
    }
    text = "memory limit: Memory x 1.5, WallTime x 2, another site"
    assert not list(retry_changes.find_unfit_rules(body, [text], options()))
    run = retry_changes.FailedRun(site="LCG.B.org")
    values = retry_changes.find_values(retry_rules.parse_rule(text), body, options(), run)
    changed = changes.change_body(body, values, options()).body
    read = description.parse_description(changed, options())
    assert (read.min_ram_mb, read.min_ram_per_core_mb, read.wall_time) == (1500, 750, 120)
    assert read.banned_sites == ("LCG.A.org", "LCG.B.org")
    assert changed["requirements"]["cpu"]["ram_mb"]["limit"] == {"overhead": 1800, "per_core": 750}
    assert sorted(changed) == ["Executable", "banned_sites", "requirements"]


@pytest.mark.parametrize(
    ("declared", "beside", "requested"),
    [
        ("{}", {}, (5000, 200)),  # what it may use at most
        ("{MinRAM: {default: 2000}}", {}, (4000, 0)),
        ("{MinRAM: {default: 2000}}", {"MinRAMPerCore": 50}, (0, 100)),
        ("{}", {"MinRAM": 1000, "MinRAMPerCore": 50}, (2000, 100)),
    ],
)
def test_a_limit_without_a_request_beside_it_grows_by_the_same_factor(
    declared: str, beside: dict[str, object], requested: tuple[int, int]
) -> None:
    text = f"Registry: {{VO: {{cms: {{}}}}}}\nOperations: {{Defaults: {{JobDescription: {declared}}}}}"
    vo = options_for(validate.parse(text, "grid.yaml", 1), "cms")
    ram = {"limit": {"overhead": 2500, "per_core": 100}}
    cpu = {"ram_mb": ram, "architecture": {"name": "x86_64", "level": "x86-64-v2"}}
    body = {"Executable": "a.sh", "requirements": {"wall_time": 60, "cpu": cpu}, **beside}
    rule = retry_rules.parse_rule("memory limit: Memory x 2")
    values = retry_changes.find_values(rule, body, vo, retry_changes.FailedRun(ram_mb=64_000))
    changed = changes.change_body(body, values, vo).body
    read = description.parse_description(changed, vo)
    assert (read.min_ram_mb, read.min_ram_per_core_mb) == requested
    assert changed["requirements"]["cpu"]["ram_mb"]["limit"] == {"overhead": 5000, "per_core": 200}


@pytest.mark.parametrize("stated", [{"banned_sites": "A, B", "requirements": {}}, {"BannedSites": "A, B"}])
def test_another_site_keeps_what_one_text_bans(stated: dict[str, object]) -> None:
    rule = retry_rules.parse_rule("1: another site")
    run = retry_changes.FailedRun(site="C")
    found = retry_changes.find_values(rule, {"Executable": "a.sh", **stated}, options(), run)
    assert found == {"BannedSites": ["A", "B", "C"]}


@pytest.mark.parametrize("change", ["After = 1", "without AfterPolicy", "Owner = eve"])
def test_rules_change_nothing_that_a_job_keeps(change):
    body = {"Executable": "a.sh", "After": [1], "AfterPolicy": "any"}
    [found] = retry_changes.find_unfit_rules(body, [f"1: {change}"], options())
    assert found.message.startswith("is not changed: ")
