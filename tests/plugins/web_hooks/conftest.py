"""What tests of web hooks share: the browser, for pages, and receivers that have time."""

import pytest

from pilotage.plugins.web_hooks import agent, mail, sender
from tests.support.servers.chromium import chromium, signed_in, windows

__all__ = ["chromium", "signed_in", "windows"]


@pytest.fixture(autouse=True)
def _receivers_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a message arrives in time, and a cycle sends all that is due."""
    for module in (mail, sender):
        monkeypatch.setattr(module, "TRY_SECONDS", 300.0)
    for name in ("_SECONDS", "_BEGIN_SECONDS", "_WAIT_SECONDS"):
        monkeypatch.setattr(agent, name, 300.0)
