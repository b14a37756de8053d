"""The table of shares."""

import io

from rich.console import Console

from pilotage.cli.commands import share


def _show(*shares: dict[str, object]) -> list[str]:
    own = {"owner_group": "cms_user", "owner": None, "is_own": False, "place": 1, "configured": 1000}
    rows = [{**own, "used": [], "share": 1000, "part": 1.0, "waiting": 7, **each} for each in shares]
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(share._shares({"vo": "cms", "is_corrected": False, "shares": rows}))
    return console.export_text().splitlines()


def test_jobs_without_a_queue_have_a_column_where_there_are_any() -> None:
    lines = _show({"stuck": 4}, {"stuck": 0})
    assert any("Waiting   No queue   Configured" in line for line in lines)
    assert [line.split()[2:5] for line in lines if "cms_user" in line] == [["–", "7", "4"], ["–", "7", "0"]]
    for none in ({"stuck": 0}, {}):  # a service of 1.0 does not tell
        assert not any("No queue" in line for line in _show(none))
