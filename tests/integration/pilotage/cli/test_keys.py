import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pilotage.cli import application
from taskqueue.db.clock import DatabaseClock


def pilotage(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        application.main([str(each) for each in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_keys_are_listed_rotated_and_retired(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    home = ("--home", tmp_path)
    pilotage(capsys, "token", "--role", "operator", *home)
    [first] = json.loads(pilotage(capsys, "key", "list", "--json", *home)[1])["keys"]
    assert first["signs"]
    rotated = json.loads(pilotage(capsys, "key", "rotate", "--keep", "2", "--json", *home)[1])["keys"]
    assert [key["signs"] for key in rotated] == [True, False]
    assert rotated[1]["key"] == first["key"]
    status, text, _ = pilotage(capsys, "key", "list", *home)
    assert (status, "verifies until" in text) == (0, True)
    status, _, error = pilotage(capsys, "key", "retire", rotated[0]["key"], *home)
    assert (status, "no previous key" in error) == (1, True)
    assert pilotage(capsys, "key", "retire", first["key"], *home)[0] == 0
    assert "verifies until" not in pilotage(capsys, "key", "list", *home)[1]


def test_tokens_are_signed_by_the_clock_of_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    there = datetime(2031, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(DatabaseClock, "read", lambda _: there)
    home = ("--home", tmp_path)
    words = ("token", "--role", "operator", "--ttl", 60, "--json", *home)
    assert "2031" not in pilotage(capsys, *words)[1]  # there is no database yet
    pilotage(capsys, "db", "upgrade", *home)
    assert json.loads(pilotage(capsys, *words)[1])["expires_at"] == (there + timedelta(minutes=1)).isoformat()


def test_a_home_without_an_installation_has_no_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "something").touch()
    status, _, error = pilotage(capsys, "key", "rotate", "--home", tmp_path)
    assert status == 1
    assert "no installation was made here" in error
