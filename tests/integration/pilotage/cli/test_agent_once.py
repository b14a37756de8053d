"""`pilotage agent --once`: what each agent did, or which process leads it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents import leader
from pilotage.cli import settings
from taskqueue.db import agent_leases, database
from taskqueue.db.clock import DatabaseClock
from tests.support.commands import Run, run

__all__ = ["run"]


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """What logs the process, which the command sets as that of a process of its own, is as before."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_an_agent_that_another_process_leads_names_that_process(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = settings.load({"home": tmp_path}, {}).database_url
    database.upgrade(url)
    engine = database.connect(url)
    now = DatabaseClock(engine).read()
    monkeypatch.setattr(DatabaseClock, "read", lambda _: now)
    with database.writing(engine) as conn:
        agent_leases.acquire(conn, name="sweep", holder="node7:4711:0f0f0f0f", now=now, ttl=leader.LEASE_TIME)
    engine.dispose()
    words = ("agent", "sweep", "retention", "--once", "--home", tmp_path)
    status, text, _ = run(*words, "--json")
    answers = json.loads(text)
    assert (status, answers["sweep"]) == (0, {"active_in": "node7:4711"})
    assert "active_in" not in answers["retention"]
    assert "active in: node7:4711" in run(*words)[1]
