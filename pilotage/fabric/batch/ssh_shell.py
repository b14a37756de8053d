"""Execution of a batch system's commands on another host, over SSH.

One connection is shared by all commands and reopened when lost. One asyncio loop in a thread serves all
hosts, so callers are synchronous. A command has a time limit; a transfer goes on as long as bytes move.
"""

import asyncio
import inspect
import json
import math
import shlex
import threading
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeVar

import asyncssh

from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.batch.head_node import HeadNode
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


#: Seconds that a command or a login may take, and that a transfer may stand still.
_PATIENCE = 30.0
_CHUNK: Final = 1 << 16
#: Seconds between the signals TERM and KILL.
_KILL_AFTER: Final = 5


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all connections of this process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ssh", daemon=True).start()
    return loop


class SshShell:
    """A shell on another host; `close` ends the connection."""

    def __init__(
        self, head: HeadNode, *, environment: Mapping[str, str] | None = None, unset: Collection[str] = ()
    ) -> None:
        """`environment`: variables of the commands; `unset`: those of the login that they do not get."""
        self._head = head
        self._environment = environment or {}
        self._unset = unset
        self._connection: asyncssh.SSHClientConnection | None = None
        self._login = asyncio.Lock()

    def close(self) -> None:
        """End the connection."""
        self._wait(self._disconnect())

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        """Run a command, without a shell's interpretation."""
        patience = seconds or _PATIENCE
        # A command that nobody waits for any more is ended there.
        limited = ["timeout", f"--kill-after={_KILL_AFTER}", str(math.ceil(patience)), *command]
        doing = asyncio.wait_for(self._run(limited, stdin.encode()), patience)
        status, stdout, stderr = self._wait(doing, patience)
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
        status, stdout, stderr = self._wait(self._run(command, program + content, stall=_PATIENCE))
        if status != 0:
            raise BatchSystemAway(
                f"{self._head.host}: {trouble}: {stderr.strip() or f'exit status {status}'}"
            )
        return stdout

    def _wait(self, doing: Coroutine[Any, Any, _Answer], patience: float = 0) -> _Answer:
        try:
            return asyncio.run_coroutine_threadsafe(doing, _loop()).result()
        except TimeoutError as error:
            patience = patience or _PATIENCE
            raise NoAnswer(f"{self._head.host} gave no answer in {patience:.0f} s") from error

    async def _run(
        self, command: Sequence[str], stdin: bytes, *, stall: float | None = None
    ) -> tuple[int, bytes, str]:
        variables = [
            *(word for name in self._unset for word in ("-u", name)),
            *(f"{name}={value}" for name, value in self._environment.items()),
            "LC_ALL=C",
        ]
        connection = await self._connected()
        words = shlex.join(["env", *variables, *command])
        try:
            process = await connection.create_process(words, encoding=None)
            try:
                stdout, stderr = await _exchange(process, stdin, stall)
                await process.wait_closed()
            except BaseException:
                process.channel.abort()  # not waiting for its end, which may be far
                raise
        except TimeoutError:
            raise
        except _LOST as error:
            await self._disconnect()
            raise NoAnswer(f"{self._head.host} went away: {error}") from error
        if process.returncode is None:  # the line broke before it ended
            await self._disconnect()
            raise NoAnswer(f"{self._head.host} went away while a command ran")
        return process.returncode, stdout, stderr.decode(errors="replace")

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
                **_login_options(head),
                connect_timeout=_PATIENCE,
                login_timeout=_PATIENCE,
                keepalive_interval=_ASK_EVERY,
                keepalive_count_max=_QUESTIONS,
            )
        except _LOST as error:
            where = f"{head.user or 'the user'}@{head.host}:{head.port or 'port'} of {head.config}"
            if head.config is None:
                where = f"{head.user}@{head.host}:{head.port or _PORT}"
            raise BatchSystemAway(f"no login at {where}: {error}") from error

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            with suppress(*_LOST):
                await connection.wait_closed()


#: Without another one.
_PORT: Final = 22


def _login_options(head: HeadNode) -> dict[str, Any]:
    """Options that are stated for a login; the others come from `ssh_config`, if it has them."""
    stated = {
        "port": head.port,
        "username": head.user,
        "client_keys": None if head.key is None else [str(head.key)],
        "known_hosts": None if head.known_hosts is None else str(head.known_hosts),
    }
    options: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
    config = None if head.config is None else [str(head.config)]
    agent = None if head.agent is None else str(head.agent)
    if head.config is not None and agent is None:
        return {**options, "config": config}  # and its agent, or that of the environment
    return {**options, "config": config, "agent_path": agent}


async def _exchange(
    process: "asyncssh.SSHClientProcess[bytes]", content: bytes, patience: float | None
) -> tuple[bytes, bytes]:
    """Write the input and read both outputs of a command; `TimeoutError` if nothing moves for that long."""
    moved = 0

    async def feed() -> None:
        nonlocal moved
        with suppress(BrokenPipeError):  # it may end without reading all
            for begin in range(0, len(content), _CHUNK):
                process.stdin.write(content[begin : begin + _CHUNK])
                await process.stdin.drain()
                moved += 1
            process.stdin.write_eof()

    async def read(stream: "asyncssh.SSHReader[bytes]") -> bytes:
        nonlocal moved
        parts = []
        while part := await stream.read(_CHUNK):
            parts.append(part)
            moved += 1
        return b"".join(parts)

    work = asyncio.gather(feed(), read(process.stdout), read(process.stderr))
    try:
        seen = -1
        while not work.done():
            if moved == seen:
                raise TimeoutError
            seen = moved
            await asyncio.wait({work}, timeout=patience)
        _, stdout, stderr = work.result()
    finally:
        work.cancel()
    return stdout, stderr
