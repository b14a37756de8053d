"""`./dev demo`, as somebody sees it who has cloned the source on Debian."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import readers


@pytest.mark.debian("python")
@pytest.mark.timeout(1800)
def test_all_jobs_that_can_run_are_done(tmp_path: Path) -> None:
    source, home = readers.clone(tmp_path / "source"), tmp_path / "home"
    home.mkdir()
    variables = {**os.environ, **readers.pip_variables(), "HOME": str(home), "PYTHON": readers.PYTHON}
    done = subprocess.run(["./dev", "demo"], cwd=source, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "246 of 246 runnable jobs are Done" in done.stdout
    made_with = (source / ".venv" / "pyvenv.cfg").read_text()
    assert f"home = {Path(readers.PYTHON).parent}\n" in made_with
