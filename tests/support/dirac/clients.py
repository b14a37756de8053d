"""Genuine clients of DIRAC: its package from PyPI, unmodified, in an environment of its own."""

import atexit
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from examples.servers.dirac import write_cfg
from examples.servers.dirac_package import VERSION, VERSION_8, install

#: Seconds that calls may take.
_PATIENCE = 240
#: Imports DIRAC, then makes the calls of each line of its input in a process of its own.
_SERVER = """
import json, os, signal, sys, traceback
from importlib import import_module
import DIRAC
from DIRAC.Core.Base.Client import Client
from DIRAC.Core.Utilities import JEncode
patience = int(sys.argv[1])
clients = "DIRAC.WorkloadManagementSystem.Client."
for name in sys.argv[2:]:
    import_module(clients + name)

def call(name, method, arguments):
    client = Client(url=name) if name.startswith("https") else getattr(import_module(clients + name), name)()
    answer = getattr(client, method)(*arguments)
    answer.pop("ExecInfo", None)  # of an exception, which has no form in JEncode
    return answer

def call_all(environment, directory, calls):
    signal.alarm(patience)
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv[1:] = []
    if hasattr(DIRAC, "initialize"):
        DIRAC.initialize(require_auth=False)
    else:
        from DIRAC.Core.Base.Script import parseCommandLine
        parseCommandLine()
    print("ANSWERS" + JEncode.encode([call(*each) for each in calls]))

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            call_all(*json.loads(line))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print("ENDED", flush=True)
"""
_NAMES = ("JobManager", "JobMonitoring", "JobStateUpdate", "Matcher")


class ForkServer:
    """A process of DIRAC that is forked for each use: importing DIRAC takes a second of the processor."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), "-c", _SERVER, str(_PATIENCE), *(f"{name}Client" for name in _NAMES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": f"{python.parent}:{os.environ['PATH']}"},
        )

    def call(self, environment: Mapping[str, str], directory: Path, calls: Sequence[object]) -> str:
        """What a process with these calls prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([environment, str(directory), calls]) + "\n")
        self._process.stdin.flush()
        return "".join(takewhile(lambda line: line != "ENDED\n", self._process.stdout))

    def stop(self) -> None:
        """End it."""
        self._process.communicate()


@cache
def start_fork_server(python: Path) -> ForkServer:
    """The one of all tests of this process that use this Python; it ends with the process."""
    server = ForkServer(python)
    atexit.register(server.stop)
    return server


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
        urls = urls or {name: f"{url}/WorkloadManagement/{name}" for name in _NAMES}
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
        """The answers to calls, each `(client, method, *arguments)`, in one new process with this proxy."""
        wanted = [(name, method, arguments) for name, method, *arguments in calls]
        printed = start_fork_server(self.python).call(self.environment(proxy), self.directory, wanted)
        _, found, text = printed.rpartition("ANSWERS")
        assert found, printed
        answers: list[Any] = json.loads(text.splitlines()[0])
        return [answers[0]] if len(answers) == 1 else answers

    def run(self, proxy: Path, *command: str) -> str:
        """What a command, such as `dirac-wms-job-status`, prints."""
        done = subprocess.run(
            [str(self.python.parent / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            env=self.environment(proxy),
            timeout=_PATIENCE,
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
