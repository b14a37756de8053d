"""Where the commands of a batch system are run: on this host, or on another one."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.pilot import removal

#: Characters that are shown of a complaint.
_SAID = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """What it complained of, for a person: one line without its middle if it is long, and its status."""
        text = "; ".join(line for line in f"{self.stderr}\n{self.stdout}".splitlines() if line.strip())
        if len(text) > _SAID:
            text = f"{text[: _SAID // 3]} … {text[-2 * _SAID // 3 :]}"  # the reason tends to come last
        return f"{text} (exit status {self.status})"


class NoAnswer(BatchSystemAway):
    """A command gave no answer: what it should do may be done or not."""


class Shell(Protocol):
    """Runs commands and keeps files on the host where the batch system's commands are."""

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        """Run a command, without a shell's interpretation.

        Raises:
            NoAnswer: It did not end in time, or its host went away meanwhile.
            BatchSystemAway: It could not be started, or its host is away.
        """
        ...

    def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Make a file and the directories that it is in."""
        ...

    def read(self, path: str, *, last: int) -> bytes:
        """The last bytes of a file; empty if there is none."""
        ...

    def remove(self, directory: str) -> None:
        """Remove a directory with all that is in it; one that is not there is no error."""
        ...


#: A controller that is away keeps its clients for 9 to 18 s, one that is dead for ever.
_PATIENCE = 30.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShell:
    """Commands on this host."""

    environment: Mapping[str, str] = field(default_factory=dict)  #: added to our own
    patience: float = _PATIENCE  #: seconds that a command may take

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        """Run a command, without a shell's interpretation."""
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, **self.environment, "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            raise BatchSystemAway(f"{command[0]} cannot be run: {error}") from error
        patience = seconds or self.patience
        try:
            stdout, stderr = process.communicate(stdin, timeout=patience)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # with all that it started: it may hold our pipes
            process.communicate()
            raise NoAnswer(f"{command[0]} gave no answer in {patience:.0f} s") from error
        return Completed(status=process.returncode, stdout=stdout, stderr=stderr)

    def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Make a file and the directories that it is in."""
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            aside = Path(f"{path}.new")
            aside.write_bytes(content)
            aside.chmod(0o700 if executable else 0o600)
            aside.replace(path)
        except OSError as error:
            raise BatchSystemAway(f"{path} cannot be written: {error}") from error

    def read(self, path: str, *, last: int) -> bytes:
        """The last bytes of a file; empty if there is none."""
        try:
            with Path(path).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - last))
                return file.read(last)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise BatchSystemAway(f"{path} cannot be read: {error}") from error

    def remove(self, directory: str) -> None:
        """Remove a directory with all that is in it; one that is not there is no error."""
        removal.remove(Path(directory))
