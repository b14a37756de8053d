"""A private pgbouncer for the tests, before the tests' PostgreSQL, set up as the shipped example says."""

import os
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import psycopg

from examples.servers.debian import PATH, Suite
from examples.servers.postgres import Postgres
from examples.servers.starting import wait_until

SUITE = Suite(about="the connection pooler pgbouncer", programs=("pgbouncer",), packages=("pgbouncer",))
SHIPPED = Path(__file__).parents[3] / "deploy" / "pgbouncer" / "pgbouncer.ini"
#: Of the server; far fewer than clients, so that every transaction gets another one.
SERVER_CONNECTIONS = 3
_PORT = 6432  # a name of the unix socket, not a port of this host


class Pgbouncer:
    """One pooler on a unix socket beside that of its server, as a child of ours."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._directory = server.directory / "pgbouncer"
        self._user: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._directory.mkdir()
        if os.geteuid() == 0:  # it refuses root
            owner = server.directory.stat()
            self._user = {"user": owner.st_uid, "group": owner.st_gid}
            os.chown(self._directory, owner.st_uid, owner.st_gid)

    @property
    def socket(self) -> Path:
        return self._directory / f".s.PGSQL.{_PORT}"

    def url(self, postgres_url: str) -> str:
        """The way to the same database through the pooler."""
        database = postgres_url.partition("?")[0]
        return f"{database}?host={self._directory}&port={_PORT}"

    def start(self) -> None:
        program = shutil.which("pgbouncer", path=PATH)
        assert program
        file = self._directory / "pgbouncer.ini"
        with file.open("w") as text:
            self._configuration().write(text)
        self._process = subprocess.Popen(
            [program, "-q", str(file)], cwd=self._directory, stderr=subprocess.DEVNULL, **self._user
        )
        wait_until(self._answers)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            psycopg.connect(host=str(self._directory), port=_PORT, user="postgres", dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def _configuration(self) -> ConfigParser:
        """The shipped one, with our places and users."""
        configuration = ConfigParser(interpolation=None)
        configuration.read(SHIPPED)
        configuration["databases"] = {"*": f"host={self._server.directory}"}
        ours = {
            "listen_addr": "",
            "unix_socket_dir": str(self._directory),
            "auth_type": "trust",
            "auth_file": str(self._directory / "users"),
            "default_pool_size": str(SERVER_CONNECTIONS),
            "logfile": str(self._directory / "log"),
            "pidfile": str(self._directory / "pid"),
        }
        configuration["pgbouncer"].update(ours)
        (self._directory / "users").write_text('"postgres" ""\n')
        return configuration
