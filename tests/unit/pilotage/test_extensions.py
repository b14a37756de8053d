"""What plug-ins add to commands, settings, agents and routes, and what an absent or broken one does."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from pilotage import entry_points, extensions
from pilotage.cli import application, doctor, settings
from pilotage.cli.doctor import Finding, Health
from pilotage.cli.errors import WrongUsage
from pilotage.cli.processes import agent
from pilotage.cli.settings import InvalidSettings
from pilotage.entry_points import BrokenPlugin
from pilotage.service.pages import templating

PLUGIN = """
from contextlib import contextmanager
from typing import Annotated
from pydantic import BaseModel
from fastapi import APIRouter
from pilotage.cli import options
from pilotage.extensions import Command, CommandGroup, Plugin, PluginAgent

class Tides(BaseModel):
    tide_url: Annotated[str, options.option("URL", "Where tides are read.")] = "none"
    tides: tuple[str, ...] = ()

def tide() -> None:
    "Print the tide."
    print("high")

@contextmanager
def open_tides(context, chosen):
    yield lambda now: f"{chosen.of(Tides).tide_url} {now}"

router = APIRouter(prefix="/tides")
PLUGIN = Plugin(
    package="sea",
    commands={"tide": Command("parts:tide", "Print the tide.", package="sea")},
    subgroups={"config sea": CommandGroup("Seas.", {"tide": "parts:tide"}, package="sea")},
    settings="parts:Tides",
    agents={"tides": PluginAgent(every=7.0, open="parts:open_tides", is_optional=True)},
    log_readers={"tides": "parts:tide"},
    tags={"seas": "Seas and their tides."},
    not_found={"sea": "sea_not_found"},
    pages=("parts:router",),
)
"""
AGENTS = ("tides",)


@pytest.fixture(autouse=True)
def _no_plugin_is_remembered() -> Iterator[None]:
    kept = (extensions.list_plugins, settings.model_with_plugins, templating.environment)
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a package `sea` with these entry points."""

    def make(*points: str) -> None:
        (tmp_path / "sea").mkdir()
        (tmp_path / "sea" / "__init__.py").touch()
        (tmp_path / "sea" / "parts.py").write_text(PLUGIN)
        (tmp_path / "sea" / "wrong.py").write_text("import nowhere\n")
        facts = tmp_path / "sea-1.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: sea\nVersion: 1\n")
        (facts / "entry_points.txt").write_text("\n".join([f"[{extensions.GROUP}]", *points]))
        monkeypatch.syspath_prepend(tmp_path)
        for name in [name for name in sys.modules if name.partition(".")[0] == "sea"]:  # of an earlier test
            monkeypatch.delitem(sys.modules, name)

    return make


def test_a_plugin_adds_commands(install: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    install("sea = sea.parts:PLUGIN")
    for words in (["tide"], ["config", "sea", "tide"]):
        with pytest.raises(SystemExit) as ended:
            application.main(words)
        assert (ended.value.code, capsys.readouterr().out) == (0, "high\n")
    assert "tide" in application.list_commands()


def test_a_plugin_has_settings_agents_and_pages(tmp_path: Path, install: Callable[..., None]) -> None:
    install("sea = sea.parts:PLUGIN")
    tides: type[BaseModel] = extensions.list_plugins()["sea"].find("parts:Tides")
    (tmp_path / "pilotage.yaml").write_text("tides: [spring, neap]\n")
    chosen = settings.load({"home": tmp_path}, {"PILOTAGE_TIDE_URL": "https://sea"})
    assert chosen.of(tides).model_dump(include={"tide_url", "tides"}) == {
        "tide_url": "https://sea",
        "tides": ("spring", "neap"),
    }
    assert settings.load({"home": tmp_path / "other"}, {}).of(tides) == tides()
    assert "tides" in agent.list_names()[len(agent.AGENTS) :]
    with extensions.open_agent("tides", None, chosen) as cycle:
        assert cycle("now") == "https://sea now"  # type: ignore[arg-type]
    assert "tides" not in extensions.list_intervals({}, with_optional=False)
    assert extensions.list_intervals({}, with_optional=True)["tides"] == 7.0
    assert "/tides" in [each.prefix for each in extensions.list_pages()]
    assert extensions.find_log_readers()["tides"] == extensions.list_plugins()["sea"].find("parts:tide")


def test_a_plugin_adds_words_and_templates(tmp_path: Path, install: Callable[..., None]) -> None:
    install("sea = sea.parts:PLUGIN")
    assert extensions.list_tags()["seas"] == "Seas and their tides."
    assert extensions.list_not_found()["sea"] == "sea_not_found"
    (tmp_path / "sea" / "templates" / "sea").mkdir(parents=True)
    (tmp_path / "sea" / "templates" / "sea" / "tide.html").write_text("{{ when }} tide")
    assert templating.environment().get_template("sea/tide.html").render(when="high") == "high tide"


def test_an_absent_plugin_is_listed_and_otherwise_ignored(install: Callable[..., None]) -> None:
    install("gone = sea.away:PLUGIN", "far = faraway.sea:PLUGIN")
    assert not {"gone", "far"} & set(extensions.list_plugins())
    found = {each.subject: each for each in doctor.check_plugins()}
    assert found["plug-in gone"] == Finding(
        "plug-in gone",
        Health.WARNING,
        "left out of this installation: pilotage.plugins names sea.away, which is absent",
    )
    assert "plug-in far" in found


@pytest.mark.parametrize(
    ("point", "problem"),
    [
        ("sea.wrong:PLUGIN", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("sea.parts:NOTHING", "cannot be loaded: AttributeError"),
        ("sea.parts:tide", "is no Plugin"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_an_error_with_its_name(
    point: str, problem: str, install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(f"sea = {point}")
    message = f"pilotage.plugins: sea = {point} {problem}"
    with pytest.raises(BrokenPlugin, match=message):
        extensions.list_plugins()
    with pytest.raises(SystemExit) as ended:
        application.main(["--help"])
    assert (ended.value.code, message in capsys.readouterr().err) == (1, True)
    [finding] = [each for each in doctor.check_plugins() if each.subject == "plug-in sea"]
    assert (finding.health, message in finding.message) == (Health.BAD, True)


def test_names_of_an_absent_plugin_are_unknown_and_the_message_names_what_is_left_out(
    tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("gone = sea.away:PLUGIN")
    (tmp_path / "pilotage.yaml").write_text("tides: [spring, neap]\n")
    hint = "; plug-ins that are left out of this installation may have it: gone"
    with pytest.raises(InvalidSettings, match=f"tides: unknown setting{hint}"):
        settings.load({"home": tmp_path}, {})
    with pytest.raises(WrongUsage, match=f"no agent tides; there are .*{hint}$"):
        agent._check_names(["tides"])
    with pytest.raises(SystemExit):
        application.main(["tide"])
    assert f"No such command 'tide'{hint}" in capsys.readouterr().err


def test_without_absent_plugins_the_message_for_an_unknown_name_ends_there(tmp_path: Path) -> None:
    (tmp_path / "pilotage.yaml").write_text("tides: [spring, neap]\n")
    with pytest.raises(InvalidSettings, match=r"tides: unknown setting \("):
        settings.load({"home": tmp_path}, {})


def test_commands_of_the_program_read_no_entry_points(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry_points, "list_all", lambda group: pytest.fail(f"{group} was read"))
    with pytest.raises(SystemExit):
        application.main(["whoami", "--help"])
    assert "--json" in capsys.readouterr().out
