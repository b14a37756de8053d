"""An operator's installation on three machines of their own: real systemd, PostgreSQL, Redis and HAProxy."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import machines, tutorials
from tests.tutorials import Tell

ROOT = Path(__file__).parent.parent.parent
TUTORIAL = ROOT / "docs" / "operator" / "installation.md"
HOSTS = ("a.example.org", "b.example.org", "pilotage.example.org")
#: The Python that made the environment of the tests, and where its files lie.
PYTHON = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")


def follow(directory: Path, tell: Tell | None = None) -> int:
    """Follow the tutorial; what its `pip` would download is what the tests run with."""
    shared = directory / "shared"
    shared.mkdir()
    packages = tutorials.packages()
    with ExitStack() as stack:
        hosts = stack.enter_context(
            machines.started(
                directory,
                HOSTS,
                shown=[ROOT, Path(sys.base_prefix), *packages],
                shared={"/var/lib/pilotage/shared": shared},
            )
        )
        shells = {name: stack.enter_context(host.shell(directory, {})) for name, host in hosts.items()}
        postgresql = max(Path("/etc/postgresql").iterdir(), key=lambda version: int(version.name))
        instead = {
            "apt-get install -y": "dpkg --status",
            "python3 -m venv": f"{PYTHON} -m venv --without-pip",
            "/opt/pilotage/bin/pip install --quiet /usr/src/pilotage": tutorials.installed("/opt/pilotage"),
            "/usr/src/pilotage": str(ROOT),
            "/etc/postgresql/15": str(postgresql),
        }
        return tutorials.follow(TUTORIAL, shells, instead=instead, tell=tell)


@pytest.mark.debian("machines")
@pytest.mark.timeout(900)
def test_an_operator_installs_two_hosts_and_one_may_stop(tmp_path: Path) -> None:
    assert follow(tmp_path) > 30
