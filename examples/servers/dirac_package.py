"""The genuine package of DIRAC from PyPI, unmodified, in an environment of its own."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from examples.servers.debian import Suite

SUITE = Suite(
    about="genuine clients of DIRAC, whose M2Crypto is built",
    programs=("gcc", "openssl"),
    packages=("gcc", "libc6-dev", "libssl-dev", "openssl", "python3-dev"),
    files=("/usr/include/openssl/ssl.h", "/usr/include/python3*/Python.h"),
)
VERSION = "9.1.22"
#: Of the release before, whose clients some installations still have.
VERSION_8 = "8.0.86"
_HOME = Path(__file__).parents[2] / "build" / "tests"
_PACKAGES = {VERSION: ("DIRAC", "DIRACCommon"), VERSION_8: ("DIRAC",)}
#: What its clients import of that which the package names. Neither MySQL nor gfal2.
_NEEDS = (
    *("Authlib", "cachetools", "certifi", "db12", "diraccfg", "diracx-cli", "diracx-client", "diracx-core"),
    *("dominate", "importlib_metadata", "importlib_resources", "invoke", "opensearch-py", "packaging"),
    "pexpect",
    *("prompt-toolkit", "psutil", "pyasn1", "pyasn1-modules", "pydantic", "pyjwt", "pyparsing"),
    *("python-dateutil", "pytz", "requests", "sqlalchemy", "typing_extensions", "zstandard"),
)


def install(version: str = VERSION) -> Path:
    """The Python of the environment of a version, which the first test makes."""
    home = _HOME / f"dirac-{version}"
    python, done = home / "bin" / "python", home / "complete"
    _HOME.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", str(home)], check=True)
            pip = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode"]
            pip += ["--python", str(python)]
            environment = {**os.environ, "UV_HTTP_TIMEOUT": "300", "UV_HTTP_RETRIES": "10"}
            subprocess.run([*pip, "swig"], check=True, env=environment)
            # M2Crypto is built here, and its build does not see the packages of the environment.
            [swig] = home.glob("lib/python*/site-packages/swig/data")
            [library] = (swig / "share" / "swig").iterdir()
            path = f"{swig / 'bin'}:{os.environ['PATH']}"
            built = {**environment, "PATH": path, "SWIG_LIB": str(library)}
            subprocess.run([*pip, "M2Crypto"], check=True, env=built)
            subprocess.run([*pip, *_NEEDS], check=True, env=environment)
            genuine = [f"{name}=={version}" for name in _PACKAGES[version]]
            subprocess.run([*pip, "--no-deps", *genuine], check=True, env=environment)
            # JobAgents import it with the databases of DIRAC's services, which they do not use.
            [packages] = home.glob("lib/python*/site-packages")
            (packages / "MySQLdb.py").touch()
            done.touch()
    return python
