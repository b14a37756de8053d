"""A private PostgreSQL for a benchmark."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskqueue import database
from tests.postgres import Postgres


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server of our own, gone afterwards with all it held."""
    directory = Path(tempfile.mkdtemp(prefix="pilotage-bench-"))
    directory.chmod(0o755)
    server = Postgres(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def fresh_database(server: Postgres, name: str) -> Iterator[str]:
    """A migrated database of this name; its URL."""
    server.execute(f"CREATE DATABASE {name}")
    url = server.url(name)
    database.upgrade(url)
    try:
        yield url
    finally:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")
