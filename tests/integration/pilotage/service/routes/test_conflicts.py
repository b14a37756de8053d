"""Deadlocks and serialization failures of the database reach nobody: what failed is done again."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, text

from agents import leader, lost_jobs
from pilotage.service.services import utc_now
from taskqueue.db import database
from tests.support import wait
from tests.support.factories import archives, queued_jobs, stored_rows
from tests.support.service import CONFIG, Service, running

QUEUE = "LCG.A.org/ce1/long"
PLACE = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}
#: Every other change of a row of these tables fails, by its server's own error.
CONFLICTS = """
CREATE SEQUENCE changes_of_attempts;
CREATE SEQUENCE changes_of_blobs;
CREATE FUNCTION fail_every_other() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('changes_of_' || TG_TABLE_NAME) % 2 = 1 THEN
        RAISE EXCEPTION 'a conflict, on purpose' USING ERRCODE = '{code}';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER conflict BEFORE UPDATE ON attempts FOR EACH ROW EXECUTE FUNCTION fail_every_other();
CREATE TRIGGER conflict BEFORE INSERT ON blobs FOR EACH ROW EXECUTE FUNCTION fail_every_other();
"""


@pytest.fixture
def engine(postgresql: Engine) -> Engine:
    return postgresql


@pytest.fixture(params=["40001", "40P01"])
def service(engine: Engine, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    with running(engine, tmp_path, CONFIG) as service:
        with database.writing(engine) as conn:
            conn.execute(text(CONFLICTS.format(code=request.param)))
        yield service


def run(service: Service) -> tuple[httpx.Client, int, str]:
    """A pilot with a job that was just given to it."""
    answer = service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]})
    pilot = service.pilot(QUEUE)
    [match] = pilot.post("/api/v1/matcher/requestJob", json=PLACE).json()["matches"]
    assert [match["job_id"]] == answer.json()["job_ids"]
    return pilot, match["job_id"], f"/api/v1/leases/{match['lease']}"


def status(service: Service, job_id: int) -> str:
    return str(service.operator().get(f"/api/v1/jobs/{job_id}").json()["status"])


def test_reports_and_archives_are_stored(service: Service) -> None:
    packed = archives.tar({"x": b""})
    assert service.user().post("/api/v1/sandboxes", content=packed).is_success
    pilot, job_id, lease = run(service)
    assert pilot.post(f"{lease}/start").is_success
    assert pilot.post(f"{lease}/heartbeat").is_success
    assert pilot.put(f"{lease}/output", content=packed).is_success
    answer = pilot.post(f"{lease}/finish", json={"status": "Done", "exit_code": 0})
    assert answer.is_success, answer.text
    assert status(service, job_id) == "Done"
    assert service.user().get(f"/api/v1/jobs/{job_id}/output").content == packed


def test_a_job_is_given_back(service: Service) -> None:
    pilot, job_id, lease = run(service)
    assert pilot.post(f"{lease}/release").is_success
    assert status(service, job_id) == "Waiting"


def test_a_job_that_could_not_be_delivered_is_released(service: Service) -> None:
    _, job_id, lease = run(service)
    request = queued_jobs.request()
    service.parts.claimer.give_back(request, (lease.rpartition("/")[2],))
    wait.until(lambda: status(service, job_id) == "Waiting")


def test_agents_go_on(service: Service) -> None:
    _, job_id, _ = run(service)
    later = utc_now() + timedelta(minutes=10)
    stored_rows.service_up(service.engine, later - timedelta(minutes=9), later)

    def cycle(now: datetime) -> object:
        return lost_jobs.cycle(service.engine, service.parts.live.current, now=now, holder="me")

    assert leader.run_once(cycle, name="lost-jobs", clock=lambda: later)
    assert status(service, job_id) == "Waiting"
