"""Over HTTP: a pilot that was lost comes back with its work, and the service records when it is up."""

from datetime import timedelta

import httpx
import pytest

from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.leases import expiry, uptime
from tests.support import databases, wait
from tests.support.factories import pilot_reports
from tests.support.service import Service

pytestmark = databases.BOTH

QUEUE = "LCG.A.org/ce1/long"
ASKED = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}
OUTPUT = b"an archive" * 1000


def _run(service: Service) -> tuple[int, str, httpx.Client]:
    [job_id] = service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "true"}]}).json()["job_ids"]
    pilot = service.pilot(QUEUE)
    [match] = pilot.post("/api/v1/matcher/requestJob", json=ASKED).json()["matches"]
    assert _report(pilot, match["lease"], "start").is_success
    return job_id, match["lease"], pilot


def _report(pilot: httpx.Client, lease: str, which: str) -> httpx.Response:
    if which == "output":
        return pilot.put(f"/api/v1/leases/{lease}/output", content=OUTPUT)
    body = {"status": "Done", "exit_code": 0} if which == "finish" else {}
    return pilot.post(f"/api/v1/leases/{lease}/{which}", json=body)


def _give_up(service: Service) -> None:
    later = utc_now() + timedelta(hours=1)
    with database.writing(service.engine) as conn:
        expiry.mark_stalled(conn, silent_since={"cms": later}, now=later - timedelta(minutes=1))
        again, _ = pilot_reports.give_up(conn, "cms", now=later)
    assert len(again) == 1


@pytest.mark.parametrize("first", ["start", "heartbeat", "output", "finish"])
def test_the_first_report_of_who_comes_back_is_taken_and_so_are_the_others(service: Service, first: str):
    job_id, lease, pilot = _run(service)
    _give_up(service)
    for which in dict.fromkeys((first, "output", "finish") if first != "finish" else ("finish",)):
        answer = _report(pilot, lease, which)
        assert answer.is_success, answer.text
    job = service.user().get(f"/api/v1/jobs/{job_id}").json()
    assert (job["status"], job["epoch"], job["reschedules"]) == ("Done", 1, 0)
    if first != "finish":
        assert service.user().get(f"/api/v1/jobs/{job_id}/output").content == OUTPUT


def test_another_pilot_s_token_brings_nothing_back(service: Service):
    job_id, lease, _ = _run(service)
    _give_up(service)
    other = service.pilot(QUEUE, vo="dune")
    for which in ("start", "heartbeat", "output", "finish"):
        assert _report(other, lease, which).status_code == 404
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] == "Rescheduled"


def test_a_service_that_runs_records_that_it_is_up(service: Service):
    def is_up() -> bool:
        with database.reading(service.engine) as conn:
            return uptime.read(conn).go_back(utc_now() + timedelta(hours=1), seconds=1) != uptime.NEVER

    wait.until(is_up)
