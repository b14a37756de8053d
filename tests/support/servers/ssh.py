"""A private OpenSSH server for the tests, for the user who runs them; it listens on 127.0.0.1 only.

Its logins have the home `directory`, so that they do not read startup files of the user's own shell.
"""

import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from examples.servers.debian import PATH
from examples.servers.starting import free_port
from pilotage.fabric.batch.head_node import HeadNode

_CONFIGURATION = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {directory}/host
AuthorizedKeysFile {directory}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxSessions 200
MaxStartups 1000
PidFile none
SetEnv HOME={directory}
Subsystem sftp internal-sftp
"""


class SshServer:
    """One server with its keys in `directory`; its connections can be cut, and itself stopped and started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        for name in ("host", "key"):
            generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(generate, check=True)
        public = (directory / "host.pub").read_text().split()
        known = f"[127.0.0.1]:{self._port} {public[0]} {public[1]}\n"
        (directory / "known_hosts").write_text(known)
        configuration = _CONFIGURATION.format(port=self._port, directory=directory)
        (directory / "sshd_config").write_text(configuration)

    def host(self, **changed: object) -> HeadNode:
        """How to log in."""
        values = {
            "host": "127.0.0.1",
            "port": self._port,
            "user": getpass.getuser(),
            "key": self._directory / "key",
            "known_hosts": self._directory / "known_hosts",
            **changed,
        }
        return HeadNode(**values)  # type: ignore[arg-type]

    def start(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # the server will not start without it
        program = shutil.which("sshd", path=PATH)  # it insists on its full path
        assert program
        with (self._directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [program, "-D", "-e", "-f", str(self._directory / "sshd_config")], stderr=log
            )
        deadline = time.monotonic() + 300
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, "in time"
                time.sleep(0.02)
            else:
                return

    def cut_connections(self) -> int:
        """Kill the processes that serve connections, with what they run; how many there were."""
        assert self._server is not None
        sessions = psutil.Process(self._server.pid).children(recursive=True)
        for session in sessions:
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                session.kill()
        return len(sessions)

    def stop(self) -> None:
        if self._server is not None:
            self.cut_connections()
            self._server.kill()
            self._server.wait()
            self._server = None


class SlowLine:
    """A line to a port of this host that carries so many bytes a second each way."""

    def __init__(self, port: int, *, bytes_a_second: int) -> None:
        self._target = port
        self._part = bytes_a_second // 10
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def known_hosts(self, host: HeadNode, file: Path) -> Path:
        """The key of the host, as known at this end."""
        assert host.known_hosts is not None
        file.write_text(host.known_hosts.read_text().replace(f":{host.port} ", f":{self.port} "))
        return file

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as far:
            back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
            back.start()
            self._carry(near, far)
            back.join()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while part := one.recv(self._part):
                other.sendall(part)
                time.sleep(0.1)
            other.shutdown(socket.SHUT_WR)
