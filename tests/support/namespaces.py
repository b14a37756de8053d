"""Whether this host has user namespaces, for tests of isolation."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.debian import ALL_OF_THEM

NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true")
HAS_NAMESPACES = (
    shutil.which("unshare") is not None and subprocess.run(NAMESPACES, capture_output=True).returncode == 0
)
userns = pytest.mark.skipif(not HAS_NAMESPACES and not ALL_OF_THEM, reason="no user namespaces on this host")


@contextmanager
def visible_directory() -> Iterator[Path]:
    """A new directory outside /tmp and /var/tmp, which any isolation hides from payloads."""
    build = Path(__file__).parents[2] / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=build))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
