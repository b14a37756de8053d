"""When the agents of one process run their cycles."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cs_config import validate
from pilotage.cli import wiring
from pilotage.cli.processes import agent
from pilotage.cli.processes.agent import AgentContext
from pilotage.cli.settings import Settings
from taskqueue.db import clock as clocks
from taskqueue.db import database


def test_agents_of_the_same_interval_go_on_at_different_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = {}

    @contextmanager
    def note(_cycle: object, *, name: str, every: float, first_pause: float, clock: object) -> Iterator[None]:
        assert clock is clocks.utc_now
        pauses[name] = (every, first_pause)
        yield

    monkeypatch.setattr(wiring, "repeat_in_thread", note)
    settings = Settings.model_construct(home=tmp_path)
    context = AgentContext(
        engine=database.connect(f"sqlite:///{tmp_path}/pilotage.db"),
        current=lambda: validate.parse("Resources: {}"),
        clock=clocks.utc_now,
        blobs=wiring.open_place(tmp_path),
        holder="test",
    )
    with agent.run_agents(["depths", "day-record", "forecasts"], context, settings):
        assert pauses == {"depths": (60, 20), "day-record": (60, 40), "forecasts": (60, 60)}
    context.engine.dispose()
