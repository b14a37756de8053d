"""A service as an installation runs it: `pilotage serve`, a process of its own with its own home."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

from pilotage.service.auth import keys
from pilotage.service.auth.callers import grant
from pilotage.service.auth.tokens import Tokens
from requirements.errors import PilotageError

_URL = re.compile(r"pilotage (?:serves|answers DIRAC at) (https?://\S+)")
#: Seconds for a process to begin or to end, also on a busy machine.
_PATIENCE = 300.0
#: Seconds of processor time in a second in which nothing is asked for.
_AT_REST = 0.05


class ServiceFailed(PilotageError):
    """The service did not come up; it said why on standard error."""


@dataclass(slots=True)
class Service:
    """A service that answers at `url`."""

    url: str
    process: psutil.Process
    _tokens: Tokens = field(repr=False)

    def token(self, role: str, **wishes: Any) -> str:
        """A token of this installation."""
        return self._tokens.mint(grant(role=role, **wishes), now=datetime.now(UTC))[0]

    def cpu_seconds(self) -> float:
        """What its processes have used so far, of those that live."""
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(sum(each.cpu_times()[:2]) for each in processes)

    def await_rest(self) -> None:
        """Wait until it has done what followed from the requests before."""
        used = -1.0
        while (now := self.cpu_seconds()) - used > _AT_REST:
            used = now
            time.sleep(1)

    def peak_megabytes(self) -> float:
        """The most memory that its process had since the start, or `reset_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [each for each in status.splitlines() if each.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024

    def reset_peak(self) -> float:
        """Forget the peak; the megabytes that its process has now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.peak_megabytes()


@contextmanager
def serving(
    database_url: str, config: str, *, workers: int = 1, redis_url: str | None = None
) -> Iterator[Service]:
    """`pilotage serve` on a migrated database with this configuration; ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as name:
        home = Path(name)
        resources = home / "resources.yaml"
        resources.write_text(config)
        tokens = Tokens(keys.load_or_create(home / "signing-key.pem"))
        arguments = ["--home", name, "--port", "0", "--database-url", database_url]
        arguments += ["--workers", str(workers), "--resources", str(resources)]
        arguments += ["--redis-url", redis_url] if redis_url else []
        with run_process("serve", *arguments) as (url, process):
            _wait(url)
            yield Service(url, process, tokens)


@contextmanager
def running_agents(database_url: str, **settings: str) -> Iterator[psutil.Process]:
    """`pilotage agent all` with these settings; ended afterwards."""
    said = {f"PILOTAGE_{name.upper()}": value for name, value in settings.items()}
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as home:
        arguments = ["agent", "all", "--home", home, "--database-url", database_url]
        process = subprocess.Popen(
            [sys.executable, "-m", "pilotage.cli", *arguments], env={**os.environ, **said}
        )
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(_PATIENCE)


@contextmanager
def run_process(*arguments: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server of ours as a process, and the URL that it prints; ended afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pilotage.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield _url(process), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _url(process: "subprocess.Popen[str]") -> str:
    """Where the service says that it is; what else it says goes to our standard error."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := _URL.search(line):
            threading.Thread(target=_pass_on, args=(process,), daemon=True).start()
            return found[1]
        sys.stderr.write(line)
    raise ServiceFailed(f"`pilotage` ended with {process.wait()} before it served")


def _wait(url: str) -> None:
    """Until one of its processes answers: with several, the port is known before they listen."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            if httpx.get(f"{url}/readyz", timeout=5).is_success:
                return
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _pass_on(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    for line in process.stderr:
        sys.stderr.write(line)
