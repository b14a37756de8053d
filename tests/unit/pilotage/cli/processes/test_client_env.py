"""`client.env` of `pilotage up` on a disk that is full."""

import errno
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilotage.cli import home_directory
from pilotage.cli.processes import up


def test_a_full_disk_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(*_words: Any, **_more: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(home_directory, "write_client_env", write)
    monkeypatch.setattr(up, "_token", lambda *_words: "token")
    chosen: Any = SimpleNamespace(home=tmp_path, authorities=None)

    up._write_client_env(chosen, parts=None, url="http://localhost:1")  # type: ignore[arg-type]

    [logged] = caplog.records
    assert logged.levelno == logging.WARNING
    assert "client.env is not written" in logged.getMessage()
    assert "No space left on device; again in 10 min" in logged.getMessage()
