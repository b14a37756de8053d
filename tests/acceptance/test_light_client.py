"""The distribution `pilotage-client`, alone in an environment, at a service elsewhere."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.documents import readers
from tests.support.one_machine import JOB, RESOURCES, Home

#: Bytes of an environment with the client, without pip, which brings itself.
MOST = 40 << 20

NOTEBOOK = """
from pilotage import Client

with Client() as client:
    [job_id] = client.submit({"Executable": "hello.sh", "Arguments": "notebook", "InputSandbox": ["hello.sh"],
                              "StdOutput": "std.out", "OutputSandbox": ["std.out"]})
    print(client.wait(job_id, timeout=300)[job_id], client.explain(job_id)["status"])
    [copy] = client.resubmit(job_id)
    client.wait(copy, timeout=300)
    [file] = [each for each in client.output(copy, "notebook") if each.name == "std.out"]
    print(file.read_text(), end="")
"""


def build(source: Path, to: Path) -> Path:
    """The wheel of a project."""
    command = (sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", to, source)
    subprocess.run(command, check=True, timeout=600)
    return next(to.glob("*.whl"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The client, and the whole program."""
    directory = tmp_path_factory.mktemp("wheels")
    source = readers.clone(directory / "source")
    return build(source / "packages/client", directory / "client"), build(source, directory / "whole")


@pytest.fixture(scope="module")
def programs(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has nothing but the client."""
    environment = tmp_path_factory.mktemp("light") / "environment"
    uv = (sys.executable, "-m", "uv")
    python = environment / "bin/python"
    subprocess.run((*uv, "venv", "--quiet", "--python", sys.executable, environment), check=True)
    subprocess.run((*uv, "pip", "install", "--quiet", "--python", python, wheels[0]), check=True, timeout=600)
    return environment / "bin"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Iterator[Home]:
    """The client of a service with a site."""
    directory = tmp_path_factory.mktemp("light-client")
    (directory / "resources.yaml").write_text(RESOURCES)
    (directory / "hello.jdl").write_text(JOB.replace("%s", "%(WHO)s"))
    (directory / "hello.sh").write_text('#!/bin/sh\necho "hello $1"\n')
    (directory / "hello.sh").chmod(0o755)
    installation = Home(directory / "home")
    with installation.running("--resources", str(directory / "resources.yaml"), "--site", "LCG.Here.org"):
        yield Home(directory / "home", pilotage=programs / "pilotage")


def test_the_client_is_a_part_of_the_program_to_the_byte(wheels: tuple[Path, Path]) -> None:
    parts, all_files = (
        {
            name: hashlib.sha256(wheel.read(name)).hexdigest()
            for name in wheel.namelist()
            if ".dist-info/" not in name
        }
        for wheel in map(ZipFile, wheels)
    )
    assert parts.items() <= all_files.items()
    assert "pilotage/client/client.py" in parts


def test_its_environment_is_small(programs: Path, home: Home) -> None:
    home.run("job", "list")  # modules are compiled
    files = (each for each in programs.parent.rglob("*") if each.is_file() and not each.is_symlink())
    assert sum(each.stat().st_size for each in files) <= MOST


def test_jobs_are_submitted_awaited_fetched_and_submitted_again(home: Home) -> None:
    directory = home.path.parent
    first, second = home.json("job", "submit", directory / "hello.jdl", "--param", "WHO=you,me")["job_ids"]
    assert home.json("job", "wait", first, second, "--timeout", 300)["counts"] == {"Done": 2}
    files = home.json("job", "output", first, second, "--directory", directory / "out")["files"]
    texts = [Path(file).read_text() for some in files.values() for file in some if file.endswith("std.out")]
    assert texts == ["hello you\n", "hello me\n"]
    [copy] = home.json("job", "resubmit", second)["job_ids"]
    assert home.json("job", "wait", copy, "--timeout", 300)["counts"] == {"Done": 1}
    assert home.json("job", "explain", directory / "hello.jdl")["eligible_queues"] == 1
    assert home.json("whoami")["vos"] == ["biomed"]


def test_a_notebook_has_the_python_client(home: Home, programs: Path) -> None:
    done = subprocess.run(
        [programs / "python", "-c", NOTEBOOK],
        cwd=home.path.parent,
        env=home.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (done.stdout, done.stderr) == ("Done Done\nhello notebook\n", "")


def test_other_commands_name_the_whole_program(home: Home, tmp_path: Path) -> None:
    assert "whole program: install `pilotage`" in home.error("serve", status=1)
    assert "whole program: install `pilotage`" in home.error("queue", "list", status=1)
    shown = home.run("--help").stdout
    assert "accounting" in shown
    assert "serve" not in shown
    assert home.run("--version").stdout.startswith("pilotage 1.")
    (tmp_path / "pilotage.yaml").write_text("url: http://127.0.0.1:9\n")
    assert "only the whole program reads it" in home.error("job", "list", "--home", tmp_path, status=2)
