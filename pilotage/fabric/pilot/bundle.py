"""The pilot as one file: a zip archive for any Python 3.9 or later.

`python -m pilotage.fabric.pilot.bundle FILE` writes it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipapp
from collections.abc import Sequence
from pathlib import Path

_FABRIC = Path(__file__).parents[1]
#: Parent packages, which are empty in the archive.
_PARENTS = ("pilotage", "pilotage/fabric")
_START = """import os
import sys

from pilotage.fabric.pilot.main import main

sys.exit(main(sys.argv[1:], os.environ))
"""


def build(
    target: Path,
    *,
    interpreter: str = "/usr/bin/env python3",
    packages: Sequence[str] = ("pilot",),
    start: str = _START,
) -> Path:
    """Write the archive, with these packages of `pilotage.fabric` and the main program `start`."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for package in packages:
            shutil.copytree(
                _FABRIC / package,
                root / "pilotage/fabric" / package,
                ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
            )
        for parent in _PARENTS:
            (root / parent / "__init__.py").write_text("", encoding="utf-8")
        (root / "__main__.py").write_text(start, encoding="utf-8")
        zipapp.create_archive(root, target, interpreter=interpreter, compressed=True)
    return target


def content() -> bytes:
    """The archive's bytes: always the same, so they can be cached."""
    with tempfile.TemporaryDirectory() as directory:
        return build(Path(directory, "pilot.pyz")).read_bytes()


if __name__ == "__main__":
    build(Path(sys.argv[1]))
