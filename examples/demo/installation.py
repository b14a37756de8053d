"""An installation of Pilotage in a temporary directory, and what demonstrations do with it and show."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from pilotage.client import connection
from pilotage.client.api import ServiceClient

PILOTAGE = Path(sys.executable).with_name("pilotage")

console = Console(highlight=False, width=max(Console().width, 100))


class Installation:
    """The service and its command line; everything lies below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.directory = directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
        self.environment = {**kept, "PILOTAGE_HOME": str(self.home)}

    def say(self, text: str) -> None:
        """A heading."""
        console.print()
        console.rule(f"[bold]{text}", align="left")

    def run(self, *arguments: str | Path, quiet: bool = False) -> Any:
        """What a command of `pilotage` answers, as parsed JSON; it is shown as a user would type it.

        Raises:
            SystemExit: It failed; with what it said.
        """
        if not quiet:
            self.show_command(*arguments)
        command = [str(PILOTAGE), *map(str, arguments), "--json"]
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if result.returncode not in (0, 1) or not result.stdout:
            raise SystemExit(f"{' '.join(command)}: {result.stderr}")
        return json.loads(result.stdout)

    def show(self, *arguments: str) -> None:
        """A command with what it prints."""
        self.show_command(*arguments)
        environment = {**self.environment, "COLUMNS": str(console.width)}
        command = [str(PILOTAGE), *arguments]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        console.print(result.stdout.rstrip() + result.stderr, markup=False, soft_wrap=True)

    def show_command(self, *arguments: str | Path) -> None:
        """A command as a user would type it."""
        shown = " ".join(_short(argument) for argument in arguments)
        console.print(f"[dim]$[/] pilotage {shown}", soft_wrap=True)

    @contextmanager
    def service(self, resources: Path) -> Iterator[None]:
        """`pilotage up`, until the end of the block.

        Raises:
            SystemExit: It ended before it was ready; with its log.
        """
        process = self.start("up", "--resources", resources, "--port", "0", log=self.directory / "up.log")
        with ended(process, signal.SIGINT):
            while not (self.home / "client.env").exists():
                if process.poll() is not None:
                    raise SystemExit((self.directory / "up.log").read_text())
                time.sleep(0.05)
            yield

    def start(
        self,
        *arguments: str | Path,
        log: Path,
        directory: Path | None = None,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """A command of `pilotage` as a process of its own, which Ctrl-C does not reach."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [PILOTAGE, *arguments],
                cwd=directory,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def reached(self) -> dict[str, str]:
        """The variables that say where the service is, and with which token."""
        return connection.read_client_env(self.home)

    def client(self) -> ServiceClient:
        """Its operator's client."""
        reached = self.reached()
        return ServiceClient(reached["PILOTAGE_URL"], reached["PILOTAGE_TOKEN"])


@contextmanager
def ended(process: subprocess.Popen[bytes], how: signal.Signals) -> Iterator[None]:
    """End the process when the block does."""
    try:
        yield
    finally:
        end(process, how)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block, as while a process is started that nobody would end."""
    came: list[int] = []
    before = {
        each: signal.signal(each, lambda number, _: came.append(number))
        for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if came:
        signal.raise_signal(came[0])


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Ask a process to end; one that will not is killed with all its children."""
    process.send_signal(how)
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _short(argument: str | Path) -> str:
    """A path from where the user stands, if it lies below."""
    path = Path(argument)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(argument)
