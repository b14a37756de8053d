"""Jobs of a batch system that is stood in for: a directory each, their processes, and how they ended.

Standard library only: the commands of a stand-in start often.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

#: The process group of a job outlives its TERM, so that it can say how the job ended.
_RUN = """
trap : TERM
echo $$ >"$0/process.new" && mv "$0/process.new" "$0/process"
sh -c "$1"
echo $? >"$0/exit.new" && mv "$0/exit.new" "$0/exit"
"""
_STATE = "BATCH_STAND_IN"


class Job:
    """One job; what is known of it are files in its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.number = int(directory.name)

    def get(self, name: str) -> str:
        try:
            return (self.directory / name).read_text().strip()
        except FileNotFoundError:
            return ""

    def put(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    @property
    def status(self) -> "int | None":
        """As a shell says it, once it has ended."""
        text = self.get("exit")
        return int(text) if text else None

    @property
    def runs(self) -> bool:
        return self.status is None and self.get("process") != ""

    def start(self, command: str) -> None:
        subprocess.Popen(
            ["setsid", "--fork", "sh", "-c", _RUN, str(self.directory), command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).wait()
        deadline = time.monotonic() + 60
        while not self.get("process") and time.monotonic() < deadline:
            time.sleep(0.002)

    def end(self) -> None:
        self.put("killed", "killed")
        with suppress(ProcessLookupError):
            os.killpg(int(self.get("process")), signal.SIGTERM)


def all_jobs() -> "list[Job]":
    return sorted((Job(path) for path in _root().iterdir()), key=lambda job: job.number)


def of_number(number: int) -> "Job | None":
    path = _root() / str(number)
    return Job(path) if path.is_dir() else None


def new_job() -> Job:
    """A job under the next number."""
    number = max((job.number for job in all_jobs()), default=0) + 1
    while True:
        try:
            (_root() / str(number)).mkdir()
        except FileExistsError:
            number += 1
        else:
            return Job(_root() / str(number))


def _root() -> Path:
    root = Path(os.environ[_STATE])
    root.mkdir(parents=True, exist_ok=True)
    return root
