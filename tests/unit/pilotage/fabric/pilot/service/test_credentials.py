import base64
import io
import json
import sys
from pathlib import Path

import pytest

from pilotage.fabric.pilot.service import credentials
from pilotage.fabric.pilot.service.credentials import NoToken


def test_a_token_is_read_from_the_variable() -> None:
    assert credentials.read_token(None, {"PILOTAGE_TOKEN": " abc.def \n"}).text == "abc.def"


def test_a_token_is_read_from_a_file_whatever_the_variable_says(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from.file\n")

    assert credentials.read_token(str(file), {"PILOTAGE_TOKEN": "other"}).text == "from.file"


def test_a_token_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from.stdin\n"))

    assert credentials.read_token("-", {}).text == "from.stdin"


@pytest.mark.parametrize("text", ["", "  \n", "two words", "line\r\nX-Header: 1", "ü", "a\0b"])
def test_what_is_no_token_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(NoToken) as caught:
        credentials.read_token(None, {"PILOTAGE_TOKEN": text})
    assert not text.strip() or text.strip() not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoToken, match="nowhere"):
        credentials.read_token(str(tmp_path / "nowhere"), {})


def test_the_file_of_a_secret_is_removed_once_it_was_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("one-use\n")

    found = credentials.read_secret(str(file), stamp="p1")

    assert (found.text, found.stamp) == ("one-use", "p1")
    assert "one-use" not in repr(found)
    assert not file.exists()


def test_what_is_no_secret_is_left_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("two words")

    with pytest.raises(NoToken, match="is not a secret"):
        credentials.read_secret(str(file), stamp="p1")
    assert file.exists()


def test_a_secret_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one-use\n"))

    assert credentials.read_secret("-", stamp="p1").text == "one-use"


def test_claims_are_read_without_being_trusted() -> None:
    payload = base64.urlsafe_b64encode(json.dumps({"stamp": "abc"}).encode()).decode().rstrip("=")

    assert credentials.read_claims(f"head.{payload}.signature") == {"stamp": "abc"}


@pytest.mark.parametrize("token", ["", "opaque", "a.b.c", "a.W10.c", "a.é.c"])
def test_a_token_that_is_no_jwt_claims_nothing(token: str) -> None:
    assert credentials.read_claims(token) == {}
