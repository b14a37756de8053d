"""Changes that the database does not confirm in time: their outcome is unknown, and they go on."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from pilotage.service import deadline
from pilotage.service.app import create_app
from tests.support import wait
from tests.support.routes_by_role import QUEUE
from tests.support.service import Service, running_on_sqlite, served

JOB = {"jobs": [{"Executable": "x"}]}


@pytest.fixture
def held(sqlite_template: Path, tmp_path: Path) -> Iterator[tuple[Service, sqlite3.Connection]]:
    """A service, and a connection that can keep it from storing."""
    with (
        running_on_sqlite(sqlite_template, tmp_path) as service,
        closing(sqlite3.connect(tmp_path / "test.db", isolation_level=None)) as other,
    ):
        yield service, other


def test_a_submission_that_is_not_confirmed_in_time_is_stored_once_under_its_key(
    held: tuple[Service, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = held
    headers = {
        "Authorization": f"Bearer {service.token('user', vo='cms', user='ada')}",
        "Idempotency-Key": "k",
    }
    with served(create_app(service.parts)) as url:  # a real server: its requests run in threads
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(deadline, "SECONDS", 0.1)
        unknown = httpx.post(f"{url}/api/v1/jobs", json=JOB, headers=headers, timeout=300, trust_env=False)
        monkeypatch.undo()
        other.execute("ROLLBACK")
        answer = httpx.post(f"{url}/api/v1/jobs", json=JOB, headers=headers, timeout=300, trust_env=False)
        wait.until(lambda: not deadline._abandoned)
    assert unknown.status_code == 503
    assert unknown.json()["error"]["code"] == "outcome_unknown"
    assert unknown.headers["Retry-After"] == "5"
    assert unknown.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.status_code == 201
    assert other.execute("SELECT job_id FROM jobs").fetchall() == [(answer.json()["job_ids"][0],)]


def test_a_report_that_is_not_confirmed_in_time_may_be_repeated(
    held: tuple[Service, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, other = held
    site, ce, queue = QUEUE.split("/")
    service.user().post("/api/v1/jobs", json=JOB).raise_for_status()
    headers = {"Authorization": f"Bearer {service.token('pilot', vo='cms', queue=QUEUE)}"}
    resource = {"Site": site, "GridCE": ce, "Queue": queue, "CPUTime": 100_000}
    with served(create_app(service.parts)) as url:

        def post(path: str, **body: object) -> httpx.Response:
            return httpx.post(
                f"{url}/api/v1/{path}", json=body, headers=headers, timeout=300, trust_env=False
            )

        [match] = post("matcher/requestJob", **resource).json()["matches"]
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(deadline, "SECONDS", 0.1)
        unknown = post(f"leases/{match['lease']}/start")
        monkeypatch.undo()
        other.execute("ROLLBACK")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "outcome_unknown")
        assert post(f"leases/{match['lease']}/start").status_code == 200


def test_what_reads_has_no_deadline(
    held: tuple[Service, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = held
    monkeypatch.setattr(deadline, "SECONDS", 0.0)
    assert service.user().get("/api/v1/jobs").status_code == 200
