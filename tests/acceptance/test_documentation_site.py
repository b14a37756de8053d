"""The site of the documents: it is built without a warning, so no link of it leads nowhere."""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'href="reference/keywords/"' in front
    linked = (tmp_path / "site" / "operator" / "stability" / "index.html").read_text(encoding="utf-8")
    assert "../../CHANGELOG.md" not in linked
