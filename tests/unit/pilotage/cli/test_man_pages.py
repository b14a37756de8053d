"""Manual pages, made from the same structures as `--help`."""

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from pilotage.cli import application, man_pages
from tests.support.left_out import needs_every_plugin


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    written = man_pages.write_pages(tmp_path_factory.mktemp("man"))
    return {file.stem: file for file in written}


@needs_every_plugin
def test_each_command_has_a_page(pages: dict[str, Path]) -> None:
    assert {f"pilotage-{name}" for name in application.list_commands()} < pages.keys()
    assert {"pilotage", "pilotage-job-list", "pilotage-config-import-dirac"} < pages.keys()


def test_a_page_has_every_option_with_its_help(pages: dict[str, Path]) -> None:
    command = get_command(application.application(["job", "list"]))
    listed = command.commands["job"].commands["list"]  # type: ignore[attr-defined]
    page = pages["pilotage-job-list"].read_text().replace(r"\-", "-")
    for each in listed.params:
        assert each.help.split("…")[0] in page
    assert r"--status S1,S2" in page


def test_signs_of_roff_have_no_meaning_in_a_text() -> None:
    command = get_command(application.application(["config", "set"]))
    setting = command.commands["config"].commands["set"]  # type: ignore[attr-defined]
    page = "\n".join(man_pages.format_page(["pilotage", "config", "set"], setting))
    assert "[el8, el9]" in page
    assert page.isascii()


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_pages_are_roff_without_a_fault(pages: dict[str, Path]) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", *pages.values()], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "Only jobs with one of these statuses." in done.stdout
