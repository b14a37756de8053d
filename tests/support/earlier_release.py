"""The last release, as the next one meets it: its program, its pilot, and the schemas that it made.

    python -m tests.support.earlier_release  # makes these files of the working tree, when a release is tagged

Its program runs in the environment of the tests, with the directory of its unpacked wheel as `PYTHONPATH`.
"""

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from examples.servers.postgres import Postgres
from pilotage.fabric import bundle
from taskqueue.db import database

DIRECTORY = Path(__file__).parents[1] / "data" / "earlier_release"
PILOT = DIRECTORY / "pilot.pyz"
_POSTGRESQL, _SQLITE = DIRECTORY / "schema.postgresql", DIRECTORY / "schema.sqlite.sql"


def unpack(directory: Path) -> Path:
    """Its modules, for `PYTHONPATH`."""
    [wheel] = DIRECTORY.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


def restore_postgresql(server: Postgres, name: str) -> None:
    """A database with the schema that it made, in the place of another."""
    server.restore(name, _POSTGRESQL)


def restore_sqlite(file: Path) -> None:
    """A file with the schema that it made."""
    with sqlite3.connect(file) as conn:
        conn.executescript(_SQLITE.read_text())
    conn.close()


def write() -> None:
    """Replace the files by those of the working tree."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        home.chmod(0o755)
        wheel = ["uv", "build", "--quiet", "--wheel", "--no-create-gitignore", "--out-dir", str(DIRECTORY)]
        subprocess.run(wheel, check=True, cwd=Path(__file__).parents[2])
        bundle.build(PILOT)
        database.upgrade(f"sqlite:///{home / 'new.db'}")
        with sqlite3.connect(home / "new.db") as conn:
            _SQLITE.write_text("\n".join(conn.iterdump()) + "\n")
        conn.close()
        (home / "pg").mkdir()
        server = Postgres(home / "pg")
        server.start()
        try:
            server.execute("CREATE DATABASE new")
            database.upgrade(server.url("new"))
            server.dump("new", home / "pg" / "schema")
            shutil.copyfile(home / "pg" / "schema", _POSTGRESQL)
        finally:
            server.stop()


if __name__ == "__main__":
    write()
    sys.exit(0)
