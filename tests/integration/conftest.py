"""What tests of pilots and of the matching share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.config import Config
from sqlalchemy import Engine

from agents import leader
from matcher.claim import matcher as matching
from matcher.claim import snapshot
from matcher.limits import compiled_rules
from matcher.request import node_checks
from optimizers.workers import rq
from pilotage.service import deadline, job_events
from pilotage.service.auth.oidc import discovery
from taskqueue.blob_stores import s3
from taskqueue.db import notify
from tests.support import databases
from tests.support.fakes.lease_server import LeaseServer
from tests.support.service import CONFIG, Service, running


@pytest.fixture(autouse=True)
def _the_matcher_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: new rules are counted at once, places stay open, nodes are checked."""
    monkeypatch.setattr(compiled_rules, "_AT_A_TIME", 600.0)
    monkeypatch.setattr(snapshot, "_OPEN_SECONDS", 600.0)
    monkeypatch.setattr(matching, "_RECENT", 600.0)
    monkeypatch.setattr(node_checks, "BURST", 600.0)


@pytest.fixture(scope="session", autouse=True)
def _other_servers_have_time() -> Iterator[None]:
    """However slow the machine is: all that is waited for comes in time."""
    times = ((rq, "_TIMEOUT"), (notify, "_TIMEOUT"), (notify, "_GRACE"), (discovery, "TIMEOUT"))
    with pytest.MonkeyPatch.context() as patched:
        databases.wait_patiently(patched)
        patched.setattr(s3, "_CONFIG", s3._CONFIG.merge(Config(connect_timeout=300, read_timeout=300)))
        # Cycles have times of the test's: a lease that lasts longer by that of the host would end later.
        databases.set_defaults(patched, leader.lead, renewal=3600.0)
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
