"""Whether this host has user namespaces, for tests of isolation."""

import shutil
import subprocess

import pytest

from tests.debian import ALL_OF_THEM

NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true")
HAS_NAMESPACES = (
    shutil.which("unshare") is not None and subprocess.run(NAMESPACES, capture_output=True).returncode == 0
)
userns = pytest.mark.skipif(not HAS_NAMESPACES and not ALL_OF_THEM, reason="no user namespaces on this host")
