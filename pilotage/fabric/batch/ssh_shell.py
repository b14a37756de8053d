"""Execution of a batch system's commands on another host, over SSH.

One connection is shared by all commands and reopened when lost. Its asyncio loop runs in a thread of its own,
so callers are synchronous.
"""

import asyncio
import inspect
import json
import shlex
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncssh

from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.batch.settings import HeadNode
from pilotage.fabric.batch.shell import Completed, NoAnswer
from pilotage.fabric.batch.work_area import split_words
from pilotage.fabric.node_script import PYTHONS
from pilotage.fabric.pilot import job_files

_Answer = TypeVar("_Answer")

#: A peer that does not answer to so many questions, so far apart, is away.
_ASK_EVERY: Final = 5.0  # seconds
_QUESTIONS: Final = 3
#: Errors of the connection, not of the command.
_LOST = (OSError, asyncssh.Error)
#: Runs a program of Python with the words behind it, by any login shell; the program is the beginning of
#: standard input, as many bytes as the first of the words tells.
_PYTHON: Final = (
    f"for python in {' '.join(PYTHONS)}; do"
    ' "$python" -c "import sys; sys.exit(sys.version_info < (3, 9))" >/dev/null 2>&1 &&'
    ' exec "$python" -I -c "import sys; exec(sys.stdin.buffer.read(int(sys.argv.pop(1))))" "$@";'
    f' done; echo "no Python 3.9 or later on $(uname -n); looked for {" ".join(PYTHONS)}" >&2; exit 127'
)


#: Seconds that a command or a login may take.
_PATIENCE: Final = 30.0


class SshShell:
    """A shell on another host; `close` ends the connection."""

    def __init__(self, head: HeadNode, *, environment: Mapping[str, str] | None = None) -> None:
        self._head = head
        self._environment = environment or {}  #: of the commands
        self._connection: asyncssh.SSHClientConnection | None = None
        self._loop = asyncio.new_event_loop()
        self._login = asyncio.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"ssh {head.host}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection and the thread."""
        self._wait(self._disconnect(), _PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        """Run a command, without a shell's interpretation."""
        status, stdout, stderr = self._wait(self._run(command, stdin.encode()), seconds)
        return Completed(status=status, stdout=stdout.decode(errors="replace"), stderr=stderr)

    def write(self, name: str, content: bytes, *, below: str, executable: bool = False) -> None:
        """Make a file, for its owner alone, and the directories that it is in."""
        mode = "executable" if executable else "plain"
        self._of_files(["write", below, name, mode], content, trouble=f"{below}/{name} cannot be written")

    def read(self, name: str, *, below: str, last: int) -> bytes:
        """Read the last bytes of a file; empty if there is none."""
        words = ["read_end", below, name, str(last)]
        return self._of_files(words, trouble=f"{below}/{name} cannot be read")

    def read_small(self, names: Sequence[str], *, below: str, most: int) -> Mapping[str, bytes]:
        """Read small files, by name; what is no file, or has more than `most` bytes, is left out."""
        asked = json.dumps(list(names)).encode()
        found = self._of_files(["read_small", below, str(most)], asked, trouble=f"{below} cannot be read")
        try:
            return {name: text.encode("latin-1") for name, text in json.loads(found).items()}
        except ValueError as error:
            raise BatchSystemAway(
                f"{self._head.host}: {below} cannot be read: the answer begins with {found[:100]!r}; "
                "a login must print nothing of its own"
            ) from error

    def remove(self, names: Sequence[str], *, below: str) -> None:
        """Remove files, and directories with all that is in them; what is not there is no error."""
        for some in split_words(names):
            self.run(["rm", "-rf", "--", *(f"{below}/{name}" for name in some)])

    def _of_files(self, words: Sequence[str], content: bytes = b"", *, trouble: str) -> bytes:
        """What `job_files` answers on the other host."""
        program = inspect.getsource(job_files).encode()
        command = ["sh", "-c", _PYTHON, "sh", str(len(program)), *words]
        status, stdout, stderr = self._wait(self._run(command, program + content))
        if status != 0:
            raise BatchSystemAway(
                f"{self._head.host}: {trouble}: {stderr.strip() or f'exit status {status}'}"
            )
        return stdout

    def _wait(self, doing: Coroutine[Any, Any, _Answer], seconds: float | None = None) -> _Answer:
        patience = seconds or _PATIENCE
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(doing, patience), self._loop)
        try:
            return future.result()
        except TimeoutError as error:
            raise NoAnswer(f"{self._head.host} gave no answer in {patience:.0f} s") from error

    async def _run(self, command: Sequence[str], stdin: bytes) -> tuple[int, bytes, str]:
        variables = [*(f"{name}={value}" for name, value in self._environment.items()), "LC_ALL=C"]
        connection = await self._connected()
        try:
            done = await connection.run(shlex.join(["env", *variables, *command]), input=stdin, encoding=None)
        except _LOST as error:
            await self._disconnect()
            raise NoAnswer(f"{self._head.host} went away: {error}") from error
        if done.returncode is None:  # the line broke before it ended
            await self._disconnect()
            raise NoAnswer(f"{self._head.host} went away while a command ran")
        stdout, stderr = (said if isinstance(said, bytes) else b"" for said in (done.stdout, done.stderr))
        return done.returncode, stdout, stderr.decode(errors="replace")

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._login:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> asyncssh.SSHClientConnection:
        head = self._head
        try:
            return await asyncssh.connect(
                head.host,
                head.port,
                username=head.user,
                client_keys=[str(head.key)],
                known_hosts=str(head.known_hosts),
                config=None,
                agent_path=None,
                login_timeout=_PATIENCE,
                keepalive_interval=_ASK_EVERY,
                keepalive_count_max=_QUESTIONS,
            )
        except _LOST as error:
            raise BatchSystemAway(f"no login at {head.user}@{head.host}:{head.port}: {error}") from error

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            with suppress(*_LOST):
                await connection.wait_closed()
