"""The archive of a grid job: runner and input sandbox as one executable zip file."""

from __future__ import annotations

import io
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import BinaryIO

from pilotage.fabric.pilot import bundle
from pilotage.fabric.runner.local_job import SANDBOX

_START = """import os
import sys
from pathlib import Path

from pilotage.fabric.runner.local_job import main

sys.exit(main(Path(sys.argv[0]).absolute(), sys.argv[1:], os.environ))
"""


def content(sandbox: BinaryIO | None) -> bytes:
    """Build the archive with the input sandbox as downloaded, if any; raises OSError for lack of space."""
    if sandbox is None:
        return _runner()
    data = io.BytesIO()
    data.write(_runner())
    with zipfile.ZipFile(data, "a", zipfile.ZIP_STORED) as members:
        sandbox.seek(0)
        with members.open(SANDBOX, "w") as member:
            shutil.copyfileobj(sandbox, member)
    return data.getvalue()


@cache
def _runner() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = bundle.build(Path(directory, "job.pyz"), packages=("pilot", "runner"), start=_START)
        return file.read_bytes()
