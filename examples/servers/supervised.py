"""Real processes, started by their command line, killed and started again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

#: The command of the environment that the tests run in.
PILOTAGE = Path(sys.executable).with_name("pilotage")
#: Seconds until a process that has ended by itself is started again.
_RESTART = 1.0


class Supervised:
    """A process that is started again whenever it is gone, as systemd would."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        program: str | Path = PILOTAGE,
        user: int | None = None,
    ) -> None:
        """Describe it; without `program` it is a command of ours, without `user` it runs as we do."""
        self.name = name
        self.log = log
        self.killed = 0
        self._user = user
        self._arguments = [str(program), *arguments]
        self.env = dict(env)  #: beside that of the tests; of the next start
        self._keeping = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at: float | None = None
        self.exits: list[int] = []  #: statuses of those that ended by themselves

    def __enter__(self) -> Self:
        """Start it; it is stopped at the end."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it; the one before has ended, or was killed by others."""
        if self._process is not None:
            self._process.wait()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env},
                start_new_session=True,
                user=self._user,
                group=self._user,
            )

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keep_alive(self) -> None:
        """Start it again a second after it has ended; any number of threads may."""
        with self._keeping:
            self._keep_alive()

    def _keep_alive(self) -> None:
        if self.is_running:
            return
        if self._process is not None and self._ended_at is None:
            self._ended_at = time.monotonic()
            if self._process.returncode != -signal.SIGKILL:
                self.exits.append(self._process.returncode)
        if self._ended_at is None or time.monotonic() > self._ended_at + _RESTART:
            self._ended_at = None
            self.start()

    def suspend(self) -> None:
        """Stop it with all its children, as a host that hangs."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill this one process, as the out-of-memory killer would; its children are left behind."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.killed += 1

    def terminate(self) -> None:
        """Let it end, without waiting for it."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        if self._process is None or not self.is_running:
            return
        self.terminate()
        try:
            self._process.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
