"""Backups of a PostgreSQL of the tests by Debian's pgBackRest, set up as the shipped files say."""

import os
import subprocess
from configparser import ConfigParser
from pathlib import Path

from examples.servers.debian import Suite
from examples.servers.postgres import Postgres

SUITE = Suite(
    about="backups by pgBackRest",
    programs=("pgbackrest",),
    files=("/usr/lib/postgresql/*/bin/postgres",),
    packages=("pgbackrest", "postgresql"),
)
_DEPLOY = Path(__file__).parents[3] / "deploy" / "pgbackrest"
_STANZA = "pilotage"


class PgBackRest:
    """The archive of a server that is made with `settings`, all in one directory."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "pgbackrest.conf"
        self._directory = directory

    @property
    def settings(self) -> dict[str, str]:
        """Those of the shipped file, for a server whose archive this is."""
        lines = (_DEPLOY / "archive.conf").read_text().splitlines()
        shipped = dict(line.split(" = ", 1) for line in lines if " = " in line)
        command = shipped["archive_command"].strip("'")
        assert command.startswith("pgbackrest ")
        return shipped | {"archive_command": command.replace("pgbackrest", f"pgbackrest {self._config}", 1)}

    def prepare(self, server: Postgres) -> None:
        """Make the archive of a server that runs."""
        parser = ConfigParser(interpolation=None, comment_prefixes=("#",))
        parser.read(_DEPLOY / "pgbackrest.conf")
        own = {"log-path": "log", "lock-path": "lock", "spool-path": "spool", "repo1-path": "repository"}
        for name, place in own.items():
            parser["global"][name] = str(self._make(place, server))
        own = {
            "path": str(server.directory / "data"),
            "socket-path": str(server.directory),
            "user": "postgres",
        }
        for name, value in own.items():
            parser[_STANZA][f"pg1-{name}"] = value
        with self._file.open("w") as file:
            parser.write(file, space_around_delimiters=False)
        self.run(server, "stanza-create")

    def run(self, server: Postgres, *words: str) -> None:
        """Run a command as the account of the server."""
        command = ["pgbackrest", self._config, f"--stanza={_STANZA}", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=server.directory, user=server.user, group=server.user
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def _config(self) -> str:
        return f"--config={self._file}"

    def _make(self, name: str, server: Postgres) -> Path:
        place = self._directory / name
        place.mkdir()
        if server.user is not None:
            os.chown(place, server.user, server.user)
        return place
