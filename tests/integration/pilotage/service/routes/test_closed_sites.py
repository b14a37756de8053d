"""Sites that jobs name and that are closed: a warning while others are left; then it waits, or fails."""

from pathlib import Path

import httpx
from sqlalchemy import Engine

from tests.support.service import Service, running

TREE = """
Resources:
  Sites:
    LCG.A.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
    LCG.B.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
    LCG.C.org: {VO: [cms], Enabled: false, CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
Registry:
  VO: {cms: {}}
"""
INSISTS = "Operations: {cms: {JobScheduling: {AllowInvalidSites: false}}}"


def submit(user: httpx.Client, *sites: str, **more: object) -> tuple[str, list[str], str]:
    """Status, warnings and reason of a job for these sites."""
    job = {"Executable": "/bin/true", "CPUTime": 3600, "Site": [*sites], **more}
    answer = user.post("/api/v1/jobs", json={"jobs": [job]}).json()
    found = user.get(f"/api/v1/jobs/{answer['job_ids'][0]}").json()
    return found["status"], answer["warnings"], found["application_status"]


def ban(service: Service, site: str) -> None:
    admin = service.as_role("site_admin", site=site, user="eva")
    assert admin.post(f"/api/v1/sites/{site}/ban", json={"reason": "dead disks"}).is_success


def test_a_job_loses_its_closed_sites_with_a_warning_and_waits(engine: Engine, tmp_path: Path) -> None:
    with running(engine, tmp_path, TREE) as service:
        user = service.user()
        assert submit(user, "LCG.A.org", "LCG.B.org")[:2] == ("Waiting", [])
        ban(service, "LCG.A.org")
        status, [text], _ = submit(user, "LCG.A.org", "LCG.B.org")
        assert status == "Waiting"
        assert text.startswith("1 of the 2 sites of a job takes no jobs now: LCG.A.org is banned: dead disks")
        assert text.endswith("it may run at its other sites")
        status, [text], _ = submit(user, "LCG.A.org", "LCG.C.org")
        assert status == "Waiting"
        assert "LCG.C.org has no queue that is open to cms; it waits for one of them" in text
        assert submit(user, "LCG.A.org", JobType="Test")[1] == []


def test_a_job_without_an_open_site_fails_where_the_vo_insists(engine: Engine, tmp_path: Path) -> None:
    with running(engine, tmp_path, TREE + INSISTS) as service:
        user = service.user()
        ban(service, "LCG.A.org")
        status, _, reason = submit(user, "LCG.A.org", "LCG.C.org")
        assert (status, reason.split(":")[0]) == ("Failed", "all_sites_banned")
        assert submit(user, "LCG.A.org", "LCG.B.org")[0] == "Waiting"
        admin = service.as_role("site_admin", site="LCG.A.org", user="eva")
        assert admin.post("/api/v1/sites/LCG.A.org/allow").is_success
        assert submit(user, "LCG.A.org", "LCG.C.org")[0] == "Waiting"
