"""Each number of the page Failures leads to a list of that many jobs."""

import re
from datetime import timedelta
from html import unescape

import httpx
from sqlalchemy import Connection, update

from pilotage.service.services import utc_now
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.schema.tables import attempts
from tests.support.factories import stored_rows
from tests.support.service import Service

_ROW = re.compile(r'<th scope="row" class="number"><a href="(/jobs\?[^"]*)">(\d+)</a></th>')
_JOB = re.compile(r'id="job-(\d+)"')


def _fail(conn: Connection, exit_code: int | None, *, hours_ago: int, minor: str = "Errors") -> int:
    at = utc_now() - timedelta(hours=hours_ago)
    job_id = stored_rows.job_in(conn, at, JobStatus.FAILED, vo="cms", owner="ada")
    stored_rows.open_attempt(conn, job_id, at)
    conn.execute(update(attempts).where(attempts.c.job_id == job_id).values(exit_code=exit_code))
    stored_rows.force(conn, job_id, site="LCG.A.org", minor_status=minor, updated_at=at)
    return job_id


def _browser(service: Service) -> httpx.Client:
    browser = service.client()
    name = f"pilotage-{service.url.rpartition(':')[2]}"
    browser.cookies.set(name, service.token("user", vo="cms", user="ada"))
    return browser


def test_a_number_of_failures_leads_to_a_list_of_that_many(service: Service) -> None:
    with database.writing(service.engine) as conn:
        for exit_code in (1, 1, 1, 137, None, None):
            _fail(conn, exit_code, hours_ago=1)
        _fail(conn, 1, hours_ago=100)  # too long ago
        _fail(conn, 1, hours_ago=1, minor="Stalled")
    browser = _browser(service)
    rows = _ROW.findall(browser.get("/failures").raise_for_status().text)
    assert sorted(int(number) for _, number in rows) == [1, 1, 2, 3]
    for address, number in rows:
        jobs = _JOB.findall(browser.get(unescape(address)).raise_for_status().text)
        assert len(jobs) == int(number), address


def test_jobs_are_listed_sorted_and_counted_by_exit_code(service: Service) -> None:
    with database.writing(service.engine) as conn:
        ids = {code: _fail(conn, code, hours_ago=200, minor="Codes") for code in (7, 5, None)}
    user, codes = service.user(), {"minor_status": "Codes"}

    def listed(**wanted: object) -> list[tuple[int, int | None]]:
        found = user.get("/api/v1/jobs", params={**codes, **wanted}).raise_for_status().json()["jobs"]
        return sorted((job["job_id"], job["exit_code"]) for job in found)

    assert listed() == sorted((job_id, code) for code, job_id in ids.items())
    assert listed(exit_code="5,7") == sorted([(ids[5], 5), (ids[7], 7)])
    assert listed(exit_code="4-6,7") == listed(exit_code="5,7")
    assert listed(exit_code="none") == [(ids[None], None)]
    refused = user.get("/api/v1/jobs", params={"exit_code": "five"})
    assert (refused.status_code, "exit_code" in refused.text) == (400, True)
    counted = user.get("/api/v1/jobs/summary", params={**codes, "by": "exit_code"}).json()["summary"]
    assert {row["exit_code"]: row["count"] for row in counted} == {5: 1, 7: 1, None: 1}
    page = _browser(service).get("/jobs", params={**codes, "sort": "exit_code", "columns": "exit_code"}).text
    assert _JOB.findall(page) == [str(ids[code]) for code in (5, 7, None)], "without a value last"


def test_a_change_has_no_exit_code_to_filter_by(service: Service) -> None:
    refused = service.user().get("/api/v1/jobs/changes", params={"exit_code": "1"})
    assert refused.status_code == 400
    assert "leave exit_code out" in refused.text
