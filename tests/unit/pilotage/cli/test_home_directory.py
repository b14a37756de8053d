import stat
from pathlib import Path

from pilotage.cli import home_directory
from pilotage.client import connection


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    home_directory.write_client_env(tmp_path, url="http://h:1", token="a b'c")
    assert connection.read_client_env(tmp_path) == {
        "PILOTAGE_URL": "http://h:1",
        "PILOTAGE_TOKEN": "a b'c",
    }


def test_only_its_owner_may_read_the_token(tmp_path: Path) -> None:
    path = home_directory.write_client_env(tmp_path, url="http://h:1", token="t")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_left_by_a_crash_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "client.new").write_text("half")
    home_directory.write_client_env(tmp_path, url="u", token="t")
    assert connection.read_client_env(tmp_path)["PILOTAGE_URL"] == "u"


def test_no_file_says_nothing(tmp_path: Path) -> None:
    assert connection.read_client_env(tmp_path) == {}


def test_the_proxy_is_kept(tmp_path: Path) -> None:
    home_directory.write_client_env(tmp_path, url="u", token="t", proxy="http://proxy:3128")
    assert connection.read_client_env(tmp_path)["PILOTAGE_PROXY"] == "http://proxy:3128"
