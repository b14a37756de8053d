"""An installation of a test's own: processes of ours by their command lines, its commands, and clients."""

import json
import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from examples.servers.starting import free_port
from tests.support import wait
from tests.support.processes import PILOTAGE, Supervised
from tests.support.service import NO_AUTHORITIES

#: Seconds for one answer, on a machine that is busy with else.
PATIENCE = 300


@dataclass(frozen=True)
class Installation:
    """A home directory and a database; its processes and clients end with the stack."""

    home: Path
    environment: dict[str, str]  #: of its processes and commands, beside that of the tests
    stack: ExitStack

    def run(self, *arguments: str, **environment: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [str(PILOTAGE), *arguments],
            env={**os.environ, **self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str, *arguments: str, **environment: str) -> Supervised:
        """Start a process; its log is `NAME.log` in the home directory."""
        own = {**self.environment, **environment}
        process = Supervised(name, arguments, env=own, log=self.home / f"{name}.log")
        process.start()
        self.stack.callback(process.stop)
        return process

    def serve(self, name: str, *arguments: str, command: str = "serve", **environment: str) -> str:
        """Start a service at a port of its own; its URL, once it is ready."""
        port = free_port()
        service = self.start(name, command, "--port", str(port), *arguments, **environment)
        url = f"http://127.0.0.1:{port}"
        wait.until(lambda: is_ready(url, service))
        return url

    def token(self, role: str, *options: str, **environment: str) -> str:
        """A token that an operator makes by a command."""
        return str(json.loads(self.run("token", "--role", role, *options, "--json", **environment))["token"])

    def client(self, url: str, token: str) -> httpx.Client:
        """A client of the programming interface of one of its services.

        It makes a connection for each request: a service closes those that are idle for five seconds, and a
        test that was held up for so long would send into one that is closing.
        """
        return self.stack.enter_context(
            httpx.Client(
                base_url=f"{url}/api/v1",
                headers={"Authorization": f"Bearer {token}", "Request-Timeout": "60"},  # the longest
                trust_env=False,
                verify=NO_AUTHORITIES,
                timeout=PATIENCE,
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        )


def is_ready(url: str, service: Supervised) -> bool:
    """Whether a service, which must not have ended, serves."""
    assert service.is_running, service.log.read_text()
    try:
        answer = httpx.get(f"{url}/readyz", trust_env=False, verify=NO_AUTHORITIES, timeout=PATIENCE)
    except httpx.TransportError:
        return False
    return answer.status_code == 200
