import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples.servers.redis_server import RedisServer
from optimizers.workers import rq
from optimizers.workers.rq import RQNotifier
from pilotage.cli import doctor, home_lock, settings
from pilotage.cli import doctor as checks_installation
from pilotage.cli.doctor import Health
from pilotage.cli.settings import Settings
from taskqueue.blob_stores import directory

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def installation(home: Path, **flags: object) -> Settings:
    return settings.load({"home": home, **flags}, {})


def test_our_packages_come_from_one_place() -> None:
    assert [finding.health for finding in checks_installation.check_packages()] == [Health.GOOD]


def test_a_home_that_is_not_there_is_no_disaster(tmp_path: Path) -> None:
    (finding,) = checks_installation.check_files(installation(tmp_path / "none"))
    assert finding.health is Health.WARNING


def test_a_key_that_others_may_read_is_bad(tmp_path: Path) -> None:
    chosen = installation(tmp_path)
    chosen.key.write_text("secret")
    chosen.key.chmod(0o644)
    (finding,) = [each for each in checks_installation.check_files(chosen) if each.subject == chosen.key.name]
    assert finding.health is Health.BAD
    assert "chmod 600" in finding.message


def test_a_file_of_settings_is_a_secret_where_a_password_may_stand_in_it(tmp_path: Path) -> None:
    file = tmp_path / settings.SETTINGS_FILE
    file.touch()
    file.chmod(0o644)

    def told(**flags: object) -> list[Health]:
        found = checks_installation.check_files(installation(tmp_path, **flags))
        return [each.health for each in found if each.subject == file.name]

    assert told(database_url="postgresql://pilotage@db.example.org/pilotage") == []
    assert told(database_url="postgresql://pilotage:secret@db.example.org/pilotage") == [Health.BAD]
    assert told(database_url="postgresql://db.example.org/pilotage?password=secret") == [Health.BAD]
    assert told(redis_url="redis://:secret@db.example.org/0") == [Health.BAD]
    assert told(redis_url="redis://db.example.org/0") == []
    assert told(redis_url="redis://db.example.org:secret/0") == [Health.BAD]  # unreadable


def test_directories_that_others_may_enter_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "blobs").mkdir(parents=True)
    monkeypatch.setattr(Path, "parents", property(lambda each: [home] if each.parent == home else []))
    for mode, told in ((0o755, ["home", "blobs"]), (0o750, [])):
        home.chmod(mode)
        found = checks_installation.check_files(installation(home))
        assert [each.subject for each in found if each.health is Health.WARNING] == told


def test_a_full_directory_of_archives_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = installation(tmp_path)
    chosen.blobs.mkdir()

    def check() -> Health:
        [found] = (each for each in checks_installation.check_files(chosen) if each.subject == "blobs")
        assert str(chosen.blobs) in found.message
        return found.health

    monkeypatch.setattr(checks_installation, "_is_open", lambda _: False)
    assert check() is Health.GOOD
    monkeypatch.setattr(directory, "_FREE_SHARE", 2.0)
    monkeypatch.setattr(directory, "_FREE_BYTES", 1 << 80)
    assert check() is Health.BAD


def test_a_directory_of_archives_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = installation(tmp_path)
    chosen.blobs.mkdir()
    monkeypatch.setattr(checks_installation, "_is_open", lambda _: False)
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (chosen.blobs, os.W_OK))
    [found] = (each for each in checks_installation.check_files(chosen) if each.subject == "blobs")
    assert (found.health, "cannot be written" in found.message) == (Health.BAD, True)


def test_a_database_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    (finding,) = doctor.check_database(installation(tmp_path), NOW)
    assert finding.health is Health.BAD
    assert "pilotage.db does not exist" in finding.message
    assert not (tmp_path / "pilotage.db").exists()


def test_a_redis_that_does_not_answer_is_bad(tmp_path: Path) -> None:
    (finding,) = checks_installation.check_redis(installation(tmp_path, redis_url="redis://127.0.0.1:1"))
    assert finding.health is Health.BAD


def test_a_redis_that_no_worker_listens_to_is_a_warning(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rq, "_TIMEOUT", 300.0)
    monkeypatch.setattr(checks_installation, "_PATIENCE", 300)
    RQNotifier(redis_server.url).notify([1, 2])
    _, workers = checks_installation.check_redis(installation(tmp_path, redis_url=redis_server.url))
    assert workers.health is Health.WARNING
    assert "no worker listens: 1 batch of jobs waits" in workers.message


def test_no_redis_is_fine(tmp_path: Path) -> None:
    (finding,) = checks_installation.check_redis(installation(tmp_path))
    assert finding.health is Health.GOOD


def test_the_redis_of_the_running_service_is_checked(tmp_path: Path) -> None:
    with home_lock.lock_home(tmp_path, {"redis_url": "redis://127.0.0.1:1"}):
        found = list(doctor.check_installation(installation(tmp_path), NOW))
    assert [each.health for each in found if each.subject == "redis"] == [Health.BAD]
    [which] = [each.message for each in found if each.subject == "settings"]
    assert which == "as `pilotage up` runs here, unless given: redis_url"
