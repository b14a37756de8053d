"""A private MariaDB for DIRAC, from Debian's package; durable, as it is by default."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from requirements.errors import PilotageError

#: Debian puts servers where the path of most users does not lead.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_UP_WITHIN = 60.0


class MariaDbFailed(PilotageError):
    """The server did not come up."""


def installed() -> bool:
    """Whether this machine has it."""
    return _program("mariadbd") is not None and _program("mariadb-install-db") is not None


@contextmanager
def server() -> Iterator[Path]:
    """A server on a socket of its own; the socket. The user is root, without a password."""
    directory = Path(tempfile.mkdtemp(prefix="pilotage-bench-mariadb-"))
    try:
        # Root's server may run as root here: nobody else reaches its socket.
        data, socket, user = directory / "data", directory / "socket", f"--user={_user()}"
        install = [str(_program("mariadb-install-db")), "--no-defaults", f"--datadir={data}", user]
        subprocess.run(
            [*install, "--auth-root-authentication-method=normal"], check=True, capture_output=True
        )
        process = subprocess.Popen(
            [
                *(
                    str(_program("mariadbd")),
                    "--no-defaults",
                    f"--datadir={data}",
                    f"--socket={socket}",
                    user,
                ),
                *("--skip-networking", "--innodb-buffer-pool-size=2G", "--innodb-log-file-size=1G"),
                f"--log-error={directory / 'log'}",
            ],
            start_new_session=True,
        )
        try:
            _wait(process, socket, directory / "log")
            yield socket
        finally:
            process.terminate()
            process.wait(300)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wait(process: "subprocess.Popen[bytes]", socket: Path, log: Path) -> None:
    deadline = time.monotonic() + _UP_WITHIN
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text() if log.exists() else ""
            raise MariaDbFailed(f"MariaDB did not come up: {said[-500:]}")
        time.sleep(0.05)


def _user() -> str:
    return "root" if os.geteuid() == 0 else os.environ.get("USER", "mysql")


def _program(name: str) -> str | None:
    return shutil.which(name, path=_PATH)
