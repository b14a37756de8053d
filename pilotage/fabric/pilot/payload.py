"""A payload while it runs, seen from the pilot."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotage.fabric.pilot import processes
from pilotage.fabric.pilot.host import HostTrouble
from pilotage.fabric.pilot.processes import Usage

#: Directory or zip file that the package `pilotage` lies in.
_ROOT = str(Path(__file__).parents[3])
#: Without these some installations of Python do not even start.
_NEEDED = ("PATH", "LD_LIBRARY_PATH")
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from pilotage.fabric.pilot import supervisor; sys.exit(supervisor.main())"
)


class NotStarted(Exception):
    """The payload could not be executed; the message says why."""


@dataclass(frozen=True)
class End:
    """How a payload ended."""

    exit_code: int  #: 128 + number of the signal if one ended it
    signal: int | None
    cpu_seconds: float | None = None  #: of all its processes; None: nobody was left who could tell


class Payload:
    """One running payload with everything that it started."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str],
        output: int,
        error: int,
        area: Path,
    ) -> None:
        """Start it.

        Args:
            words: The program, as a path, and its arguments.
            directory: Where it works.
            environment: All that it gets.
            output: Descriptor of a file for its standard output.
            error: Descriptor of a file for its standard error.
            area: Directory that is removed in case the pilot dies.

        Raises:
            NotStarted: The program cannot be executed.
            HostTrouble: No process can be started here.
        """
        self._supervisor = _start_supervisor({output, error})
        order = {
            "words": list(words),
            "directory": str(directory),
            "environment": dict(environment),
            "output": output,
            "error": error,
            "area": str(area),
        }
        self._said = b""
        self._tell(order)
        self._session = self._first_news()
        news = self._news()
        if news is not None and "problem" in news:
            self._news()  # its end, which says no more
            self.close()
            raise NotStarted(f"{words[0]}: {news['problem']}")

    def wait(self, timeout: float) -> End | None:
        """How it ended; None if it has not within `timeout` seconds.

        Nothing of it runs any more once this returns its end.
        """
        if not self._has_news(timeout):
            return None
        news = self._news()
        self.close()
        if news is not None:
            return End(**news["ended"])
        # Its supervisor was killed, and so was it; what it had started is ours to end.
        processes.end_session(self._session)
        return End(exit_code=128 + signal.SIGKILL, signal=signal.SIGKILL)

    def end(self, grace: float) -> None:
        """Send TERM to all of it now, and KILL after `grace` seconds to what is left."""
        self._tell({"end": grace})

    def usage(self) -> Usage:
        """What all of its processes use now."""
        return processes.usage(self._supervisor.pid)

    def proportional_memory(self) -> int | None:
        """Bytes of memory, shared ones counted once; None: this host does not tell."""
        return processes.proportional(self._supervisor.pid)

    def close(self) -> None:
        """Forget the supervisor; if it still runs, it ends what is left and itself."""
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._supervisor.wait()

    def _first_news(self) -> int:
        """The process id of the payload, before it begins."""
        news = self._news()
        if news is None:
            self.close()
            raise HostTrouble("the supervisor of the payload ended at once")
        return int(news["pid"])

    def _tell(self, news: Mapping[str, Any]) -> None:
        stdin = self._supervisor.stdin
        if stdin is None or stdin.closed:
            return
        try:
            stdin.write(json.dumps(news).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return  # it has gone; whoever waits for it learns that

    def _has_news(self, timeout: float) -> bool:
        stdout = self._supervisor.stdout
        if stdout is None or b"\n" in self._said:
            return True
        ready, _, _ = select.select([stdout], [], [], timeout)
        return bool(ready)

    def _news(self) -> dict[str, Any] | None:
        """The next line of the supervisor; None: it has gone."""
        stdout = self._supervisor.stdout
        while stdout is not None and b"\n" not in self._said:
            piece = os.read(stdout.fileno(), 4096)
            if not piece:
                return None
            self._said += piece
        line, _, self._said = self._said.partition(b"\n")
        news: dict[str, Any] = json.loads(line)
        return news


def _start_supervisor(descriptors: set[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(descriptors),
            env={name: os.environ[name] for name in _NEEDED if name in os.environ},
            cwd="/",
            start_new_session=True,  # signals to the pilot's group are for the pilot
        )
    except OSError as error:
        raise HostTrouble(f"{sys.executable}: {error}") from None
