"""What `pilotage db upgrade` prints of tables that there were, or were not."""

from pathlib import Path

from tests.support.commands import Run, run

__all__ = ["run"]


def test_tables_are_created_once(tmp_path: Path, run: Run) -> None:
    shown = [run("db", "upgrade", "--home", tmp_path)[1] for _ in range(2)]
    assert [text.strip().partition(", ")[2] for text in shown] == ["was created", "is up to date"]
