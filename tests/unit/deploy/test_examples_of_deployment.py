"""The files in deploy/ name commands, settings, files and metrics that exist."""

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pilotage.cli.application import application
from pilotage.cli.settings import PREFIX, Settings
from pilotage.service.metrics import Metrics, StateMetrics

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "pilotage"}


def _units() -> Iterator[tuple[str, list[str]]]:
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        [line] = re.findall(r"^ExecStart=\S+/pilotage (.*)$", unit.read_text(), re.MULTILINE)
        yield unit.stem, shlex.split(line)


STARTED = [*_units(), *((name, service["command"]) for name, service in OURS.items())]


@pytest.mark.parametrize(
    ("arguments"), [command for _, command in STARTED], ids=[name for name, _ in STARTED]
)
def test_what_is_started_is_a_command_with_its_options(arguments: list[str]) -> None:
    program: Any = typer.main.get_command(application())
    name, *rest = arguments
    command = program.get_command(program.make_context("pilotage", [name], resilient_parsing=True), name)
    while hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, list(rest)).close()


def test_variables_are_settings() -> None:
    names = {PREFIX + name.upper() for name in Settings.model_fields}
    said = {name for service in OURS.values() for name in service["environment"]}
    units = "".join(unit.read_text() for unit in (DEPLOY / "systemd").glob("*.service"))
    readme = (DEPLOY / "README.md").read_text()
    assert said
    assert said | set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", units + readme)) <= names


def test_services_of_compose_wait_for_services_and_share_volumes_that_it_has() -> None:
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert {each.partition(":")[0] for each in service.get("volumes", ())} <= set(volumes)
    build = OURS["serve"]["build"]
    context = (DEPLOY / "compose" / build["context"]).resolve()
    assert (context / build["dockerfile"]) == DEPLOY / "Dockerfile"
    assert (context / "pyproject.toml").exists()


def test_the_password_of_the_database_is_the_one_that_the_program_uses() -> None:
    password = COMPOSE["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert f":{password}@postgres/pilotage" in OURS["serve"]["environment"]["PILOTAGE_DATABASE_URL"]


def _metrics() -> Iterator[str]:
    state = StateMetrics(
        living={},
        ended={},
        unmatchable={},
        mended=0,
        place_lookups={},
        pilots={},
        cycles={},
        broken={},
        processes=(),
        advertised={},
        now=datetime.now(UTC),
    )
    text = Metrics().render(state).decode()
    for family in text_string_to_metric_families(text):
        yield from (family.name, f"{family.name}_total", f"{family.name}_bucket")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_look_at_metrics_that_there_are(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\bpilotage_\w+", rule["expr"]))
    assert named or "up{" in rule["expr"]
    assert named <= set(_metrics())
    assert rule["expr"].count("(") == rule["expr"].count(")")
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_prometheus_reads_the_rules_that_lie_beside_its_configuration() -> None:
    configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    for file in configuration["rule_files"]:
        assert (DEPLOY / "prometheus" / file).exists()
    [job] = configuration["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in RULES[0]["expr"]


def test_pgbouncer_gives_each_transaction_a_session() -> None:
    shipped = ConfigParser(interpolation=None)
    shipped.read(DEPLOY / "pgbouncer" / "pgbouncer.ini")
    assert shipped["pgbouncer"]["pool_mode"] == "transaction"


def test_units_allow_more_open_files_than_the_default() -> None:
    for unit in (DEPLOY / "systemd").glob("*.service"):
        assert "\nLimitNOFILE=65536\n" in unit.read_text(), unit.name
