"""Execution of a batch system's commands, on this host or another one."""

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pilotage.fabric.batch.batch_system import BatchSystemAway
from pilotage.fabric.pilot import job_files
from pilotage.fabric.pilot.payload import archives

#: Characters that are shown of a complaint.
_SAID = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Result of a command."""

    status: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """Its error output as one line, without its middle if that is long, and its exit status."""
        text = "; ".join(line for line in f"{self.stderr}\n{self.stdout}".splitlines() if line.strip())
        if len(text) > _SAID:
            text = f"{text[: _SAID // 3]} … {text[-2 * _SAID // 3 :]}"  # the reason tends to come last
        return f"{text} (exit status {self.status})"


class NoAnswer(BatchSystemAway):
    """A command did not finish in time; its effect is unknown."""


class Shell(Protocol):
    """Runs commands and stores files on the host with the batch system's commands, else `BatchSystemAway`.

    Files are named by their paths below a directory (absolute; links in its own path are the site's, and are
    followed). Jobs can change what is below: no link there is followed, nothing but a regular file is opened.
    """

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        """Run a command, without a shell's interpretation.

        `NoAnswer`: it did not end in time, or its host went away meanwhile; other errors: it did not start.
        """

    def write(self, name: str, content: bytes, *, below: str, executable: bool = False) -> None:
        """Make a file, for its owner alone, and the directories that it is in."""

    def read(self, name: str, *, below: str, last: int) -> bytes:
        """Read the last bytes of a file; empty if there is none."""

    def read_small(self, names: Sequence[str], *, below: str, most: int) -> Mapping[str, bytes]:
        """Read small files, by name; what is no file, or has more than `most` bytes, is left out."""

    def remove(self, names: Sequence[str], *, below: str) -> None:
        """Remove files, and directories with all that is in them; what is not there is no error."""


#: A controller that is away keeps its clients for 9 to 18 s, one that is dead for ever.
_PATIENCE = 30.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShell:
    """Runs commands on this host."""

    environment: Mapping[str, str] = field(default_factory=dict)  #: added to our own
    unset: Collection[str] = ()  #: variables of our own that commands do not get
    patience: float = _PATIENCE  #: seconds that a command may take

    def run(self, command: Sequence[str], *, stdin: str = "", seconds: float | None = None) -> Completed:
        """Run a command, without a shell's interpretation."""
        inherited = {name: value for name, value in os.environ.items() if name not in self.unset}
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**inherited, **self.environment, "LC_ALL": "C"},
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

    def write(self, name: str, content: bytes, *, below: str, executable: bool = False) -> None:
        """Make a file, for its owner alone, and the directories that it is in."""
        try:
            job_files.write(below, name, content, executable=executable)
        except OSError as error:
            raise BatchSystemAway(f"{below}/{name} cannot be written: {error}") from error

    def read(self, name: str, *, below: str, last: int) -> bytes:
        """Read the last bytes of a file; empty if there is none."""
        try:
            return job_files.read_end(below, name, last=last)
        except OSError as error:
            raise BatchSystemAway(f"{below}/{name} cannot be read: {error}") from error

    def read_small(self, names: Sequence[str], *, below: str, most: int) -> Mapping[str, bytes]:
        """Read small files, by name; what is no file, or has more than `most` bytes, is left out."""
        try:
            return job_files.read_small(below, names, most=most)
        except OSError as error:
            raise BatchSystemAway(f"{below} cannot be read: {error}") from error

    def remove(self, names: Sequence[str], *, below: str) -> None:
        """Remove files, and directories with all that is in them; what is not there is no error."""
        for name in names:
            archives.remove_tree(Path(below, name))
