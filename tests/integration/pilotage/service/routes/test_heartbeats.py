"""Heartbeats over HTTP: many at once, each with its own answer."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import insert
from sqlalchemy.exc import InterfaceError

from pilotage.service.lease_reports import RunningJobs
from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.leases import attempts, expiry, lifecycle, plain_reports
from taskqueue.leases.reports import HeartbeatReport
from taskqueue.schema.tables import job_stocks
from tests.support import databases
from tests.support.service import Service

pytestmark = databases.BOTH

QUEUE = "LCG.A.org/ce1/long"
ASKED = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}


def _run(service: Service, count: int) -> tuple[httpx.Client, list[dict]]:
    """A pilot with so many jobs that run."""
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "true"}] * count})
    pilot = service.pilot(QUEUE)
    matches = pilot.post("/api/v1/matcher/requestJob", json={**ASKED, "count": count}).json()["matches"]
    assert len(matches) == count
    for match in matches:
        assert pilot.post(f"/api/v1/leases/{match['lease']}/start").is_success
    return pilot, matches


def _beat(pilot: httpx.Client, matches: Sequence[dict]) -> list[httpx.Response]:
    def one(match: dict) -> httpx.Response:
        said = {"progress": f"of {match['job_id']}"}
        alone = {
            "Connection": "close"
        }  # after a defect the server ends the connection, which nobody shall share
        return pilot.post(f"/api/v1/leases/{match['lease']}/heartbeat", json=said, headers=alone)

    with ThreadPoolExecutor(len(matches)) as pool:
        return list(pool.map(one, matches))


def _recorder(service: Service) -> tuple[object, str]:
    """The module and the name of the function that records them."""
    if service.engine.dialect.name == "sqlite":
        return lifecycle, "record"
    return plain_reports, "record_plain"


def _progress(service: Service, match: dict) -> str:
    with database.reading(service.engine) as conn:
        return attempts.get_attempt(conn, match["lease"]).progress


def test_each_of_many_at_once_gets_its_own_answer(service: Service):
    pilot, matches = _run(service, 12)
    killed, stale, stalled, *plain = matches
    operator = service.operator()
    with database.writing(service.engine) as conn:
        found = expiry.mark_stalled(
            conn, silent_since={"cms": utc_now() + timedelta(minutes=1)}, now=utc_now()
        )
        assert len(found) == 12
    _beat(pilot, [killed, stale, *plain])
    assert operator.post(f"/api/v1/jobs/{killed['job_id']}/kill").is_success
    ended = {"status": "Done", "exit_code": 0}
    assert pilot.post(f"/api/v1/leases/{stale['lease']}/finish", json=ended).is_success
    answers = _beat(pilot, matches)
    assert answers[0].json()["commands"] == ["kill"]
    assert (answers[1].status_code, answers[1].json()["error"]["code"]) == (409, "stale_lease")
    for answer in answers[2:]:
        assert (answer.status_code, answer.json()["commands"]) == (200, [])
        assert 0 < answer.json()["heartbeat_seconds"] <= 20
    for match in (stalled, *plain):
        assert _progress(service, match) == f"of {match['job_id']}"
        assert operator.get(f"/api/v1/jobs/{match['job_id']}").json()["status"] == "Running"


def test_the_number_of_running_jobs_is_what_accounting_counted(service: Service):
    running = RunningJobs(service.engine)
    running.read(utc_now())
    assert running.count == 0
    counted = {"cms": {"Running": 70_000, "Waiting": 10**6}, "dune": {"Matched": 20_000, "Stalled": 10_000}}
    with database.writing(service.engine) as conn:
        rows = [
            {"vo": vo, "status": each, "jobs": jobs}
            for vo, of in counted.items()
            for each, jobs in of.items()
        ]
        conn.execute(insert(job_stocks), rows)
    running.read(utc_now())
    assert running.count == 100_000


def test_a_heartbeat_for_anothers_lease_is_404_and_changes_nothing(service: Service):
    pilot, [match] = _run(service, 1)
    _beat(pilot, [match])
    answer = service.pilot(QUEUE).post(f"/api/v1/leases/{match['lease']}/heartbeat", json={"progress": "x"})
    assert answer.status_code == 404
    assert _progress(service, match) == f"of {match['job_id']}"


def _attempt(service: Service, match: dict) -> dict:
    return service.user().get(f"/api/v1/jobs/{match['job_id']}").json()["attempt"]


def test_the_largest_use_is_shown_beside_what_was_asked(service: Service):
    memory = {"request": {"overhead": 1000, "per_core": 500}, "limit": {"overhead": 1000, "per_core": 800}}
    asked = {
        "cpu_work_db12": 3600,
        "cpu": {"num_cores": {"min": 2, "max": 2}, "ram_mb": memory},
        "io": {"scratch_mb": 100},
        "tags": "arch:riscv64",
    }
    service.user().post("/api/v1/jobs", json={"jobs": [{"executable": "true", "requirements": asked}]})
    pilot = service.pilot(QUEUE, processors=2)
    offer = {**ASKED, "MaxRAM": 4000, "MaxScratch": 200, "NumberOfProcessors": 2, "Tag": ["arch:riscv64"]}
    [match] = pilot.post("/api/v1/matcher/requestJob", json=offer).json()["matches"]
    assert match["description"]["requirements"]["cpu"]["ram_mb"] == memory, (
        "the pilot takes the limit from it"
    )
    lease = f"/api/v1/leases/{match['lease']}"
    assert pilot.post(f"{lease}/start").is_success
    assert _attempt(service, match)["used"] == {"memory_mb": None, "scratch_mb": None, "cpu_seconds": None}
    for memory, scratch in ((1130, 7), (900, 20)):
        # The first two are what pilots of 1.0.0 send as well.
        said = {"memory_mb": memory, "cpu_seconds": 12.5, "scratch_mb": scratch}
        assert pilot.post(f"{lease}/heartbeat", json=said).is_success
    attempt = _attempt(service, match)
    assert attempt["asked"] == {"memory_mb": 2000, "scratch_mb": 100, "cpu_seconds": 3600}
    assert attempt["used"] == {"memory_mb": 1130, "scratch_mb": 20, "cpu_seconds": 12.5}
    assert service.operator().post(f"/api/v1/jobs/{match['job_id']}/kill").is_success
    ended = {"status": "Failed", "exit_code": 137, "memory_mb": 1200, "cpu_seconds": 13}
    assert pilot.post(f"{lease}/finish", json=ended).is_success
    attempt = _attempt(service, match)
    assert (attempt["closed_as"], attempt["processors"]) == ("finished", 2)
    assert attempt["used"] == {"memory_mb": 1200, "scratch_mb": 20, "cpu_seconds": 13}


@pytest.mark.parametrize("value", ["12 MB", True, -1, 1e300, [3]])
def test_a_measurement_that_is_no_amount_is_ignored(service: Service, value: object):
    pilot, [match] = _run(service, 1)
    said = {"progress": "x", "memory_mb": value, "scratch_mb": value, "cpu_seconds": value}
    assert pilot.post(f"/api/v1/leases/{match['lease']}/heartbeat", json=said).is_success
    assert _progress(service, match) == "x"
    assert set(_attempt(service, match)["used"].values()) == {None}


def test_a_poisoned_heartbeat_fails_alone(service: Service, monkeypatch: pytest.MonkeyPatch):
    pilot, matches = _run(service, 6)
    module, name = _recorder(service)
    original = getattr(module, name)

    def poisoned(where, beats: Sequence[HeartbeatReport], **others):
        if any(each.lease == matches[0]["lease"] for each in beats):
            raise ZeroDivisionError("a defect of ours")
        return original(where, beats, **others)

    monkeypatch.setattr(module, name, poisoned)
    answers = _beat(pilot, matches)
    assert [answer.status_code for answer in answers] == [500, *[200] * 5]
    assert [_progress(service, match) for match in matches[1:]] == [
        f"of {match['job_id']}" for match in matches[1:]
    ]


def test_while_the_database_is_away_all_are_told_to_come_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    pilot, matches = _run(service, 4)

    def away(*_args, **_others):
        raise InterfaceError("UPDATE", {}, Exception("the connection is closed"))

    with monkeypatch.context() as cut:
        cut.setattr(*_recorder(service), away)
        for answer in _beat(pilot, matches):
            assert answer.status_code == 503
            assert answer.headers["Retry-After"]
    assert all(answer.is_success for answer in _beat(pilot, matches))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"{}", 200),
        (b'{"progress": 5}', 400),
        (b'{"progress": "x", "progress": "y"}', 400),
        (b"[]", 400),
        (b"{", 400),
        (b'{"progress": "\\u0000"}', 400),
    ],
)
def test_what_is_no_heartbeat_is_told_as_everywhere(service: Service, body: bytes, status: int):
    pilot, [match] = _run(service, 1)
    json = {"Content-Type": "application/json"}
    answer = pilot.post(f"/api/v1/leases/{match['lease']}/heartbeat", content=body, headers=json)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["details"]["problems"]
        assert _progress(service, match) == ""
