"""The commands of a batch system on another host, over SSH.

One connection is kept and shared by all commands; it is made anew when it was lost. Nothing of it is
asynchronous for the caller: a thread of its own runs the connection.
"""

import asyncio
import shlex
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import asyncssh

from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.batch.shell import Completed, NoAnswer

_Answer = TypeVar("_Answer")

#: A peer that does not answer to so many questions, so far apart, is away.
_ASK_EVERY: Final = 5.0  # seconds
_QUESTIONS: Final = 3
#: Errors of the connection, not of the command.
_LOST = (OSError, asyncssh.Error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Whom to log in to, and how; the host has to be known, its key is never taken on trust."""

    name: str
    known_hosts: Path
    user: str
    key: Path  #: the private key
    port: int = 22
    patience: float = 30.0  #: seconds that a command or a login may take
    environment: Mapping[str, str] = field(default_factory=dict)  #: of the commands


class SshShell:
    """A shell on another host; `close` ends the connection."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._connection: asyncssh.SSHClientConnection | None = None
        self._loop = asyncio.new_event_loop()
        self._login = asyncio.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"ssh {host.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection and the thread."""
        self._wait(self._disconnect(), self._host.patience)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        """Run a command, without a shell's interpretation."""
        words = [*(f"{name}={value}" for name, value in self._host.environment.items()), "LC_ALL=C"]
        return self._wait(self._run(shlex.join(["env", *words, *command]), stdin), seconds)

    def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Make a file and the directories that it is in."""
        self._wait(self._write(path, content, 0o700 if executable else 0o600))

    def read(self, path: str, *, last: int) -> bytes:
        """The last bytes of a file; empty if there is none."""
        return self._wait(self._read(path, last))

    def remove(self, directory: str) -> None:
        """Remove a directory with all that is in it; one that is not there is no error."""
        self.run(["rm", "-rf", "--", directory])

    def _wait(self, doing: Coroutine[Any, Any, _Answer], seconds: float | None = None) -> _Answer:
        patience = seconds or self._host.patience
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(doing, patience), self._loop)
        try:
            return future.result()
        except TimeoutError as error:
            raise NoAnswer(f"{self._host.name} gave no answer in {patience:.0f} s") from error

    async def _run(self, command: str, stdin: str) -> Completed:
        connection = await self._connected()
        try:
            done = await connection.run(command, input=stdin, errors="replace")
        except _LOST as error:
            await self._disconnect()
            raise NoAnswer(f"{self._host.name} went away: {error}") from error
        if done.returncode is None:  # the line broke before it ended
            await self._disconnect()
            raise NoAnswer(f"{self._host.name} went away while a command ran")
        return Completed(status=done.returncode, stdout=str(done.stdout), stderr=str(done.stderr))

    async def _write(self, path: str, content: bytes, mode: int) -> None:
        connection = await self._connected()
        aside = f"{path}.new"
        try:
            async with connection.start_sftp_client() as files:
                await files.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
                async with files.open(aside, "wb") as file:
                    await file.write(content)
                await files.chmod(aside, mode)
                await files.posix_rename(aside, path)
        except _LOST as error:
            raise BatchSystemAway(f"{self._host.name}: {path} cannot be written: {error}") from error

    async def _read(self, path: str, last: int) -> bytes:
        connection = await self._connected()
        try:
            async with connection.start_sftp_client() as files, files.open(path, "rb") as file:
                size = (await file.stat()).size or 0
                content: bytes = await file.read(last, offset=max(0, size - last))
                return content
        except asyncssh.SFTPNoSuchFile:
            return b""
        except _LOST as error:
            raise BatchSystemAway(f"{self._host.name}: {path} cannot be read: {error}") from error

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._login:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> asyncssh.SSHClientConnection:
        host = self._host
        try:
            return await asyncssh.connect(
                host.name,
                host.port,
                username=host.user,
                client_keys=[str(host.key)],
                known_hosts=str(host.known_hosts),
                config=None,
                agent_path=None,
                login_timeout=host.patience,
                keepalive_interval=_ASK_EVERY,
                keepalive_count_max=_QUESTIONS,
            )
        except _LOST as error:
            raise BatchSystemAway(f"no login at {host.user}@{host.name}:{host.port}: {error}") from error

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            with suppress(*_LOST):
                await connection.wait_closed()
