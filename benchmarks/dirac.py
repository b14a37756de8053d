"""DIRAC's `TaskQueueDB` beside ours: the real package in an environment of its own, on a private MariaDB.

python -m benchmarks.dirac      # makes that environment, once
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks import lhcb, mariadb
from benchmarks.clients import ClientFailed, Run
from requirements.requirement_class import RequirementClass

_VERSION = "9.1.22"
_HOME = Path("build/bench/dirac")
_PYTHON = _HOME / "bin" / "python"
_CLIENT = Path(__file__).with_name("dirac_client.py")
#: What DIRAC itself names needs more than `TaskQueueDB` does, some of it not to be had from PyPI.
_NEEDS = (
    *("Authlib", "cachetools", "certifi", "db12", "diraccfg", "diracx-cli", "diracx-client", "diracx-core"),
    *("dominate", "importlib_metadata", "importlib_resources", "invoke", "M2Crypto", "mysqlclient"),
    *("packaging", "pexpect", "prompt-toolkit", "psutil", "pyasn1", "pyasn1-modules", "pydantic", "pyjwt"),
    *("pyparsing", "python-dateutil", "pytz", "requests", "sqlalchemy", "typing_extensions", "zstandard"),
)
HOW_TO = (
    "apt-get install mariadb-server libmariadb-dev pkg-config build-essential swig libssl-dev python3-dev"
    " && python -m benchmarks.dirac"
)
#: What DIRAC's matcher looks at.
_OFFERED = ("Site", "GridCE", "Queue", "Platform", "CPUTime")


def missing() -> str:
    """What to do before it can be measured; empty if all is there."""
    return "" if mariadb.installed() and _PYTHON.exists() else HOW_TO


def offers() -> list[Mapping[str, object]]:
    """What pilots offer, to either side."""
    return [{name: queue[name] for name in _OFFERED} for queue in lhcb.queues()]


@dataclass(frozen=True, slots=True)
class Peer:
    """A filled `TaskQueueDB`."""

    _input: IO[str]
    _output: IO[str]

    def run(self, clients: int, seconds: float) -> tuple[Run, list[str]]:
        """What so many processes take in so many seconds, and what was wrong with that."""
        self._input.write(f"{clients} {seconds}\n")
        self._input.flush()
        found = json.loads(_line(self._output))
        doubled = len(found["jobs"]) - len(set(found["jobs"]))
        flaws = [f"DIRAC handed {doubled} jobs out twice"] if doubled else []
        return Run(per_second=found["per_second"], latencies=found["latencies"]), flaws


@contextmanager
def filled(classes: Sequence[RequirementClass], sizes: Sequence[int]) -> Iterator[Peer]:
    """A `TaskQueueDB` with so many jobs in task queues of these requirements."""
    with mariadb.server() as socket, tempfile.TemporaryDirectory() as name:
        population = Path(name) / "population.json"
        population.write_text(json.dumps(_population(classes, sizes)))
        environment = {**os.environ, "MYSQL_UNIX_PORT": str(socket)}
        process = subprocess.Popen(
            [str(_PYTHON), str(_CLIENT), str(population)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _line(process.stdout)
            yield Peer(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait(300)
            process.stdout.close()


def _population(classes: Sequence[RequirementClass], sizes: Sequence[int]) -> dict[str, object]:
    return {
        "VO": lhcb.VO,
        "offers": offers(),
        "task_queues": [_task_queue(each, size) for each, size in zip(classes, sizes, strict=True)],
    }


def _task_queue(asked: RequirementClass, jobs: int) -> dict[str, object]:
    said = lhcb.description(asked)
    return {
        "Owner": said["Owner"],
        "OwnerGroup": said["OwnerGroup"],
        "CPUTime": asked.cpu_time,
        "Sites": said["Site"],
        "Platforms": said["Platform"],
        "JobTypes": [said["JobType"]],
        "jobs": jobs,
    }


def _line(stream: IO[str]) -> str:
    if line := stream.readline():
        return line
    raise ClientFailed("DIRAC's client is gone; what it said is above")


def install() -> None:
    """Make the environment."""
    pip = [str(_PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "venv", str(_HOME)], check=True)
    subprocess.run([*pip, "--no-deps", f"DIRAC=={_VERSION}", f"DIRACCommon=={_VERSION}"], check=True)
    subprocess.run([*pip, *_NEEDS], check=True)


if __name__ == "__main__":
    install()
