"""The programs for nodes as zip archives: the pilot, and the runner of a grid job with its sandbox.

The pilot runs with any Python 3.9 or later; `python -m pilotage.fabric.bundle FILE` writes its archive.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import zipapp
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from pilotage.fabric.runner.local_job import SANDBOX

_FABRIC = Path(__file__).parent
#: Of the parent package.
_SHARED = ("tar_headers.py",)
#: Parent packages, which are empty in the archive.
_PARENTS = ("pilotage", "pilotage/fabric")
_START_PILOT = """import os
import sys

from pilotage.fabric.pilot.main import main

sys.exit(main(sys.argv[1:], os.environ))
"""


def build(target: Path, *, packages: Sequence[str] = ("pilot",), start: str = _START_PILOT) -> Path:
    """Write the archive, with these packages of `pilotage.fabric` and the main program `start`."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for package in packages:
            shutil.copytree(
                _FABRIC / package,
                root / "pilotage/fabric" / package,
                ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
            )
        for name in _SHARED:
            shutil.copy(_FABRIC.parent / name, root / "pilotage" / name)
        for parent in _PARENTS:
            (root / parent / "__init__.py").write_text("", encoding="utf-8")
        (root / "__main__.py").write_text(start, encoding="utf-8")
        zipapp.create_archive(root, target, interpreter="/usr/bin/env python3", compressed=True)
    return target


def pilot_bundle() -> bytes:
    """Build the pilot's archive; the bytes are always the same, so they can be cached."""
    with tempfile.TemporaryDirectory() as directory:
        return build(Path(directory, "pilot.pyz")).read_bytes()


_START_LOCAL_JOB = """import os
import sys
from pathlib import Path

from pilotage.fabric.runner.local_job import main

sys.exit(main(Path(sys.argv[0]).absolute(), sys.argv[1:], os.environ))
"""


def local_job_bundle(sandbox: BinaryIO | None) -> bytes:
    """Build a grid job's archive with its input sandbox, if any; raises OSError for lack of space."""
    if sandbox is None:
        return _runner()
    data = io.BytesIO()
    data.write(_runner())
    with zipfile.ZipFile(data, "a", zipfile.ZIP_STORED) as members:
        sandbox.seek(0)
        with members.open(SANDBOX, "w", force_zip64=True) as member:
            shutil.copyfileobj(sandbox, member)
    return data.getvalue()


@cache
def _runner() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = build(Path(directory, "job.pyz"), packages=("pilot", "runner"), start=_START_LOCAL_JOB)
        return file.read_bytes()


if __name__ == "__main__":
    build(Path(sys.argv[1]))
