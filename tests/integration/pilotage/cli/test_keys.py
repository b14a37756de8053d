import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from taskqueue.db.clock import DatabaseClock
from tests.support.commands import Run, run

__all__ = ["run"]


def test_keys_are_listed_rotated_and_retired(tmp_path: Path, run: Run):
    home = ("--home", tmp_path)
    run("token", "--role", "operator", *home)
    [first] = json.loads(run("key", "list", "--json", *home)[1])["keys"]
    assert first["signs"]
    rotated = json.loads(run("key", "rotate", "--keep", "2", "--json", *home)[1])["keys"]
    assert [key["signs"] for key in rotated] == [True, False]
    assert rotated[1]["key"] == first["key"]
    status, text, _ = run("key", "list", *home)
    assert (status, "verifies until" in text) == (0, True)
    status, _, error = run("key", "retire", rotated[0]["key"], *home)
    assert (status, "no previous key" in error) == (1, True)
    assert run("key", "retire", first["key"], *home)[0] == 0
    assert "verifies until" not in run("key", "list", *home)[1]


def test_tokens_are_signed_by_the_clock_of_the_database(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    there = datetime(2031, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(DatabaseClock, "read", lambda _: there)
    home = ("--home", tmp_path)
    words = ("token", "--role", "operator", "--ttl", 60, "--json", *home)
    end = (there + timedelta(minutes=1)).isoformat()
    assert json.loads(run(*words)[1])["expires_at"] != end  # there is no database yet
    run("db", "upgrade", *home)
    assert json.loads(run(*words)[1])["expires_at"] == end


def test_a_home_without_an_installation_has_no_keys(tmp_path: Path, run: Run):
    (tmp_path / "something").touch()
    status, _, error = run("key", "rotate", "--home", tmp_path)
    assert status == 1
    assert "no installation was made here" in error
