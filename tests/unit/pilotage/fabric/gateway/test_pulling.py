"""What a gateway keeps on its disk: names of requests in the manager's book, and its token."""

import base64
import json
import stat
from contextlib import closing
from pathlib import Path

import pytest

from pilotage.fabric.gateway.service import KeptToken
from pilotage.fabric.manager.journal import Journal


def test_a_request_keeps_its_name_over_a_restart_until_it_is_done(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        name = journal.open_request("cms A/b/c")
        assert journal.open_request("dune A/b/c") != name, "another question"
    with closing(Journal(tmp_path)) as journal:
        assert journal.open_request("cms A/b/c") == name
        journal.close_request("cms A/b/c")
        assert journal.requests.keys() == {"dune A/b/c"}
        assert journal.open_request("cms A/b/c") != name


def _token(**claims: object) -> str:
    said = {"sub": "gateway", "role": "gateway", "vos": ["cms"], "sites": ["A"], **claims}
    body = base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")
    return f"e30.{body}.x"


def test_a_renewed_token_serves_the_next_process_and_nobody_else(tmp_path: Path) -> None:
    kept = KeptToken(file=tmp_path / "token")
    given, renewed = _token(exp=1000), _token(exp=2000)
    assert kept.later_of(given) == given
    kept.write(renewed)
    assert kept.later_of(given) == renewed
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "given", [_token(exp=3000), _token(exp=1000, vos=["dune"]), _token(exp=1000, sub="b")]
)
def test_a_later_token_or_one_for_somebody_else_replaces_what_was_kept(tmp_path: Path, given: str) -> None:
    kept = KeptToken(file=tmp_path / "token")
    kept.write(_token(exp=2000))
    assert kept.later_of(given) == given


def test_a_kept_token_that_cannot_be_read_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff")
    assert KeptToken(file=tmp_path / "token").later_of(_token(exp=1)) == _token(exp=1)
