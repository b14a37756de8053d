"""The pilot as one file, run by whatever Python there is."""

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from pilotage.fabric import bundle
from tests.support.fakes.lease_server import LeaseServer
from tests.support.pilot_process import (
    PilotProcess,
    files_of,
    run,
    sandbox,
    wait_until_gone,
    wait_until_there,
)

CANDIDATES = (
    "/usr/bin/python3",
    "python3.9",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
)


def is_good(python: str) -> bool:
    command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 9))"]
    return shutil.which(python) is not None and subprocess.run(command, capture_output=True).returncode == 0


PYTHONS = [python for python in CANDIDATES if is_good(python)]


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.build(tmp_path_factory.mktemp("bundle") / "pilot.pyz")


def test_it_holds_the_pilot_and_nothing_else_of_ours(zipapp: Path) -> None:
    names = zipfile.ZipFile(zipapp).namelist()

    assert {name for name in names if name.endswith(".py") and "/pilot/" not in name} == {
        "__main__.py",
        "pilotage/__init__.py",
        "pilotage/fabric/__init__.py",
        "pilotage/tar_headers.py",
    }
    assert zipapp.stat().st_size < 120_000


def test_it_runs_as_a_program_by_itself(zipapp: Path) -> None:
    done = subprocess.run([zipapp, "--help"], capture_output=True, text=True)

    assert done.returncode == 0
    assert "--site" in done.stdout


@pytest.mark.parametrize("python", PYTHONS)
def test_it_runs_jobs_alone_in_an_empty_environment(
    zipapp: Path, server: LeaseServer, tmp_path: Path, python: str
) -> None:
    job = server.add({"Executable": "run.sh"}, sandbox(run__sh="#!/bin/sh\necho ran\n"))
    failing = server.add({"Executable": "/bin/sh", "Arguments": "-c 'exit 3'"})

    ended = run(
        server.url, tmp_path, command=(shutil.which(python) or python, "-E", "-s", "-W", "error", str(zipapp))
    )

    assert ended["returncode"] == 0, ended["log"]
    assert (job.status, files_of(job.output)["std.out"]) == ("Done", "ran\n")
    assert (failing.status, failing.exit_code) == ("Failed", 3)


def test_its_payload_does_not_outlive_it(zipapp: Path, server: LeaseServer, tmp_path: Path) -> None:
    marker = f"# payload of a zipapp at {tmp_path}"
    server.add({"Executable": "/bin/sh", "Arguments": ["-c", f"while :; do sleep 0.1; done {marker}"]})
    with PilotProcess(server.url, tmp_path, command=("/usr/bin/env", "python3", str(zipapp))) as pilot:
        wait_until_there(marker)
        pilot.process.kill()

        wait_until_gone(marker)
