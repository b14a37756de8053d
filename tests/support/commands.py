"""`pilotage` commands in the process of the test, sent to a service as somebody."""

from collections.abc import Callable
from typing import Any

import pytest

from pilotage.cli import application
from tests.support.service import Service

#: Runs a command: its exit status, standard output and standard error.
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs commands."""

    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            application.main([str(each) for each in arguments])
        said = capsys.readouterr()
        return int(str(ended.value.code or 0)), said.out, said.err

    return command


def send_to(
    service: Service, home: object, monkeypatch: pytest.MonkeyPatch, role: str = "operator", **wishes: Any
) -> None:
    """Let commands be sent to this service with a token of this role; the operator is root."""
    monkeypatch.setenv("PILOTAGE_HOME", str(home))
    monkeypatch.setenv("PILOTAGE_URL", service.url)
    wishes = {"user": "root"} | wishes if role == "operator" else wishes
    monkeypatch.setenv("PILOTAGE_TOKEN", service.token(role, **wishes))
