"""`pilotage config import` with a format of another package, which is found by its entry point."""

import os
import subprocess
import sys
from pathlib import Path

IMPORTER = """
from cs_config.formats import importers


def propose_mine(config, files, *, site=None):
    file, text = importers.require_one(files, site)
    sites = {name: {"MaxRAM": 4000} for name in text.split()}
    return importers.merge_import(config, {"Resources": {"Sites": sites}}, [], file)
"""


def _run(directory: Path, *words: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(directory), "COLUMNS": "120"}
    command = [sys.executable, "-m", "pilotage.cli", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_format_of_another_package_is_a_command(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(IMPORTER)
    metadata = tmp_path / "theirs-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[pilotage.formats]\nmine = theirs:propose_mine\n")
    tree, sites = tmp_path / "resources.yaml", tmp_path / "sites.txt"
    tree.write_text("Resources: {Sites: {LCG.A.org: {MaxRAM: 2000}}}\n")
    sites.write_text("LCG.A.org\n")

    assert "format mine" in _run(tmp_path, "config", "import", "--help")
    shown = _run(tmp_path, "config", "import", "mine", sites, "--file", tree)

    assert "Resources/Sites/LCG.A.org/MaxRAM" in shown
    assert "2000" in shown
    assert "4000" in shown
