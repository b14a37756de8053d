"""Backups of PostgreSQL servers of the tests by Debian's pgBackRest, set up as the shipped files say."""

import os
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Protocol

from examples.servers import cluster
from examples.servers.debian import Suite

SUITE = Suite(
    about="backups by pgBackRest",
    programs=("pgbackrest",),
    files=("/usr/lib/postgresql/*/bin/postgres",),
    packages=("pgbackrest", "postgresql"),
)
_DEPLOY = Path(__file__).parents[3] / "deploy" / "pgbackrest"
_STANZA = "pilotage"
#: Of each server; the repository is common to all.
_FILE = "pgbackrest.conf"


class ArchivedServer(Protocol):
    """A server with its data in `data` of a directory of its own, where its sockets are, too."""

    @property
    def directory(self) -> Path: ...

    @property
    def user(self) -> int | None: ...


class PgBackRest:
    """The archive of one server, or of the nodes of a cluster, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._repository = directory

    @property
    def settings(self) -> dict[str, str]:
        """Those of the shipped file, for servers whose archive this is."""
        lines = (_DEPLOY / "archive.conf").read_text().splitlines()
        shipped = dict(line.split(" = ", 1) for line in lines if " = " in line)
        command = shipped["archive_command"].strip("'")
        assert command.startswith("pgbackrest ")
        # PostgreSQL runs the command in its directory of data.
        own = f'pgbackrest --config="$(dirname "$PWD")/{_FILE}"'
        return shipped | {"archive_command": command.replace("pgbackrest", own, 1)}

    def set_up(self, server: ArchivedServer) -> None:
        """Write the file of a host."""
        parser = ConfigParser(interpolation=None, comment_prefixes=("#",))
        parser.read(_DEPLOY / _FILE)
        _give(self._repository, server)
        parser["global"]["repo1-path"] = str(self._repository)
        for name in ("log", "lock", "spool"):
            place = server.directory / f"pgbackrest-{name}"
            place.mkdir()
            _give(place, server)
            parser["global"][f"{name}-path"] = str(place)
        own = {"path": str(server.directory / "data"), "socket-path": str(server.directory)}
        for name, value in {**own, "user": "postgres"}.items():
            parser[_STANZA][f"pg1-{name}"] = value
        with (server.directory / _FILE).open("w") as file:
            parser.write(file, space_around_delimiters=False)

    def run(self, server: ArchivedServer, *words: str) -> None:
        """Run a command as the account of the server."""
        config = f"--config={server.directory / _FILE}"
        done = subprocess.run(
            ["pgbackrest", config, f"--stanza={_STANZA}", *words],
            capture_output=True,
            text=True,
            cwd=server.directory,
            user=server.user,
            group=server.user,
            env={**os.environ, "PGPASSWORD": cluster.PASSWORD},
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _give(directory: Path, server: ArchivedServer) -> None:
    if server.user is not None:
        os.chown(directory, server.user, server.user)
