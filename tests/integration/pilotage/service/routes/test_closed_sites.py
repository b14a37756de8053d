"""Places that jobs name and that are closed: told first, by whom and why; then the job waits, or fails."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine

from requirements.errors import format_time
from tests.support.service import Service, running, utc_now

TREE = """
Resources:
  Sites:
    LCG.A.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
    LCG.B.org: {VO: [cms], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
    LCG.D.org: {VO: [dune], CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
    LCG.C.org: {VO: [cms], Enabled: false, CEs: {ce1: {Queues: {long: {CPUTime: 100000}}}}}
Registry:
  VO: {cms: {}, dune: {}}
"""
INSISTS = "Operations: {cms: {JobScheduling: {AllowInvalidSites: false}}}"


def submit(user: httpx.Client, *sites: str, **more: object) -> tuple[str, list[str], str]:
    """Status, warnings and reason of a job for these sites."""
    job = {"Executable": "/bin/true", "CPUTime": 3600, **({"Site": [*sites]} if sites else {}), **more}
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
        assert "; LCG.C.org is drained (Enabled: false), since " in text
        assert text.endswith("; it waits for one of them")
        status, [text], _ = submit(user, "LCG.A.org", "LCG.D.org")
        assert "LCG.D.org has no queue that is open to cms; it waits for one of them" in text
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


def test_a_document_of_either_form_meets_bans_of_the_vo_and_of_operators(
    engine: Engine, tmp_path: Path
) -> None:
    """What a job names or bans changes nothing of theirs; the VO's own ban is a value of its own."""
    of_vo = "LCG.B.org: {VO: [cms], VOs: {cms: {Enabled: false}}, "
    tree = TREE.replace("LCG.B.org: {VO: [cms], ", of_vo)
    cpu = {"architecture": {"name": "x86_64", "level": "x86-64-v1"}}
    document = {"executable": "x", "requirements": {"wall_time": 60, "cpu": cpu}}

    def submit_document(user: httpx.Client, **sites: list[str]) -> tuple[str, str, list[str]]:
        answer = user.post("/api/v1/jobs", json={"jobs": [document | sites]}).json()
        found = user.get(f"/api/v1/jobs/{answer['job_ids'][0]}").json()
        return found["status"], found["application_status"].split(":")[0], answer["warnings"]

    with running(engine, tmp_path, tree + INSISTS) as service:
        user = service.user()
        status, _, [text] = submit_document(user, sites=["LCG.A.org", "LCG.B.org"])
        assert status == "Waiting"
        assert text.startswith("1 of the 2 sites of a job takes no jobs now: LCG.B.org is drained (Enabled:")
        assert submit_document(user, banned_sites=["LCG.B.org"])[::2] == ("Waiting", [])
        ban(service, "LCG.A.org")
        failed = ("Failed", "all_sites_banned")
        assert submit_document(user, sites=["LCG.A.org", "LCG.B.org"])[:2] == failed
        assert submit_document(user, banned_sites=["LCG.D.org"])[:2] == failed
        assert submit_document(user, banned_sites=["LCG.A.org"])[:2] == failed


def explain(user: httpx.Client, job_id: int) -> dict[str, Any]:
    found: dict[str, Any] = user.get(f"/api/v1/jobs/{job_id}/explain").raise_for_status().json()
    return found


def test_the_time_to_wait_does_not_pass_while_a_jobs_sites_are_closed(engine: Engine, tmp_path: Path) -> None:
    limited = "Operations: {cms: {JobScheduling: {WaitingTTL: 7200}}}"
    with running(engine, tmp_path, TREE + limited) as service:
        user = service.user()
        job = {"Executable": "/bin/true", "CPUTime": 3600, "Site": "LCG.A.org"}
        [job_id] = user.post("/api/v1/jobs", json={"jobs": [job]}).json()["job_ids"]
        text = explain(user, job_id)["now"][-1]
        assert text.startswith("fails at ")
        assert text.endswith(" UTC if nothing fits until then (WaitingTTL, 7200 s)")
        ban(service, "LCG.A.org")
        assert explain(user, job_id)["now"][-1] == (
            "its time to wait (WaitingTTL, 7200 s) does not pass now: "
            "all queues that fit are closed by bans or downtimes"
        )


def test_a_drained_queue_that_a_job_names_comes_before_other_places(engine: Engine, tmp_path: Path) -> None:
    """In the answer to the submission, the headline, and the reasons; also if a section around it is off."""
    with running(engine, tmp_path, TREE) as service:
        user, eva = service.user(), service.as_role("site_admin", site="LCG.A.org", user="eva")
        queue = "LCG.A.org/ce1/long"
        body = {"message": "new disks"}
        eva.post(f"/api/v1/resources/queues/{queue}/drain", json=body).raise_for_status()
        drained = re.compile(
            rf"{queue} is drained \(Enabled: false\), since 20[-0-9]+ [0-9:]+ UTC by eva: new disks"
        )
        for job in ({"Site": ["LCG.A.org"]}, {"Site": ["LCG.A.org"], "GridCE": ["ce1"]}):
            answer = user.post("/api/v1/jobs", json={"jobs": [{"Executable": "/bin/true", **job}]}).json()
            [text] = answer["warnings"]
            why = text.removeprefix(f"job {answer['job_ids'][0]}: no queue is eligible: ")
            assert drained.match(why), text
            assert "; what would help: " in why
            found = explain(user, answer["job_ids"][0])
            assert drained.fullmatch(
                found["headline"].removeprefix("No queue fits that is switched on: ").removesuffix(".")
            )
            assert drained.fullmatch(found["now"][0])
            assert found["reasons"][0]["requirement"] == "Enabled"
        before = user.post(
            "/api/v1/explain", json={"jobs": [{"Executable": "x", "Site": "LCG.A.org"}]}
        ).json()
        assert drained.fullmatch(before["now"][0])
        _, [text], _ = submit(user, "LCG.C.org")
        assert text.split(": ", 2)[2].startswith("LCG.C.org is drained (Enabled: false), since ")
        assert "new disks" not in text


def test_a_temporary_drain_tells_its_end_and_no_reason_of_other_changes(
    engine: Engine, tmp_path: Path
) -> None:
    with running(engine, tmp_path, TREE) as service:
        values = {f"Resources/Sites/LCG.{site}.org/Enabled": False for site in "AB"}
        body = {"set": values, "message": "two at once", "revert_after": 3600}
        service.operator().patch("/api/v1/config", json=body, headers={"If-Match": "1"}).raise_for_status()
        _, [text], _ = submit(service.user(), "LCG.A.org")
        assert re.search(
            r"LCG\.A\.org is drained \(Enabled: false\) until .* UTC, since .* UTC by [a-z:]+; ", text
        )
        assert "two at once" not in text
        assert "LCG.B.org" not in text


def test_a_downtime_of_a_ce_that_a_job_names_is_told(engine: Engine, tmp_path: Path) -> None:
    """Of its site as well, whose only CE it is; not of a test, nor of a job that may run elsewhere unseen."""
    with running(engine, tmp_path, TREE) as service:
        user, eva = service.user(), service.as_role("site_admin", site="LCG.A.org", user="eva")
        now = utc_now()
        times = {"begins": now.isoformat(), "ends": (now + timedelta(hours=2)).isoformat()}
        downtime = {"place": "LCG.A.org/ce1", "reason": "new switches", **times}
        eva.post("/api/v1/downtimes", json=downtime).raise_for_status()
        until = format_time(now + timedelta(hours=2))
        why = f"LCG.A.org/ce1 is closed by a downtime until {until}: new switches (by eva)"
        _, [text], _ = submit(user, "LCG.A.org")
        assert text.startswith(f"the only site of a job takes no jobs now: {why}")
        _, [text], _ = submit(user, "lcg.a.org", GridCE="CE1")
        assert text.startswith(f"the only CE of a job takes no jobs now: {why}")
        _, [text], _ = submit(user, GridCE="ce1")
        assert text.startswith(f"2 of the 3 CEs of a job take no jobs now: {why}")
        assert "LCG.C.org is drained" in text
        assert "LCG.D.org" not in text, "of another VO"
        assert text.endswith("it may run at its other CEs")
        assert submit(user, "LCG.A.org", JobType="Test")[1] == []
        assert submit(user)[1] == []
