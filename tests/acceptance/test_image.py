"""The image, built and started where an engine for containers is at hand."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "pilotage-test"


@pytest.fixture
def engine() -> str:
    """The command of an engine that works here."""
    for command in filter(shutil.which, ("podman", "docker")):
        if subprocess.run([command, "info"], check=False, capture_output=True, timeout=300).returncode == 0:
            return command
    pytest.skip("no engine for containers works on this host")


def test_the_image_is_built_and_runs_the_program(engine: str) -> None:
    build = [engine, "build", "--file", str(ROOT / "deploy" / "Dockerfile"), "--tag", NAME, str(ROOT)]
    subprocess.run(build, check=True, timeout=900)
    try:
        command = [engine, "run", "--rm", NAME, "--version"]
        done = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
        assert done.stdout.startswith("pilotage ")
    finally:
        subprocess.run([engine, "image", "rm", "--force", NAME], check=False, timeout=300)
