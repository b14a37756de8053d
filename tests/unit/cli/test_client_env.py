import stat
from pathlib import Path

from pilotage.cli import client_env


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    client_env.write(tmp_path, url="http://h:1", token="a b'c")
    assert client_env.read(tmp_path) == {"PILOTAGE_URL": "http://h:1", "PILOTAGE_TOKEN": "a b'c"}


def test_only_its_owner_may_read_the_token(tmp_path: Path) -> None:
    path = client_env.write(tmp_path, url="http://h:1", token="t")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_left_by_a_crash_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "client.new").write_text("half")
    client_env.write(tmp_path, url="u", token="t")
    assert client_env.read(tmp_path)["PILOTAGE_URL"] == "u"


def test_no_file_says_nothing(tmp_path: Path) -> None:
    assert client_env.read(tmp_path) == {}
