"""The tutorials: somebody who types what they say sees what they show."""

from pathlib import Path

import pytest

from tests import tutorials

ROOT = Path(__file__).parent.parent.parent
ON_ONE_MACHINE = ("docs/user/first-job.md", "docs/site-admin/first-queue.md", "docs/vo-admin/first-change.md")


@pytest.mark.parametrize("name", ON_ONE_MACHINE)
def test_a_tutorial_of_one_machine_can_be_followed(name: str, tmp_path: Path) -> None:
    assert tutorials.follow_at_home(ROOT / name, tmp_path) > 5
