"""Lists of the documentation for operators: agents, packages, pages, settings of tables are named all."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path

from agents import leader
from benchmarks.__main__ import BENCHMARKS
from cs_config.options.options import VoOptions
from docs.reference import generate
from examples.servers.postgres import list_settings
from pilotage import extensions
from pilotage.service.pages import navigation, page
from taskqueue.schema.tables import metadata
from tests.support.documents import conditions_table
from tests.support.left_out import needs_every_plugin

PROJECT = Path(__file__).parents[2]
OPERATOR = PROJECT / "docs" / "operator"


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table that begins with a heading row."""
    table = text.partition(f"\n{heading}\n")[2].partition("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]


@needs_every_plugin
def test_every_agent_is_described() -> None:
    described = [
        cells[0].strip("`") for cells in rows((OPERATOR / "README.md").read_text(), "| agent | does |")
    ]
    assert described == list(extensions.list_intervals(leader.INTERVALS, with_optional=True))


def test_a_restore_runs_every_agent_of_the_program_but_retention() -> None:
    [named] = re.findall(r"`pilotage agent (pools [^`]+)`", (OPERATOR / "backups.md").read_text())
    assert named.split() == [name for name in leader.INTERVALS if name != "retention"]


def test_every_extra_is_described() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = rows((OPERATOR / "README.md").read_text(), "| `pip install '.[…]'` | for |")
    assert {cells[0].strip("`") for cells in table} == extras.keys() - {"dev"}


@needs_every_plugin
def test_every_page_of_the_navigation_is_described() -> None:
    table = rows((OPERATOR / "pages.md").read_text(), "| page | shows | beside operators for |")
    described = " ".join(cells[0] for cells in table).lower()
    titles = [each.title for each in page.entries(navigation.list_pages())]
    assert len(titles) > 8
    assert [title for title in titles if title.lower() not in described] == []


def test_documents_name_metrics_that_there_are() -> None:
    there_are = set(re.findall(r"`(pilotage_\w+)`", generate.write_metrics()))
    pages = OPERATOR.parent.rglob("*.md")
    named = {name: page.name for page in pages for name in re.findall(r"`(pilotage_\w+)`", page.read_text())}
    assert len(named) > 10
    assert {name: page for name, page in named.items() if name not in there_are} == {}


def test_every_benchmark_has_a_section() -> None:
    text = (OPERATOR.parent / "developer" / "benchmarks.md").read_text()
    assert re.findall(r"<!-- bench: (\w+) -->", text)[:2] == ["machine", "targets"]
    assert set(re.findall(r"<!-- bench: (\w+) -->", text)[2:]) == BENCHMARKS.keys()


def test_the_table_of_matching_conditions_is_that_of_the_matcher() -> None:
    page = conditions_table.PAGE.read_text()
    assert generate.table_of_conditions() in page, "python -m tests.support.documents.conditions_table"
    assert conditions_table.fill(page) == page


def test_tables_with_settings_are_listed_with_those_that_have_the_same() -> None:
    alike = defaultdict[frozenset[tuple[str, object]], set[str]](set)
    for table in metadata.tables.values():
        settings = dict(table.dialect_options["postgresql"]["with"] or {})
        settings.pop("fillfactor", None)  # it has rows of its own
        if settings:
            alike[frozenset(settings.items())].add(table.name)
    cells = [row[0] for row in rows((OPERATOR / "postgresql.md").read_text(), "| tables | | why |")]
    listed = [sorted(re.findall(r"`(\w+)`", each)) for each in cells if "," in each]
    assert sorted(listed) == sorted(map(sorted, alike.values()))


def test_settings_that_the_page_of_sizes_states_are_there_and_may_have_these_values() -> None:
    text = (OPERATOR / "sizing.md").read_text()
    stated = re.findall(r"`([A-Z]\w+): (\d+)`", text)
    leases = {name: float(value) for name, value in stated}
    assert leases.keys() == {"StalledTime", "LongestHeartbeatTime"}
    options = VoOptions.model_validate({"Leases": leases}).leases
    assert (options.stalled_time, options.longest_heartbeat_time) == tuple(
        leases[name] for name in ("StalledTime", "LongestHeartbeatTime")
    )
    limits = {"WaitingJobsPerVO": 200_000_000, "PilotsPerVO": 2_000_000}
    assert all(f"`{name}`" in text for name in limits)
    VoOptions.model_validate({"Limits": limits, "Retention": {"Jobs": 14}})
    of_postgresql = re.findall(r"`([a-z_]+): \w+`", text)
    assert len(of_postgresql) > 4
    assert set(of_postgresql) <= list_settings()
    commands = generate.write_commands()
    assert all(f"`{option}" in commands for option in re.findall(r"`(--[a-z]+)[ `]", text))
