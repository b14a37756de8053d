"""What the jobs of local pilots are kept from, besides the home directory."""

import itertools
import sys
from pathlib import Path

import pytest

from pilotage.cli import settings
from pilotage.cli.processes import local_pilots


def _hidden(tmp_path: Path, **flags: object) -> set[str]:
    words = local_pilots.isolation_words(settings.load({"home": tmp_path, **flags}, {}))
    return {word for before, word in itertools.pairwise(words) if before == "--hide"}


def test_the_program_and_the_configuration_file_are_out_of_reach(tmp_path: Path) -> None:
    resources = tmp_path.parent / "resources.yaml"
    assert {sys.prefix, str(resources)} <= _hidden(tmp_path, resources=resources)


@pytest.mark.parametrize(
    ("url", "sockets"),
    [
        ("postgresql+psycopg:///pilotage", {"/run/postgresql", "/var/run/postgresql"}),
        ("postgresql+psycopg://me@/pilotage?host=/srv/sockets", {"/srv/sockets"}),
        ("postgresql+psycopg://me@db.example.org/pilotage", set()),
    ],
)
def test_a_database_that_trusts_our_account_is_out_of_reach(
    tmp_path: Path, url: str, sockets: set[str]
) -> None:
    known = _hidden(tmp_path)
    found = {each for each in _hidden(tmp_path, database_url=url) if "pilotage.db" not in each}
    assert found - known == sockets


def test_a_socket_of_redis_is_out_of_reach(tmp_path: Path) -> None:
    assert "/run/redis/redis.sock" in _hidden(tmp_path, redis_url="unix:///run/redis/redis.sock?db=1")
