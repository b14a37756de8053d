"""Each plug-in is left out in turn, or cannot be imported: what the program does without it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGES = ("agents", "cs_config", "matcher", "optimizers", "pilotage", "requirements", "taskqueue")
#: The entry points of each plug-in, and a command that it brings.
PLUGINS = {
    "arc": ({"arc"}, None),
    "batch_check": ({"batch_check"}, None),
    "dirac": ({"dirac"}, "dirac-door"),
    "formats": ({"classad", "cric", "dirac", "formats", "glue2", "osg"}, "config import"),
    "otel": ({"otel"}, "agent traces"),
    "web_hooks": ({"web_hooks"}, "hook list"),
}


def copy_without(plugin: str, directory: Path) -> Path:
    """The packages of the program but the folder of a plug-in."""
    plugins = directory / "pilotage" / "plugins"
    plugins.mkdir(parents=True)
    for package in PACKAGES:
        if package != "pilotage":
            (directory / package).symlink_to(PROJECT / package)
    for above in (directory / "pilotage", plugins):
        for each in (PROJECT / above.relative_to(directory)).iterdir():
            if each.name not in ("plugins", plugin, "__pycache__"):
                (above / each.name).symlink_to(each)
    return directory


def start(source: Path, words: Sequence[str]) -> subprocess.Popen[str]:
    """The program with the packages in a directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE")}
    return subprocess.Popen(
        [sys.executable, "-m", "pilotage.cli", *words, "--home", str(source / "home")],
        cwd=source,
        env={**kept, "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(source: Path, *words: str) -> tuple[int, str]:
    """The exit status of a command, and what it prints."""
    process = start(source, words)
    shown, errors = process.communicate()
    return process.returncode, shown + errors


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_service_starts_without_it_and_doctor_lists_it(plugin: str, tmp_path: Path) -> None:
    source = copy_without(plugin, tmp_path)
    points, command = PLUGINS[plugin]
    up = start(source, ["up", "--port", "0", "--json"])
    assert up.stdout is not None
    ready = up.stdout.readline()
    try:
        assert "http://" in ready, up.communicate()[1]
        status, shown = run(source, "job", "list", "--json")
        assert (status, json.loads(shown)["jobs"]) == (0, [])
        status, shown = run(source, "doctor", "--json")
        assert status == 0, shown
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate()
    found = json.loads(shown)["findings"]
    absent = {each["subject"].partition(" ")[2] for each in found if "left out" in each["message"]}
    assert absent == points
    if command is not None:
        assert run(source, *command.split())[0] == 2


@pytest.mark.parametrize("plugin", PLUGINS)
def test_one_that_cannot_be_imported_is_an_error_with_its_name(plugin: str, tmp_path: Path) -> None:
    source = copy_without(plugin, tmp_path)
    broken = source / "pilotage" / "plugins" / plugin
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('torn')\n")
    points, _ = PLUGINS[plugin]
    status, shown = run(source, "doctor", "--json")
    bad = {
        each["subject"].partition(" ")[2]
        for each in json.loads(shown)["findings"]
        if each["health"] == "bad" and each["message"].endswith("cannot be loaded: ImportError: torn")
    }
    assert (status, bad) == (1, points)
    if plugin != "arc":  # which only those who use it load
        status, shown = run(source, "up", "--port", "0")
        assert (status, f"pilotage.plugins: {plugin} = " in shown) == (1, True), shown
