"""What tests of the node share: its commands have time."""

import pytest

from pilotage.fabric.pilot.node import batch_job, containers, discovery, gpus, host_features


@pytest.fixture(autouse=True)
def _commands_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a command that answers is heard."""
    for module in (batch_job, containers, gpus, host_features):
        monkeypatch.setattr(module, "_PATIENCE", 300.0)
    monkeypatch.setattr(discovery, "_COMMAND_SECONDS", 300.0)
