"""The next release that the campaign upgrades to."""

from pathlib import Path

from tests.acceptance.campaign import next_release


def test_the_next_release_can_be_made_of_this_one(tmp_path: Path) -> None:
    """A line that it changes may have changed here: then the campaign's list of changes has to follow."""
    made = next_release.make(tmp_path)
    names = sorted(file.name for file in (made / "taskqueue/migrations/versions").glob("[0-9]*.py"))
    assert names[-1].endswith("_next_release.py")
    assert len({name[:4] for name in names}) == len(names)
