import stat
from pathlib import Path

from pilotage.cli import home_directory, home_lock, settings
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


def test_commands_take_over_the_settings_of_the_running_service(tmp_path: Path) -> None:
    started = settings.load({"home": tmp_path, "redis_url": "redis://127.0.0.1:1/3"}, {})

    def read(**flags: object) -> str | None:
        return settings.load({"home": tmp_path, **flags}, {}).redis_url

    with home_lock.lock_home(tmp_path, settings.share_with_commands(started)):
        assert read() == "redis://127.0.0.1:1/3"
        assert read(redis_url="redis://127.0.0.1:2/0") == "redis://127.0.0.1:2/0"
        assert stat.S_IMODE((tmp_path / "up.lock").stat().st_mode) == 0o600
    assert read() is None


def test_a_service_that_was_killed_leaves_no_settings(tmp_path: Path) -> None:
    (tmp_path / "up.lock").write_text('{"redis_url": "redis://127.0.0.1:1/3"}')
    assert settings.load({"home": tmp_path}, {}).redis_url is None
    with home_lock.lock_home(tmp_path, {}):
        assert settings.load({"home": tmp_path}, {}).redis_url is None
