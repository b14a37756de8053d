"""Pilots as real processes, and what they leave behind."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.fakes.lease_server import QUEUE, TOKEN

MODULE = (sys.executable, "-m", "pilotage.fabric.pilot")


def shell(script: str, **more: object) -> dict[str, object]:
    """The description of a job that runs a shell script."""
    return {"Executable": "/bin/sh", "Arguments": ["-c", script], **more}


class PilotProcess:
    """One pilot; used with `with`, it is gone at the end."""

    def __init__(
        self,
        url: str,
        work: Path,
        *words: str,
        token: str = TOKEN,
        queue: str = QUEUE,
        command: Sequence[str] = MODULE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        site, ce, name = queue.split("/")
        place = ("--site", site, "--ce", ce, "--queue", name)
        care = ("--work-dir", str(work), "--heartbeat", "0.2", "--grace", "1", "--max-empty", "1", "--json")
        self.work = work
        self.process = subprocess.Popen(
            [*command, "--url", url, *place, *care, *words],
            env={**os.environ, "PILOTAGE_TOKEN": token, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def wait_until_it_says(self, text: str) -> None:
        """Read its log up to a line with this text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                return
        raise AssertionError(f"the pilot ended and never said {text!r}")

    def end(self, timeout: float = 300) -> dict[str, Any]:
        """Wait for its end; its summary, its `log` and its exit status."""
        output, log = self.process.communicate(timeout=timeout)
        assert TOKEN not in output + log
        summary: dict[str, Any] = json.loads(output) if output else {}
        return {**summary, "log": log, "returncode": self.process.returncode}


def run(url: str, work: Path, *words: str, **wishes: Any) -> dict[str, Any]:
    """Run a pilot to its end."""
    with PilotProcess(url, work, *words, **wishes) as pilot:
        return pilot.end()


def files_of(archive: bytes | None) -> dict[str, str]:
    """The contents of an output archive by name."""
    assert archive is not None, "no output was delivered"
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        found = {member.name: members.extractfile(member) for member in members}
        return {name: file.read().decode("utf-8", "replace") for name, file in found.items() if file}


def sandbox(**files: str) -> bytes:
    """An input sandbox; `__` in a name stands for a dot."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "."))
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


def alive(marker: str) -> list[int]:
    """Processes with this text in their command line; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until_gone(marker: str, timeout: float = 300) -> None:
    deadline = time.monotonic() + timeout
    while (left := alive(marker)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, f"{marker} still runs as {left}"


def wait_until_there(marker: str, count: int = 1, timeout: float = 300) -> None:
    deadline = time.monotonic() + timeout
    while len(alive(marker)) < count:
        assert time.monotonic() < deadline, f"{marker} never ran"
        time.sleep(0.02)
