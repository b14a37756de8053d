from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from examples.servers import debian
from examples.servers.debian import Suite

SUITE = Suite(about="a server", programs=("no-such-program",), packages=("server",))


class Apt:
    """Notes what is run, and whether services might be started meanwhile."""

    def __init__(self, policy: Path) -> None:
        self._policy = policy
        self.run_with: dict[str, str | None] = {}

    def __call__(self, command: Sequence[str], **_: Any) -> None:
        verb = next(word for word in command if word in ("update", "install"))
        self.run_with[verb] = self._policy.read_text() if self._policy.exists() else None


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "policy-rc.d"
    monkeypatch.setattr(debian, "_POLICY", file)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/bin/apt-get")
    return file


def test_no_service_is_started_by_its_installation(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = Apt(policy)
    monkeypatch.setattr("subprocess.run", apt)
    debian.install([SUITE])
    assert apt.run_with["install"] == "#!/bin/sh\nexit 101\n"
    assert not policy.exists()


def test_a_rule_that_the_host_has_stays(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy.write_text("its own")
    apt = Apt(policy)
    monkeypatch.setattr("subprocess.run", apt)
    debian.install([SUITE])
    assert apt.run_with["install"] == policy.read_text() == "its own"
