"""The next release that the campaign upgrades to."""

from pathlib import Path

from tests.acceptance.campaign import next_release


def test_the_next_release_can_be_made_of_this_one(tmp_path: Path) -> None:
    """A line that it changes may have changed here: then the campaign's list of changes has to follow."""
    made = next_release.make(tmp_path)
    assert (made / "taskqueue" / "migrations" / "versions" / "0003_next_release.py").exists()
