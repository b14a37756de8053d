"""Real processes of ours, started by their command line, killed and started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: The command of the environment that the tests run in.
PILOTAGE = Path(sys.executable).with_name("pilotage")


class Supervised:
    """A process that is started again whenever it is gone, as systemd would."""

    def __init__(self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self.killed = 0
        self._arguments = [str(PILOTAGE), *arguments]
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments, stdout=log, stderr=log, env=self._env, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        assert self._process is not None
        return self._process.pid

    def keep_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """Kill this one process, as the out-of-memory killer would; its children are left behind."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.killed += 1

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(90)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
