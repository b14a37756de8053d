"""The tutorials: somebody who types what they say sees what they show."""

from pathlib import Path

import pytest

from examples.servers.starting import free_port
from tests import tutorials

ROOT = Path(__file__).parent.parent.parent
ON_ONE_MACHINE = ("docs/user/first-job.md", "docs/site-admin/first-queue.md", "docs/vo-admin/first-change.md")


@pytest.mark.timeout(600)
def test_what_the_front_page_says_can_be_typed(tmp_path: Path) -> None:
    port, install = str(free_port()), "~/pilotage/bin/pip install ."
    instead = {install: tutorials.installed("~/pilotage"), "python3 -m venv": "python3 -m venv --without-pip"}
    with tutorials.at_home(tmp_path) as shell:
        shell.run(f"export PILOTAGE_PORT={port}; cd {ROOT}")
        assert tutorials.follow(ROOT / "README.md", {"here": shell}, part="## Use it", instead=instead) == 7


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ON_ONE_MACHINE)
def test_a_tutorial_of_one_machine_can_be_followed(name: str, tmp_path: Path) -> None:
    assert tutorials.follow_at_home(ROOT / name, tmp_path) > 5
