"""Patroni from PyPI, in an environment of its own: Debian 12 has 3.0.2, which can lose commits.

A primary that was frozen could take the leader key back from its successor when it went on, and what the
successor had acknowledged was gone. Later releases compare the key before they write it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "4.1.5"
_PACKAGES = (f"patroni[etcd3]=={VERSION}", "psycopg[binary]")
_BUILD = Path(__file__).parents[2] / "build" / "tests"


def install() -> Path:
    """The directory of the environment, which the first call makes; its Python is Debian's."""
    home = _BUILD / f"patroni-{VERSION}"
    done = home / "complete"
    _BUILD.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", str(home)], check=True)
            pip = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode"]
            environment = {**os.environ, "UV_HTTP_TIMEOUT": "300", "UV_HTTP_RETRIES": "10"}
            subprocess.run(
                [*pip, "--python", str(home / "bin" / "python"), *_PACKAGES], check=True, env=environment
            )
            done.touch()
    return home
