"""A private PostgreSQL for a benchmark."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from examples.servers.postgres import Postgres
from taskqueue.db import database

#: As one gives a server of this size; durability is left alone.
_SETTINGS = {
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "maintenance_work_mem": "512MB",
    "work_mem": "32MB",
    "random_page_cost": "1.1",
    # Vacuum takes its time (`docs/operator/postgresql.md`): else it has one of two cores for seconds.
    "autovacuum_vacuum_cost_delay": "10ms",
}


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server of our own, gone afterwards with all it held."""
    directory = Path(tempfile.mkdtemp(prefix="pilotage-bench-"))
    directory.chmod(0o755)
    server = Postgres(directory, _SETTINGS)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def main_process(server: Postgres) -> psutil.Process:
    """The process whose children do the work."""
    return psutil.Process(int((server.directory / "data" / "postmaster.pid").read_text().split()[0]))


def cpu_seconds(server: Postgres) -> float:
    """What the processes of a server have used so far, with those that have ended."""
    main = main_process(server)
    used = main.cpu_times()
    alive = sum(sum(each.cpu_times()[:2]) for each in main.children(recursive=True))
    return float(sum(used[:4]) + alive)


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
