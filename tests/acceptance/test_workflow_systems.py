"""Snakemake and Parsl run examples that their projects publish, unchanged, as jobs of an installation.

In each run the first job that calls a certain program has its pilot killed, and the next call fails: a
program of the same name stands before the real one in the `PATH` of the nodes.
"""

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from examples.servers.supervised import suspend_all
from tests.acceptance.test_light_client import build
from tests.support.documents import readers
from tests.support.one_machine import RESOURCES, Home
from tests.support.wait import until

#: Of the examples: the tests that come with each project.
PACKAGES = ("snakemake>=9.20", "parsl>=2026.1", "pytest>=7.4,<8", "typeguard")
#: The first call waits for the end of its pilot, the next one fails, and all others do what is wanted.
STAND_IN = """#!/bin/sh
if mkdir {place}/first 2>/dev/null; then
  echo $$ >{place}/pid.new; mv {place}/pid.new {place}/pid
  sleep 3000
fi
if test -e {place}/killed && mkdir {place}/second 2>/dev/null; then echo "broken on purpose" >&2; exit 3; fi
exec {program} "$@"
"""
PARSL_CONFIG = """
import os

from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from pilotage_parsl import PilotageProvider


def fresh_config():
    provider = PilotageProvider(
        max_blocks=1, worker_init=f"cd {os.getcwd()}", keywords={"JobType": "parsl"}
    )
    executor = HighThroughputExecutor(
        label="pilotage",
        address="127.0.0.1",
        max_workers_per_node=2,
        heartbeat_period=2,
        heartbeat_threshold=60,
        provider=provider,
    )
    return Config(executors=[executor], retries=3, usage_tracking=0)
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the client, both adapters, and what they are for."""
    directory = tmp_path_factory.mktemp("workflow-systems")
    source = readers.clone(directory / "source")
    wheels = [
        build(source / "packages" / name, directory / name) for name in ("client", "snakemake", "parsl")
    ]
    uv = (sys.executable, "-m", "uv")
    python = directory / "environment/bin/python"
    subprocess.run((*uv, "venv", "--quiet", "--python", sys.executable, python.parents[1]), check=True)
    packages = (*map(str, wheels), *PACKAGES)
    subprocess.run(
        (*uv, "pip", "install", "--quiet", "--python", python, *packages), check=True, timeout=1800
    )
    return python.parent


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that is first in the `PATH` of the nodes."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, programs: Path, nodes: Path) -> Iterator[Home]:
    """An installation whose jobs see the files of this machine, as on a cluster with a shared file system."""
    directory = tmp_path_factory.mktemp("installation")
    text = RESOURCES.replace("MaxRAM: 4000", "MaxRAM: 4000\n          NumberOfProcessors: 4")
    text = text.replace("    JobScheduling:", "    Leases: {StalledGrace: 1}\n    JobScheduling:")
    (directory / "resources.yaml").write_text(text)
    found = Home(directory / "home")
    found.programs = f"{nodes}:{programs}:{found.programs}"
    site = ("--resources", str(directory / "resources.yaml"), "--site", "LCG.Here.org", "--isolation", "none")
    with found.running(*site):
        yield found


@contextmanager
def breaking(program: str, nodes: Path, tmp_path: Path) -> Iterator[None]:
    """Kill the pilot of the job that first calls a program; the second call fails."""
    place = tmp_path / "calls"
    place.mkdir()
    stand_in = nodes / program
    stand_in.write_text(STAND_IN.format(place=place, program=shutil.which(program)))
    stand_in.chmod(0o755)
    is_killed = threading.Event()

    def kill() -> None:
        until((place / "pid").exists, 600)
        called = psutil.Process(int((place / "pid").read_text()))
        pilot = next(each for each in called.parents() if any("--stamp" in word for word in each.cmdline()))
        stopped = suspend_all(lambda: [pilot, *pilot.children(recursive=True)])
        (place / "killed").touch()  # no call of another job of this pilot comes in between
        for process in stopped:
            with suppress(psutil.NoSuchProcess):  # payloads end with their pilot
                process.kill()
        is_killed.set()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield
    finally:
        stand_in.unlink()
    killer.join(300)
    assert is_killed.is_set()
    assert (place / "second").exists()


def run(home: Home, programs: Path, directory: Path, *words: object, status: int = 0) -> str:
    """What a program of the environment prints."""
    done = subprocess.run(
        [str(programs / str(words[0])), *map(str, words[1:])],
        cwd=directory,
        env=home.environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == status, (done.stdout[-5_000:], done.stderr[-5_000:])
    return done.stdout + done.stderr


def find_package(programs: Path, name: str) -> Path:
    [found] = programs.parent.glob(f"lib/python*/site-packages/{name}")
    return found


def snakemake(home: Home, programs: Path, directory: Path, *words: str, status: int = 0) -> str:
    executor = ("--executor", "pilotage", "--jobs", "4", "--seconds-between-status-checks", "1")
    return run(home, programs, directory, "snakemake", *executor, *words, status=status)


@pytest.mark.parametrize("shared", ["all", "none"])
@pytest.mark.parametrize("example", ["simple", "groups"])
def test_snakemake_runs_its_examples_through_a_killed_pilot_and_a_failure(
    home: Home, programs: Path, nodes: Path, tmp_path: Path, example: str, shared: str
) -> None:
    """The examples are those by which Snakemake's own tests try each executor."""
    directory = tmp_path / "workflow"
    shutil.copytree(find_package(programs, "snakemake/common/tests/testcases") / example, directory)
    usage = ("--shared-fs-usage", "none") if shared == "none" else ()
    with breaking("cp", nodes, tmp_path):
        said = snakemake(home, programs, directory, "--retries", "2", *usage)

    assert "(100%) done" in said
    assert (directory / "test3.out").exists()
    [group] = {each["job_group"] for each in home.json("job", "list", "--limit", "1")["jobs"]}
    jobs = home.json("job", "list", "--group", group, "--limit", "100")["jobs"]
    assert [each["status"] for each in jobs].count("Failed") == 1
    assert any(each["reschedules"] for each in jobs), "those that the killed pilot had"


def test_snakemake_reports_a_failed_job_with_its_messages(home: Home, programs: Path, tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(
        "rule broken:\n    output: 'no.txt'\n    resources: mem_mb=100, runtime=5\n"
        "    shell: 'echo so it is >&2; exit 3'\n"
    )
    said = snakemake(home, programs, tmp_path, "no.txt", "--shared-fs-usage", "none", status=1)

    [job] = home.json("job", "list", "--limit", "1")["jobs"]
    assert f"Job {job['job_id']} of Pilotage: Failed" in said
    [messages] = (tmp_path / ".snakemake/pilotage").glob("*/std.err")
    assert "so it is" in messages.read_text()
    described = home.json("job", "show", job["job_id"])["description"]
    assert (described["MinRAM"], described["MaxWallClockTime"]) == (100, 300)


def test_parsl_runs_its_examples_through_a_killed_pilot_and_a_failure(
    home: Home, programs: Path, nodes: Path, tmp_path: Path
) -> None:
    """The examples of its documents, as its own tests run them at a site."""
    (tmp_path / "pilotage_config.py").write_text(PARSL_CONFIG)
    examples = find_package(programs, "parsl/tests/test_docs")
    with breaking("cat", nodes, tmp_path):
        words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", examples, "--config", "pilotage_config.py")
        said = run(home, programs, tmp_path, "python", *words)

    assert " passed" in said
    [block] = home.json("job", "list", "--limit", "1")["jobs"]
    assert (block["status"], block["reschedules"]) == ("Killed", 1), "it ends by its executor"
