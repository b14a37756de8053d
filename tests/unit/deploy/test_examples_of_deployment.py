"""The files in deploy/ name commands, settings, files and metrics that exist."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from configparser import ConfigParser
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cs_config import validate
from pilotage.cli.application import application
from pilotage.cli.settings import PREFIX, model_with_plugins
from pilotage.service.metrics import Metrics, StateMetrics
from tests.support.left_out import needs_every_plugin
from tests.support.routes_by_role import ROUTES
from tests.support.servers import http_servers

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = yaml.load((DEPLOY / "compose" / "compose.yaml").read_text(), yaml.CSafeLoader)
ALERTS = yaml.load((DEPLOY / "prometheus" / "alerts.yaml").read_text(), yaml.CSafeLoader)
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "pilotage"}


def _units() -> Iterator[tuple[str, list[str]]]:
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        text = unit.read_text().replace("\\\n", " ")
        [line] = re.findall(r"^ExecStart=\S+/pilotage (.*)$", text, re.MULTILINE)
        yield unit.stem, shlex.split(line)


HOST = yaml.load((DEPLOY / "compose" / "host.yaml").read_text(), yaml.CSafeLoader)["services"]
STARTED = [
    *_units(),
    *((name, service["command"]) for name, service in OURS.items()),
    *((f"host {name}", service["command"]) for name, service in HOST.items()),
]


@needs_every_plugin
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
    names = {PREFIX + name.upper() for name in model_with_plugins().model_fields}
    said = {name for service in (*OURS.values(), *HOST.values()) for name in service["environment"]}
    units = "".join(unit.read_text() for unit in (DEPLOY / "systemd").glob("*.service"))
    readme = (DEPLOY / "README.md").read_text()
    assert said
    assert said | set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", units + readme)) <= names


def test_services_of_compose_wait_for_services_and_share_volumes_that_it_has() -> None:
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        mounted = {each.partition(":")[0] for each in service.get("volumes", ())}
        files = {each for each in mounted if each.startswith("./")}
        assert mounted - files <= set(volumes)
        assert all((DEPLOY / "compose" / each).is_file() for each in files)
    build = OURS["serve"]["build"]
    context = (DEPLOY / "compose" / build["context"]).resolve()
    assert (context / build["dockerfile"]) == DEPLOY / "Dockerfile"
    assert (context / "pyproject.toml").exists()


def test_the_password_of_the_database_is_the_one_that_the_program_uses() -> None:
    password = COMPOSE["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert f":{password}@postgres/pilotage" in OURS["serve"]["environment"]["PILOTAGE_DATABASE_URL"]


def test_compose_has_no_default_passwords() -> None:
    for file in ("compose.yaml", "host.yaml"):
        text = (DEPLOY / "compose" / file).read_text()
        assert set(re.findall(r"\$\{\w+(:?.)", text)) == {":?"}, file


def _metrics() -> Iterator[str]:
    state = StateMetrics(
        living={},
        ended={},
        stuck_pools={},
        unmatched={},
        mended=0,
        place_lookups={},
        runnable={},
        pilots={},
        cycles={},
        overdue={},
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


def test_alerts_and_panels_name_routes_as_metrics_do() -> None:
    expressions = [rule["expr"] for rule in RULES]
    expressions += [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    named = set(re.findall(r'\broute="([^"]*)"', " ".join(expressions)))
    assert named
    assert named <= {route for _, route, *_ in ROUTES}


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
    units = list((DEPLOY / "systemd").glob("*.service"))
    assert units
    for unit in units:
        assert "\nLimitNOFILE=65536\n" in unit.read_text(), unit.name


def test_each_timer_starts_a_unit() -> None:
    timers = {timer.stem for timer in (DEPLOY / "systemd").glob("*.timer")}
    assert timers
    assert timers <= {unit.stem for unit in (DEPLOY / "systemd").glob("*.service")}


def test_the_import_of_a_configuration_server_is_a_proposal_with_a_guard_and_a_token_of_its_own() -> None:
    text = (DEPLOY / "systemd" / "pilotage-dirac-import.service").read_text()
    assert "--apply --guard stuck_jobs=0" in text
    [words] = re.findall(r"\$\$\(\S+/pilotage (.*?)\)", text)
    program: Any = typer.main.get_command(application())
    name, *rest = shlex.split(words)
    program.commands[name].make_context(name, rest).close()


def test_an_import_without_a_token_fails_at_the_command_that_makes_it(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "pilotage-dirac-import.service").read_text()
    [line] = re.findall("^ExecStartPre=(.*)$", text, re.MULTILINE)
    for program, is_made in (("/bin/false", False), ("/bin/echo", True)):
        words = shlex.split(line.replace("/opt/pilotage/bin/pilotage", program).replace("$$", "$"))
        words[-1] = words[-1].replace("/run/pilotage-dirac-import", str(tmp_path))
        done = subprocess.run(words, check=False)
        assert (done.returncode == 0, (tmp_path / "token").exists()) == (is_made, is_made)
    assert (tmp_path / "token").read_text().startswith("PILOTAGE_TOKEN=token --role operator")


def test_the_service_of_compose_becomes_ready_with_the_configuration_beside_it() -> None:
    command = OURS["serve"]["command"]
    inside = command[command.index("--resources") + 1]
    [file] = (each.split(":")[0] for each in OURS["serve"]["volumes"] if each.split(":")[1] == inside)
    assert validate.load_file(DEPLOY / "compose" / file).addresses
    for services in (OURS, HOST):
        assert "/readyz" in services["serve"]["healthcheck"]["test"][-1]


def test_the_image_is_built_in_stages_so_that_an_edit_installs_no_dependency_again() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    dependencies = next(n for n, line in enumerate(lines) if "--require-hashes" in line)
    whole = lines.index("COPY . /source")
    assert dependencies < whole
    last = max(n for n, line in enumerate(lines) if line.startswith("FROM"))
    assert whole < last, "the source is not in the image"


@pytest.mark.parametrize(
    ("command", "answer", "is_healthy"),
    [
        ("pilotage serve --workers 2", 200, True),
        ("pilotage serve --workers 2", 503, False),
        ("pilotage up", None, False),
        ("pilotage worker", None, True),
        ("pilotage agent all", None, True),
    ],
)
def test_the_image_is_healthy_while_its_service_is_ready(
    tmp_path: Path, command: str, answer: int | None, *, is_healthy: bool
) -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    [check] = re.findall(r"^HEALTHCHECK .*? CMD (.*)$", text, re.MULTILINE)
    first = tmp_path / "cmdline"
    first.write_text("\0".join(["/opt/pilotage/bin/python", *command.split()]) + "\0")

    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer if answer and self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing of it is wanted."""

    server = HTTPServer(("127.0.0.1", 0), Ready)
    with http_servers.answering(server):
        tried = check.replace("/proc/1/cmdline", str(first)).replace(":8750/", f":{server.server_port}/")
        done = subprocess.run(["sh", "-c", tried], check=False, capture_output=True, timeout=300)
    assert (done.returncode == 0) is is_healthy


#: What a process of the installation needs none of.
CLOSED = (
    "ProtectHome=true",
    "PrivateDevices=true",
    "CapabilityBoundingSet=",
    "SystemCallFilter=@system-service",
)


@pytest.mark.parametrize("name", ["serve", "worker", "agent", "up", "dirac-door", "dirac-import"])
def test_units_close_what_the_program_does_not_need(name: str) -> None:
    lines = (DEPLOY / "systemd" / f"pilotage-{name}.service").read_text().splitlines()
    assert set(CLOSED) <= set(lines)


BOARD = json.loads((DEPLOY / "grafana" / "pilotage.json").read_text())


@pytest.mark.parametrize("panel", BOARD["panels"], ids=lambda panel: panel["title"])
def test_panels_of_the_dashboard_show_metrics_and_labels_that_there_are(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        expression = target["expr"]
        named = set(re.findall(r"\bpilotage_\w+", expression))
        assert named
        assert named <= set(_metrics())
        assert expression.count("(") == expression.count(")")
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(re.findall(r"\w+", expression))


def test_no_two_panels_of_the_dashboard_have_one_place() -> None:
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in BOARD["panels"]]
    assert len(set(places)) == len(places) == len({each["id"] for each in BOARD["panels"]})
