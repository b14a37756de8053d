"""Genuine clients of DIRAC: its package from PyPI, unmodified, in an environment of its own."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.servers.debian import Suite
from examples.servers.dirac import write_cfg

SUITE = Suite(
    about="genuine clients of DIRAC, whose M2Crypto is built",
    programs=("gcc", "openssl"),
    packages=("gcc", "libc6-dev", "libssl-dev", "openssl", "python3-dev"),
    files=("/usr/include/openssl/ssl.h", "/usr/include/python3*/Python.h"),
)
VERSION = "9.1.22"
_HOME = Path(__file__).parents[1] / "build" / "tests" / f"dirac-{VERSION}"
#: What its clients import of that which the package names. Neither MySQL nor gfal2.
_NEEDS = (
    *("Authlib", "cachetools", "certifi", "db12", "diraccfg", "diracx-cli", "diracx-client", "diracx-core"),
    *("dominate", "importlib_metadata", "importlib_resources", "invoke", "opensearch-py", "packaging"),
    "pexpect",
    *("prompt-toolkit", "psutil", "pyasn1", "pyasn1-modules", "pydantic", "pyjwt", "pyparsing"),
    *("python-dateutil", "pytz", "requests", "sqlalchemy", "typing_extensions", "zstandard"),
)


def install() -> Path:
    """The Python of the environment, which the first test makes."""
    python, done = _HOME / "bin" / "python", _HOME / "complete"
    _HOME.parent.mkdir(parents=True, exist_ok=True)
    with _HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(_HOME, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", "--copies", str(_HOME)], check=True)
            pip = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode"]
            pip += ["--python", str(python)]
            environment = {**os.environ, "UV_HTTP_TIMEOUT": "300", "UV_HTTP_RETRIES": "10"}
            subprocess.run([*pip, "swig"], check=True, env=environment)
            # M2Crypto is built here, and its build does not see the packages of the environment.
            [swig] = _HOME.glob("lib/python*/site-packages/swig/data")
            [library] = (swig / "share" / "swig").iterdir()
            path = f"{swig / 'bin'}:{os.environ['PATH']}"
            built = {**environment, "PATH": path, "SWIG_LIB": str(library)}
            subprocess.run([*pip, "M2Crypto"], check=True, env=built)
            subprocess.run([*pip, *_NEEDS], check=True, env=environment)
            genuine = (f"DIRAC=={VERSION}", f"DIRACCommon=={VERSION}")
            subprocess.run([*pip, "--no-deps", *genuine], check=True, env=environment)
            # JobAgents import it with the databases of DIRAC's services, which they do not use.
            [packages] = _HOME.glob("lib/python*/site-packages")
            (packages / "MySQLdb.py").touch()
            done.touch()
    return python


_CALL = """
import json, sys
import DIRAC
DIRAC.initialize(require_auth=False)
from DIRAC.Core.Base.Client import Client
from DIRAC.Core.Utilities import JEncode
from importlib import import_module
answers = []
for name, method, arguments in json.loads(sys.stdin.read()):
    if name.startswith("https"):
        client = Client(url=name)
    else:
        client = getattr(import_module(f"DIRAC.WorkloadManagementSystem.Client.{name}"), name)()
    answer = getattr(client, method)(*arguments)
    answer.pop("ExecInfo", None)  # of an exception, which has no form in JEncode
    answers.append(answer)
print("ANSWERS" + JEncode.encode(answers))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenuineClients:
    """Clients in the environment, with a configuration of their own."""

    python: Path
    directory: Path
    more: Mapping[str, str] = field(default_factory=dict)  #: variables of their processes

    @classmethod
    def make(
        cls, directory: Path, *, url: str, authorities: Path, urls: Mapping[str, str] | None = None
    ) -> "GenuineClients":
        """Clients of the services at `url`, or of those with these URLs by name."""
        names = ("JobManager", "JobMonitoring", "JobStateUpdate", "Matcher")
        urls = urls or {name: f"{url}/WorkloadManagement/{name}" for name in names}
        group = {"Users": "ada", "VO": "lhcb", "Properties": "NormalUser"}
        configuration = {
            "DIRAC": {"VirtualOrganization": "lhcb", "Security": {"CALocation": str(authorities)}},
            "Systems": {"WorkloadManagement": {"URLs": urls}},
            "Registry": {"Groups": {"lhcb_user": group}},
        }
        directory.mkdir()
        (directory / "dirac.cfg").write_text("\n".join(write_cfg(configuration)))
        return cls(python=install(), directory=directory)

    def call(self, proxy: Path, *calls: tuple[Any, ...]) -> list[Any]:
        """The answers to calls, each `(client, method, *arguments)`, in one process with this proxy."""
        wanted = [(name, method, arguments) for name, method, *arguments in calls]
        done = subprocess.run(
            [str(self.python), "-c", _CALL],
            input=json.dumps(wanted),
            capture_output=True,
            text=True,
            env=self.environment(proxy),
            timeout=240,
            cwd=self.directory,
        )
        _, found, text = done.stdout.rpartition("ANSWERS")
        assert found, done.stdout + done.stderr
        answers: list[Any] = json.loads(text)
        return [answers[0]] if len(answers) == 1 else answers

    def environment(self, proxy: Path) -> Mapping[str, str]:
        """Of a process of DIRAC."""
        return {
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "HOME": str(self.directory),
            "DIRACSYSCONFIG": str(self.directory / "dirac.cfg"),
            "X509_USER_PROXY": str(proxy),
            "X509_CERT_DIR": "",
            **self.more,
        }
