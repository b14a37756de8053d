"""The token of a director or gateway: a file that is given, and the renewed token beside it."""

import base64
import json
import stat
from pathlib import Path

import pytest

from pilotage.cli.processes.token_file import TokenFile
from pilotage.fabric.director.configuration import InvalidDirector

HOUR = 3600.0


def make_token(**claims: object) -> str:
    said = {"sub": "gateway", "role": "gateway", "vos": ["cms"], "sites": ["A"], "iat": 0, **claims}
    body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
    return f"e30.{body}.x"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "given"
    file.write_text("first\n")
    return file


def open_tokens(file: Path, now: float = 0.0) -> TokenFile:
    return TokenFile(file=file, kept=file.with_name("kept"), invalid=InvalidDirector, clock=lambda: now)


def test_a_token_file_that_is_replaced_counts_at_once(file: Path) -> None:
    tokens = open_tokens(file)
    assert tokens() == "first"

    file.write_text("second\n")

    assert tokens() == "second"


def test_a_token_file_that_is_being_written_leaves_the_token_before(file: Path) -> None:
    tokens = open_tokens(file)

    file.write_text("")
    assert tokens() == "first"
    file.unlink()
    assert tokens() == "first"


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe"])
def test_a_file_without_a_token_is_named(file: Path, content: bytes) -> None:
    file.write_bytes(content)

    with pytest.raises(InvalidDirector, match=f"{file}: holds no token"):
        open_tokens(file)


def test_a_renewed_token_serves_the_next_process_too(file: Path) -> None:
    given, renewed = make_token(exp=1000), make_token(exp=2000)
    file.write_text(given)
    assert open_tokens(file)() == given
    open_tokens(file).keep(renewed)

    assert open_tokens(file)() == renewed
    assert stat.S_IMODE(file.with_name("kept").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "given", [make_token(exp=3000), make_token(exp=1000, vos=["dune"]), make_token(exp=1000, sub="b")]
)
def test_a_later_token_or_one_for_somebody_else_replaces_what_was_kept(file: Path, given: str) -> None:
    file.write_text(make_token(exp=1000))
    open_tokens(file).keep(make_token(exp=2000))

    file.write_text(given)

    assert open_tokens(file)() == given


def test_a_kept_token_that_cannot_be_read_does_not_matter(file: Path) -> None:
    file.with_name("kept").write_bytes(b"\xff")

    assert open_tokens(file)() == "first"


def test_a_token_that_was_revoked_is_replaced_by_the_one_in_the_file(file: Path) -> None:
    fresh, revoked = make_token(exp=1000), make_token(exp=2000)
    file.write_text(fresh)
    tokens = open_tokens(file)
    tokens.keep(revoked)

    tokens.reject(tokens())

    assert tokens() == fresh
    tokens.reject(fresh)
    assert tokens() == revoked, "there is nothing else to try"


@pytest.mark.parametrize(
    ("hours", "now", "is_due"),
    [(24, 11, False), (24, 13, True), (8760, 5000, False), (8760, 8749, True), (10, 6, True)],
)
def test_a_token_is_renewed_in_the_second_half_of_its_life(
    file: Path, hours: int, now: int, *, is_due: bool
) -> None:
    file.write_text(make_token(exp=hours * HOUR))

    assert open_tokens(file, now * HOUR).is_due() is is_due
