"""An installation by `pilotage up`, and the commands of its owner."""

import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from pilotage.cli import application
from tests.support.processes import PILOTAGE

RESOURCES = """
Resources:
  Sites:
    LCG.Here.org:
      CEs:
        ce01:
          MaxRAM: 4000
          maxCPUTime: 100000
          Queues:
            long: {}
            short: {MaxRAM: 2000}
Operations:
  Defaults:
    JobDescription:
      Memory: {type: number, resource: MaxRAM}
    JobScheduling: {RescheduleDelays: [0], HoldTime: 1}
Registry:
  VO: {biomed: {}}
"""

JOB = """[
  JobName = "hello";
  Executable = "hello.sh";
  Arguments = "%s";
  InputSandbox = { "hello.sh" };
  StdOutput = "std.out";
  OutputSandbox = { "std.out" };
  Requirements = [ Memory = 3000; ];
]"""


@dataclass
class Home:
    """A home directory, and the commands of whoever owns it."""

    path: Path
    pilotage: Path = PILOTAGE
    programs: str = os.environ["PATH"]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
        return {**kept, "PILOTAGE_HOME": str(self.path), "PATH": self.programs}

    def run(self, *arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.pilotage), *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == status, done
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: object, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", status=status).stdout)

    def error(self, *arguments: object, status: int) -> str:
        done = self.run(*arguments, status=status)
        assert len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """`pilotage up`, ended with Ctrl-C, which it has to survive without a scratch."""
        with (self.path.parent / "up.log").open("a") as log:
            process = subprocess.Popen(
                [str(self.pilotage), "up", "--port", "0", *arguments],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            assert process.stdout is not None
            if not any("Ctrl-C" in line for line in process.stdout):
                raise AssertionError((self.path.parent / "up.log").read_text())
            yield
        finally:
            try:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=300)
            finally:
                process.kill()
                process.communicate()
        assert process.returncode == 0


class QuickHome(Home):
    """The same with commands in the process of the test: a Python for each would take a second."""

    def run(self, *arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        words = [*map(str, arguments)]
        out, err, ended = io.StringIO(), io.StringIO(), 0
        environment = mock.patch.dict(os.environ, self.environment, clear=True)
        with environment, redirect_stdout(out), redirect_stderr(err):
            try:
                application.main(words)
            except SystemExit as exit_:
                ended = int(str(exit_.code or 0))
        done = subprocess.CompletedProcess(words, ended, out.getvalue(), err.getvalue())
        assert done.returncode == status, done
        return done
