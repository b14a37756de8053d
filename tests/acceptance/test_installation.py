"""An operator's installation on three machines of their own: real systemd, PostgreSQL, Redis and HAProxy."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.documents import readers, tutorials
from tests.support.documents.tutorials import Tell
from tests.support.servers import machines

TUTORIAL = "docs/operator/installation.md"
HOSTS = ("a.example.org", "b.example.org", "pilotage.example.org")


def follow(directory: Path, tell: Tell | None = None) -> int:
    """Follow the tutorial; `pip` finds what it would download in a directory, since there is no network."""
    source = readers.clone(directory / "source")
    wheels = readers.fetch_wheels(source, directory)
    variables = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    shared = directory / "shared"
    shared.mkdir()
    with ExitStack() as stack:
        hosts = stack.enter_context(
            machines.started(directory, HOSTS, shown=[wheels], shared={"/var/lib/pilotage/shared": shared})
        )
        for host in hosts.values():
            readers.clone(host.root / "usr/src/pilotage")
        shells = {name: stack.enter_context(host.shell(directory, variables)) for name, host in hosts.items()}
        postgresql = max(Path("/etc/postgresql").iterdir(), key=lambda version: int(version.name))
        instead = {
            "apt-get install -y": "dpkg --status",
            "python3 -m venv": f"{readers.PYTHON} -m venv",
            "/etc/postgresql/15": str(postgresql),
        }
        return tutorials.follow(source / TUTORIAL, shells, instead=instead, tell=tell)


@pytest.mark.debian("machines")
@pytest.mark.timeout(1800)
def test_an_operator_installs_two_hosts_and_one_may_stop(tmp_path: Path) -> None:
    assert follow(tmp_path) > 30
