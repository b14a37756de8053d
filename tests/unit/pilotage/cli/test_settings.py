from pathlib import Path

import pytest

from pilotage.cli import settings
from pilotage.cli.settings import InvalidSettings


def write(home: Path, text: str) -> None:
    (home / settings.SETTINGS_FILE).write_text(text)


def test_without_anything_said_sqlite_lies_in_the_home_directory(tmp_path: Path) -> None:
    loaded = settings.load({}, {"XDG_DATA_HOME": str(tmp_path)})
    assert loaded.home == tmp_path / "pilotage"
    assert loaded.database_url == f"sqlite:///{tmp_path}/pilotage/pilotage.db"
    assert loaded.redis_url is None


def test_the_home_directory_is_the_users_own_without_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    assert settings.load({}, {}).home == Path("/home/anna/.local/share/pilotage")


def test_a_flag_beats_a_variable_and_that_the_file(tmp_path: Path) -> None:
    write(tmp_path, "database_url: sqlite:///file.db\nport: 1\nhost: 10.0.0.1\n")
    environment = {"PILOTAGE_HOME": str(tmp_path), "PILOTAGE_PORT": "2", "PILOTAGE_HOST": "10.0.0.2"}
    loaded = settings.load({"host": "10.0.0.3", "port": None}, environment)
    assert (loaded.database_url, loaded.port, loaded.host) == ("sqlite:///file.db", 2, "10.0.0.3")


def test_an_empty_variable_says_nothing(tmp_path: Path) -> None:
    assert settings.load({"home": tmp_path}, {"PILOTAGE_REDIS_URL": ""}).redis_url is None


def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path) -> None:
    settings.load({"home": tmp_path}, {"PILOTAGE_SECRET": "x"})


@pytest.mark.parametrize(
    ("flags", "variables", "file", "named"),
    [
        ({"port": 70000}, {}, "", "--port"),
        ({}, {"PILOTAGE_PORT": "http"}, "", "PILOTAGE_PORT"),
        ({}, {}, "port: -1", "pilotage.yaml: port"),
        ({"log_level": "loud"}, {}, "", "--log-level"),
    ],
)
def test_a_wrong_value_is_named_as_it_was_given(
    tmp_path: Path, flags: dict[str, object], variables: dict[str, str], file: str, named: str
) -> None:
    write(tmp_path, file)
    with pytest.raises(InvalidSettings, match=named):
        settings.load({"home": tmp_path, **flags}, variables)


def test_all_wrong_values_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as caught:
        settings.load({"home": tmp_path, "port": -1, "workers": 0}, {})
    assert len(caught.value.problems) == 2


def test_an_unknown_name_in_the_file_gets_a_suggestion(tmp_path: Path) -> None:
    write(tmp_path, "databse_url: x\n")
    with pytest.raises(InvalidSettings, match=r"databse_url: unknown setting, did you mean database_url\?"):
        settings.load({"home": tmp_path}, {})


@pytest.mark.parametrize("text", ["- a\n- b\n", "port: [1\n", "port: '\n"])
def test_a_file_that_holds_no_settings_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    with pytest.raises(InvalidSettings, match=settings.SETTINGS_FILE):
        settings.load({"home": tmp_path}, {})


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / settings.SETTINGS_FILE).write_bytes(b"host: \xff\n")
    with pytest.raises(InvalidSettings, match="UTF-8"):
        settings.load({"home": tmp_path}, {})


def test_the_token_is_not_shown(tmp_path: Path) -> None:
    assert "secret" not in repr(settings.load({"home": tmp_path, "token": "secret"}, {}))


def test_a_database_of_several_hosts_may_be_stated_as_libpq_does(tmp_path: Path) -> None:
    for stated, read in (
        ("postgresql://a:b@h1:5432,h2:5433/db", "postgresql://a:b@/db?host=h1:5432&host=h2:5433"),
        ("postgresql://h1,h2/db?jit=off", "postgresql:///db?host=h1&host=h2&jit=off"),
        ("postgresql://a@h1:5432/db", "postgresql://a@h1:5432/db"),
        ("sqlite:////a,b", "sqlite:////a,b"),
    ):
        assert settings.load({"home": tmp_path, "database_url": stated}, {}).database_url == read


def test_what_is_no_redis_is_refused_as_a_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"--redis-url: names no Sentinels or no master") as refused:
        settings.load({"home": tmp_path, "redis_url": "redis+sentinel://:secret@h1:26379"}, {})
    assert "secret" not in str(refused.value)
