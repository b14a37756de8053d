"""The provider for Parsl asks for what changed, with stand-ins for Parsl and the service."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pilotage import JobRecord, ServiceAway

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class State(Enum):
    """Parsl's states of blocks."""

    UNKNOWN, PENDING, RUNNING, CANCELLED, COMPLETED, FAILED, TIMEOUT, HELD = range(8)


class Provider:
    """A base class of Parsl's."""


class Shown:
    """Another one."""


class Status:
    """Parsl's status of a block."""

    def __init__(self, state: State, **_: object) -> None:
        self.state = state
        self.terminal = state in {State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMEOUT}


PARSL = {
    "parsl": {},
    "parsl.jobs": {},
    "parsl.jobs.states": {"JobState": State, "JobStatus": Status},
    "parsl.launchers": {"SimpleLauncher": object},
    "parsl.launchers.base": {"Launcher": object},
    "parsl.providers": {},
    "parsl.providers.base": {"ExecutionProvider": Provider},
    "parsl.providers.errors": {"SubmitException": Exception},
    "parsl.utils": {"RepresentationMixin": Shown},
}


class Jobs:
    """The jobs of a service, as `Client.jobs` lists them."""

    def __init__(self) -> None:
        self.changed: dict[int, tuple[str, datetime]] = {}
        self.listed: list[int] = []  #: records in each answer
        self.is_away = False

    def jobs(self, *, job_group: str, updated_since: str = "") -> Iterator[JobRecord]:
        assert job_group.startswith("parsl-")
        since = datetime.fromisoformat(updated_since) if updated_since else BEGIN
        found = {number: each for number, each in self.changed.items() if each[1] >= since}
        self.listed.append(len(found))
        for number, (status, at) in found.items():
            if self.is_away:
                raise ServiceAway("away")
            yield JobRecord(
                id=number,
                vo="cms",
                owner="ada",
                status=status,
                minor_status="",
                site="",
                fields={"updated_at": at.isoformat()},
            )


@pytest.fixture(name="provider")
def _make_provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, content in PARSL.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "packages/parsl"))
    monkeypatch.delitem(sys.modules, "pilotage_parsl", raising=False)
    pilotage_parsl = importlib.import_module("pilotage_parsl")

    monkeypatch.setattr(pilotage_parsl, "Client", lambda _: Jobs())
    monkeypatch.setattr(pilotage_parsl, "SimpleLauncher", lambda: None)
    return pilotage_parsl.PilotageProvider()


def set_all(provider: Any, statuses: Mapping[int, str], at: datetime) -> Jobs:
    """Let blocks have a status since a moment."""
    service: Jobs = provider._client
    for number, status in statuses.items():
        service.changed[number] = status, at
        provider.resources.setdefault(str(number), {"status": Status(State.PENDING)})
    return service


def test_of_ten_thousand_blocks_only_those_that_changed_lately_are_asked_for(provider: Any) -> None:
    ids = [*map(str, range(10_000))]
    service = set_all(provider, dict.fromkeys(range(10_000), "Running"), BEGIN)
    assert {each.state for each in provider.status(ids)} == {State.RUNNING}
    set_all(provider, {7: "Done", 8: "Failed"}, BEGIN + timedelta(hours=1))
    found = provider.status(ids)
    assert (found[7].state, found[8].state, found[9].state) == (State.COMPLETED, State.FAILED, State.RUNNING)
    provider.status(ids)
    assert service.listed == [10_000, 10_000, 2]
    provider.status(["7", "8"])
    assert len(service.listed) == 3, "what has ended does not change"


def test_a_list_that_broke_off_is_read_again(provider: Any) -> None:
    service = set_all(provider, {1: "Running"}, BEGIN)
    provider.status(["1"])
    set_all(provider, {2: "Running", 1: "Done"}, BEGIN + timedelta(hours=1))
    service.is_away = True
    assert [each.state for each in provider.status(["1", "2"])] == [State.RUNNING, State.PENDING]
    service.is_away = False
    assert [each.state for each in provider.status(["1", "2"])] == [State.COMPLETED, State.RUNNING]
