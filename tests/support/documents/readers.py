"""What a reader of the documents has: Debian's own Python, a clone of the source, a home, and pip."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from examples.servers.debian import Suite
from tests.support.documents.shell import Shell

ROOT = Path(__file__).parents[3]
PYTHON = "/usr/bin/python3"
SUITE = Suite(
    about="the documents and the demonstration with Debian's own Python",
    programs=(PYTHON, "git"),
    packages=("python3", "python3-venv", "git"),
    files=("/usr/lib/python3*/ensurepip",),
)


@contextmanager
def at_home(
    home: Path,
    *,
    directory: Path | None = None,
    programs: Path = Path(sys.executable).parent,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Shell]:
    """A shell of somebody with a home, the usual variables, and these programs before others.

    Args:
        home: Its home.
        directory: Where the shell begins, if that is elsewhere.
        programs: A directory; without it the shell has the program that is tested, and its Python.
        environment: Further variables.
    """
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    path = f"{programs}{os.pathsep}{kept.pop('PATH', os.defpath)}"
    shell = Shell(
        directory or home, {**kept, **pip_variables(), **(environment or {}), "HOME": str(home), "PATH": path}
    )
    try:
        yield shell
    finally:
        shell.close()


def pip_variables() -> dict[str, str]:
    """Variables that have pip of another home find packages as ours does.

    It compiles none of them: half the modules are never imported, and Python compiles those that are.
    """
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    own = Path.home()
    files = (
        Path(os.environ.get("XDG_CONFIG_HOME") or own / ".config", "pip/pip.conf"),
        own / ".pip/pip.conf",
    )
    configured = [("PIP_CONFIG_FILE", str(file)) for file in files if file.exists()][:1]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or own / ".cache", "pip")
    return {"PIP_CACHE_DIR": str(cache), "PIP_COMPILE": "0", **dict(configured), **kept, **proxies}


def clone(directory: Path) -> Path:
    """Copy the source as it is now, without what git does not know; return the directory."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():  # it may have been removed, and git not been told yet
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name, follow_symlinks=False)
    return directory


def fetch_wheels(source: Path, directory: Path) -> Path:
    """Fetch what an installation of the source needs, for hosts without a network; return where it lies."""
    built_with = tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["requires"]
    environment, wheels = directory / "fetching", directory / "wheels"
    variables = {**os.environ, **pip_variables()}
    subprocess.run([PYTHON, "-m", "venv", environment], check=True)
    fetch = (environment / "bin" / "pip", "download", "--quiet", "--dest", wheels)
    for what in (("--requirement", source / "deploy" / "requirements.txt"), built_with):
        subprocess.run((*fetch, *what), env=variables, stderr=subprocess.DEVNULL, check=True)
    return wheels
