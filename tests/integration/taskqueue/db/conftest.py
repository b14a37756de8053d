"""A PostgreSQL of a test's own with an asynchronous replica, which follows it as a hot standby."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.servers.postgres import Postgres
from tests.support.databases import run_primary, run_replica


@pytest.fixture(scope="module")
def primary(short_directory: Path) -> Iterator[Postgres]:
    with run_primary(short_directory) as server:
        yield server


@pytest.fixture
def replica(short_directory: Path, primary: Postgres) -> Iterator[Postgres]:
    with run_replica(short_directory, primary) as server:
        yield server
