"""What commands import: a command of users starts fast, and needs few packages."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
#: Lines of our source, comments included, that `pilotage job submit` imports at most.
MOST = 4_000

PROGRAM = """
import sys
from pilotage.cli.application import main
try:
    main(["job", "submit", "job.jdl", "--url", "http://127.0.0.1:9", "--patience", "0"])
except SystemExit:
    print(*filter(None, (getattr(each, "__file__", None) for each in sys.modules.values())), sep="\\n")
"""


def test_submitting_a_job_imports_little(tmp_path: Path) -> None:
    """As far as to the request for a plan, which fails: nobody listens there."""
    (tmp_path / "job.jdl").write_text('Executable = "/bin/true";')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={"PILOTAGE_TOKEN": "x", "PILOTAGE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "cannot be reached" in done.stderr, done.stderr
    files = [Path(line) for line in done.stdout.splitlines()]
    ours = [each for each in files if ROOT in each.parents and "site-packages" not in each.parts]
    assert len(ours) > 20
    assert sum(len(each.read_text().splitlines()) for each in ours) <= MOST
    packages = {line.partition("site-packages/")[2].partition("/")[0] for line in done.stdout.splitlines()}
    assert {"typer", "rich"} <= packages
    assert not packages & {"classad2", "htcondor2", "re2", "yaml", "httpx", "sqlalchemy", "fastapi"}
