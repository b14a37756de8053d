"""Genuine clients of DIRAC: its package from PyPI, unmodified, in an environment of its own."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.servers.dirac import write_cfg
from examples.servers.dirac_package import VERSION, VERSION_8, install

_CALL = """
import json, sys
import DIRAC
if hasattr(DIRAC, "initialize"):
    DIRAC.initialize(require_auth=False)
else:
    from DIRAC.Core.Base.Script import parseCommandLine
    parseCommandLine()
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
        cls,
        directory: Path,
        *,
        url: str,
        authorities: Path,
        urls: Mapping[str, str] | None = None,
        version: str = VERSION,
    ) -> "GenuineClients":
        """Clients of the services at `url`, or of those with these URLs by name."""
        names = ("JobManager", "JobMonitoring", "JobStateUpdate", "Matcher")
        urls = urls or {name: f"{url}/WorkloadManagement/{name}" for name in names}
        group = {"Users": "ada", "VO": "lhcb", "Properties": "NormalUser"}
        system: Mapping[str, object] = {"URLs": urls}
        setup: Mapping[str, object] = {}
        if version == VERSION_8:  # which has setups, with an instance of each system
            system = {"Production": system}
            setup = {"Setup": "Test", "Setups": {"Test": {"WorkloadManagement": "Production"}}}
        security = {"CALocation": str(authorities)}
        configuration = {
            "DIRAC": {"VirtualOrganization": "lhcb", "Security": security, **setup},
            "Systems": {"WorkloadManagement": system},
            "Registry": {"Groups": {"lhcb_user": group}},
        }
        directory.mkdir()
        (directory / "dirac.cfg").write_text("\n".join(write_cfg(configuration)))
        return cls(python=install(version), directory=directory)

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

    def run(self, proxy: Path, *command: str) -> str:
        """What a command, such as `dirac-wms-job-status`, prints."""
        done = subprocess.run(
            [str(self.python.parent / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            env=self.environment(proxy),
            timeout=240,
            cwd=self.directory,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

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
