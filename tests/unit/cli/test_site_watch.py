"""What a command at a gateway prints."""

import pytest

from pilotage.cli import site_watch
from pilotage.cli.failures import WrongUsage


def test_names_and_values_are_read_from_lines() -> None:
    text = "# counted by ps\nCurrentJobs=12\n\n Load = 0.5\nName=a=b\nDraining=true\nFactor=inf\n"
    said = {"CurrentJobs": 12, "Load": 0.5, "Name": "a=b", "Draining": True, "Factor": "inf"}
    assert site_watch.read(text) == said


def test_or_from_a_json_object() -> None:
    assert site_watch.read('\n{"CurrentJobs": 3, "attempts_seen": ["a"]}') == {
        "CurrentJobs": 3,
        "attempts_seen": ["a"],
    }


@pytest.mark.parametrize("text", ["CurrentJobs", "=3", "{broken"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises((WrongUsage, ValueError)):
        site_watch.read(text)
