"""Real processes, started by their command line, killed and started again."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

#: The command of the environment that the tests run in.
PILOTAGE = Path(sys.executable).with_name("pilotage")
#: Seconds until a process that has ended by itself is started again.
_RESTART = 1.0


def suspend_all(find: Callable[[], Iterable[psutil.Process]]) -> set[psutil.Process]:
    """Stop all processes that are found, also those that they begin meanwhile; which these are."""
    stopped: set[psutil.Process] = set()
    while new := set(find()) - stopped:
        for process in new:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        stopped |= new
    return stopped


def kill_all(find: Callable[[], Iterable[psutil.Process]]) -> set[psutil.Process]:
    """Kill all processes that are found, so that none which they begin meanwhile is left; which these are."""
    stopped = suspend_all(find)
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return stopped


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
        with self._keeping:  # nobody starts another one meanwhile
            self._start()

    def _start(self) -> None:
        self._ended_at = None
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
            self._start()

    def suspend(self) -> bool:
        """Stop it with all its children, as a host that hangs; False: it does not run."""
        with self._keeping:  # it is not replaced meanwhile, nor its number given to others
            if self.is_running:
                os.killpg(self.pid, signal.SIGSTOP)
                return True
        return False

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill this one process, as the out-of-memory killer would; its children are left behind."""
        process = self._process  # another one may run before this one is waited for
        assert process is not None
        process.kill()
        process.wait()
        self.killed += 1

    def terminate(self) -> None:
        """Let it end, without waiting for it."""
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        process = self._process  # another one may run before this one is waited for
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
