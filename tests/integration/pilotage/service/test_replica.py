"""Lists, counts, accounting and explanations come from a hot standby; what must be current does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.db.history import RAISE
from tests.integration.pilotage.service.pages.test_access import session
from tests.support.databases import connect, run_primary, run_replica
from tests.support.service import CONFIG, Service, running

QUEUE = "LCG.A.org/ce1/long"
#: By role: what is read from the replica, perhaps beside other things.
LATE = {
    "vo_admin": (
        *("/api/v1/jobs/summary?by=status", "/api/v1/jobs/{job}/explain"),
        *("/api/v1/jobs/{job}/queues", "/api/v1/pools", "/api/v1/shares?vo=cms", "/api/v1/accounting"),
        f"/api/v1/resources/queues/{QUEUE}/explain",
        *("/", "/jobs", "/jobs/download?format=csv", "/jobs/{job}/why", "/failures", "/campaigns"),
        *("/pools", "/task-queues", "/pilots", "/sites", "/accounting", "/shares"),
    ),
    "site_admin": (
        "/api/v1/accounting/records?site=LCG.A.org&month=2026-10",
        *("/sites/LCG.A.org", f"/sites/{QUEUE}", "/managers"),
    ),
}
CURRENT = (
    *("/api/v1/jobs/{job}", "/api/v1/jobs/{job}/log", "/jobs/{job}", "/api/v1/jobs/changes"),
    *("/api/v1/jobs", "/api/v1/jobs?ids={job}", "/jobs?ids={job}"),
    "/api/v1/jobs/summary?by=status&ids={job}",
)


class ReadService(Service):
    """A service with a standby, of which the statements are counted."""

    statements = 0

    def reads_replica(self, role: str, path: str) -> bool:
        """Whether a page, which must be there, needs the replica."""
        before = self.statements
        wishes = {"site": "LCG.A.org"} if role == "site_admin" else {"vo": "cms"}
        with session(self, role, **wishes) as browser:
            token = self.token(role, **wishes)
            headers = {"Authorization": f"Bearer {token}"} if path.startswith("/api/") else {}
            answer = browser.get(path, headers=headers)
        assert answer.status_code == 200, (path, answer.text)
        return self.statements > before


@pytest.fixture(scope="module")
def service(short_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadService]:
    with run_primary(short_directory) as primary, run_replica(short_directory, primary) as standby:
        engine, late = (connect(each.url("pilotage")) for each in (primary, standby))
        with running(engine, tmp_path_factory.mktemp("service"), CONFIG, replica=late) as plain:
            found = ReadService(plain.parts, plain.url, plain.clients)
            [job] = found.submit({"Executable": "x"})
            assert job == 1
            with database.writing(engine) as conn:  # as each process does every five seconds
                conn.execute(RAISE, {"home": "h", "number": 1, "at": utc_now()})
            standby.catch_up(primary)
            yield found
        for each in (engine, late):
            each.dispose()


@pytest.fixture(autouse=True)
def looked(service: ReadService) -> None:
    service.parts.replica._until = float("inf")  # however slow the machine is


@pytest.fixture(autouse=True)
def counted(service: ReadService) -> Iterator[None]:
    replica = service.parts.replica_engine
    assert replica is not None

    def count(*_: object) -> None:
        service.statements += 1

    event.listen(replica, "before_cursor_execute", count)
    yield
    event.remove(replica, "before_cursor_execute", count)


@pytest.mark.parametrize(("role", "path"), [(role, path) for role, paths in LATE.items() for path in paths])
def test_what_may_be_late_is_read_from_the_replica(service: ReadService, role: str, path: str) -> None:
    assert service.reads_replica(role, path.format(job=1))


@pytest.mark.parametrize("path", CURRENT)
def test_what_must_be_current_is_not(service: ReadService, path: str) -> None:
    assert not service.reads_replica("vo_admin", path.format(job=1))


def test_a_job_that_the_replica_lacks_is_explained(service: ReadService) -> None:
    [job] = service.submit({"Executable": "x"})
    assert service.user().get(f"/api/v1/jobs/{job}/explain").status_code == 200


def test_its_use_is_a_metric(service: ReadService) -> None:
    text = service.as_role("monitor").get("/metrics").text
    assert "pilotage_replica_used 1.0" in text
