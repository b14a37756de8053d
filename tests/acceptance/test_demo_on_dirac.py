"""`./dev demo --dirac`, as its user sees it: genuine commands and JobAgents of DIRAC, unmodified."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from examples.servers import dirac_package
from tests.acceptance.test_demo_on_slurm import left_in

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "examples.demo", "--dirac")


@pytest.mark.debian("dirac")
@pytest.mark.timeout(1800)
def test_genuine_pilots_run_the_jobs_of_genuine_commands(short_directory: Path) -> None:
    dirac_package.install()
    with tempfile.TemporaryDirectory(dir=short_directory) as name:
        environment = {**os.environ, "TMPDIR": name}
        done = subprocess.run(
            COMMAND, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "4 of 4 jobs are Done, and one was killed" in done.stdout
        for minor_status in ("Downloading InputSandbox", "Output Sandbox Uploaded", "Execution Complete"):
            assert minor_status in done.stdout
        assert "reads https://dirac.example.org:8443" in done.stdout
        assert left_in(Path(name)) == []
