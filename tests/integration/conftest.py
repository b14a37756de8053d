"""What tests of pilots and of the matching share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from matcher.limits import compiled_rules
from optimizers.workers import rq
from pilotage.service import deadline, job_events
from pilotage.service.auth.oidc import discovery
from taskqueue.db import notify
from tests.support.fakes.lease_server import LeaseServer
from tests.support.service import CONFIG, Service, running


@pytest.fixture(autouse=True)
def _new_rules_are_counted_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(compiled_rules, "_AT_A_TIME", 600.0)


@pytest.fixture(scope="session", autouse=True)
def _other_servers_have_time() -> Iterator[None]:
    """However slow the machine is, Redis, issuers of tokens and the service itself answer in time."""
    times = ((rq, "_TIMEOUT"), (notify, "_TIMEOUT"), (discovery, "TIMEOUT"))
    with pytest.MonkeyPatch.context() as patched:
        for module, name in (*times, (deadline, "SECONDS"), (job_events, "_PRESENT")):
            patched.setattr(module, name, 300.0)
        yield


@pytest.fixture
def server() -> Iterator[LeaseServer]:
    """A service that knows what each pilot said, without a database behind it."""
    with LeaseServer() as made:
        yield made


@pytest.fixture
def service(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[Service]:
    """A service, with the configuration that a mark `config` has."""
    mark = request.node.get_closest_marker("config")
    with running(engine, tmp_path, mark.args[0] if mark else CONFIG) as service:
        yield service
