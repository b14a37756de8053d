"""A process of Pilotage that is killed in the middle of its work, once, and started again."""

import signal
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.demo.installation import Installation, console, end, uninterrupted

#: Characters of a log that are shown where something went wrong.
_SHOWN = 3000


class Mortal:
    """Used with `with`; it runs as long as the block."""

    def __init__(self, installation: Installation, *words: str, file: Path) -> None:
        """Say what it is.

        Args:
            installation: Where it belongs.
            words: The command.
            file: What is given to it as `--config`.
        """
        self.log = installation.directory / f"{words[0]}.log"
        self.was_killed = False
        self._installation = installation
        self._words = (*words, "--config")
        self._file = file

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._process, signal.SIGTERM)

    def check(self) -> None:
        """See that it runs.

        Raises:
            SystemExit: It ended by itself; with the end of its log.
        """
        if self._process.poll() is not None:
            raise SystemExit(self.end_of_log())

    def end_of_log(self) -> str:
        """Its last words."""
        return self.log.read_text(errors="replace")[-_SHOWN:]

    def kill_once(self) -> None:
        """As a crash would, whatever it was doing; the next one has to find its way."""
        if self.was_killed:
            return
        self.was_killed = True
        with uninterrupted():
            self._process.kill()
            self._process.wait()
            console.print(f"[dim]$[/] kill -9 {self._process.pid}")
            self._start()

    def _start(self) -> None:
        self._installation.show_command(*self._words, self._file.name)
        self._process = self._installation.start(*self._words, self._file, log=self.log)
