"""A PostgreSQL of a test's own with an asynchronous replica, which follows it as a hot standby."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from examples.servers.postgres import Postgres
from taskqueue.db import database


@pytest.fixture(scope="module")
def primary(short_directory: Path) -> Iterator[Postgres]:
    with _running(short_directory) as server:
        server.execute("CREATE DATABASE pilotage")
        database.upgrade(server.url("pilotage"))
        yield server


@pytest.fixture
def replica(short_directory: Path, primary: Postgres) -> Iterator[Postgres]:
    with _running(short_directory, primary) as server:
        yield server


@contextmanager
def _running(parent: Path, primary: Postgres | None = None) -> Iterator[Postgres]:
    server = Postgres(Path(mkdtemp(dir=parent)), primary=primary)
    server.start()
    try:
        yield server
    finally:
        server.stop()
