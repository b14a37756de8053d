"""A real shell that is told one command after the other, as somebody at a terminal does."""

import os
import secrets
import select
import shlex
import signal
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Seconds that a command may take, or that one which stays may need until it says what it should.
PATIENCE = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said, on both its outputs, and how it ended."""

    output: str
    status: int | None  #: None: it did not end in time, or it runs on


class Shell:
    """One bash, with its directory and variables, and what it left running."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str], *, within: Sequence[str] = ()
    ) -> None:
        self._mark = secrets.token_hex(8)
        self._directory = directory
        self._staying: list[Staying] = []
        self._status = 0
        self._bash = subprocess.Popen(
            [*within, "bash", "--noprofile", "--norc"],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._say("set -m")  # what stays is a process group of its own

    def run(self, command: str) -> Answer:
        """Carry out a command, to its end; `$?` in it is the status of the one before."""
        self._say(
            f"(exit {self._status}); eval {shlex.quote(command)} </dev/null; printf '{self._mark}%s\\n' $?"
        )
        output = self._read()
        said, found, status = output.partition(self._mark)
        if not found:
            return Answer(output=said, status=None)
        self._status = int(status)
        return Answer(output=said, status=self._status)

    def stay(self, command: str, is_enough: Callable[[str], bool]) -> Answer:
        """Start a command that runs on; come back when it has said enough, or ended."""
        log = self._directory / f".{self._mark}-{len(self._staying)}"
        self._say(
            f"eval {shlex.quote(command)} </dev/null >{shlex.quote(str(log))} 2>&1 & echo $! {self._mark}"
        )
        staying = Staying(pid=int(self._read().split()[0]), log=log)
        self._staying.append(staying)
        return staying.wait(is_enough)

    def write(self, name: str, text: str) -> Answer:
        """Write a file, as an editor would; its directory has to be there."""
        place = name if name.startswith("~/") else shlex.quote(name)
        content = b64encode(text.encode()).decode()
        return self.run(f"base64 -d <<<{content} >{place}")

    def close(self) -> None:
        """End what was left running, the last one first, and the shell."""
        for staying in reversed(self._staying):
            staying.end()
        assert self._bash.stdin is not None
        with suppress(BrokenPipeError):
            self._bash.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        assert self._bash.stdout is not None
        self._bash.stdout.close()

    def _say(self, line: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\n".encode())
        self._bash.stdin.flush()

    def _read(self) -> str:
        """What comes until the mark and the end of its line, or until patience ends."""
        assert self._bash.stdout is not None
        stream, read = self._bash.stdout.fileno(), b""
        deadline = time.monotonic() + PATIENCE
        while not (self._mark.encode() in read and read.endswith(b"\n")):
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            new = os.read(stream, 65536) if ready else b""
            if not new:
                break
            read += new
        return read.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """A command that was left running."""

    pid: int
    log: Path

    def wait(self, is_enough: Callable[[str], bool]) -> Answer:
        deadline = time.monotonic() + PATIENCE
        while True:
            ended, said = not self._is_there, self.log.read_text() if self.log.exists() else ""
            if ended or is_enough(said) or time.monotonic() > deadline:
                return Answer(output=said, status=1 if ended else None)
            time.sleep(0.05)

    def end(self) -> None:
        """Press Ctrl-C; who does not hear it is killed."""
        self._signal(signal.SIGINT)
        deadline = time.monotonic() + 300
        while self._is_there and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)

    @property
    def _is_there(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat")
        with suppress(OSError):
            return state.read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
