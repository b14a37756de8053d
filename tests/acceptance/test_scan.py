"""The physicist's scan of the tutorial: points that fail get more memory, all results are plotted."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.one_machine import Home

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "examples" / "scan"
TUTORIAL = PROJECT / "docs" / "user" / "scan.md"
POINTS = 10


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("scan") / "home")
    resources = str(EXAMPLE / "site.yaml")
    with home.running("--resources", resources, "--site", "LCG.Example.org", "--pilots", "2"):
        yield home


def scan(home: Home, directory: Path) -> list[str]:
    """What the program prints for a few points."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "scan.py", str(POINTS)],
        env=home.environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("rule", "failed"), [("", 1), ('"Retry": "1: Memory x 3", ', 0)], ids=["copies", "rule"]
)
def test_points_that_fail_for_memory_get_more_and_all_are_plotted(
    up: Home, tmp_path: Path, rule: str, failed: int
) -> None:
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    program = tmp_path / "scan.py"
    program.write_text(program.read_text().replace("point = {", f"point = {{{rule}"))
    assert scan(up, tmp_path) == [
        f"{POINTS} points, {failed} failed",
        f"{POINTS} points in scan.svg, the highest at 91.2 GeV",
    ]
    assert (tmp_path / "scan.svg").read_text().count("<circle ") == POINTS
    latest = up.json("job", "list", "--group", "scan", "--limit", POINTS)["jobs"]
    assert [each["status"] for each in latest].count("Failed") == failed
    assert max(each["epoch"] for each in latest) == 2 - failed


def test_the_program_is_short_and_the_tutorial_shows_the_files_of_the_example() -> None:
    assert len((EXAMPLE / "scan.py").read_text().splitlines()) <= 25
    blocks = re.findall(r"`([\w.]+)`:\n\n```\w*\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    assert dict(blocks) == {each.name: each.read_text() for each in EXAMPLE.iterdir() if each.is_file()}
