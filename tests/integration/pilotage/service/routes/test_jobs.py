import json
import logging
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, select, update

from cs_config.cache import CountCache
from cs_config.options import bounds
from pilotage.client.api import ServiceClient
from pilotage.fabric.pilot.payload import work_area
from pilotage.fabric.pilot.payload.description import UnfitDescription
from pilotage.service.queries import explanations
from pilotage.service.queries import jobs as queries_jobs
from requirements.assignments import parse_assignments
from taskqueue.db import database
from taskqueue.jobs import control
from taskqueue.jobs.control import ControlVerb
from taskqueue.schema.tables import blobs, descriptions, job_dependencies, jobs
from tests.support.service import CONFIG, Service

JOB = {"Executable": "/bin/true", "Requirements": {"Memory": 2000}}
STUCK = {"Executable": "/bin/true", "Requirements": {"Memory": 64000, "CPUModel": "intel xeon"}}


def submit(client, *jobs, **headers) -> list[int]:
    answer = client.post("/api/v1/jobs", json={"jobs": list(jobs or [JOB])}, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["job_ids"]


def error(answer) -> dict:
    body = answer.json()["error"]
    assert set(body) == {"code", "message", "details"}
    return body


def test_a_submitted_job_is_shown_with_its_description_pool_and_log(service: Service):
    user = service.user()
    [job_id] = submit(user)
    job = user.get(f"/api/v1/jobs/{job_id}").json()
    assert job["job_id"] == job_id
    assert (job["vo"], job["owner"], job["owner_group"]) == ("cms", "ada", "cms_user")
    assert job["status"] == "Waiting"
    assert len(job["submit_pool"]) == 64
    assert job["description"]["Executable"] == "/bin/true"
    assert job["submitted_at"].endswith("Z")
    assert job["attempt"] is None
    log = user.get(f"/api/v1/jobs/{job_id}/log").json()["log"]
    assert [entry["to"] for entry in log] == ["Received", "Waiting"]
    assert log[0]["from"] is None
    assert {"at", "from", "to", "minor", "application", "source", "epoch"} == set(log[0])


def test_the_log_of_a_job_comes_in_pages(service: Service):
    user = service.user()
    [job_id] = submit(user)
    user.post(f"/api/v1/jobs/{job_id}/kill")
    whole = user.get(f"/api/v1/jobs/{job_id}/log").json()
    assert whole["next"] is None
    read, after = [], 0
    while after is not None:
        page = user.get(f"/api/v1/jobs/{job_id}/log?limit=2&after={after}").json()
        assert len(page["log"]) <= 2
        read, after = read + page["log"], page["next"]
    assert read == whole["log"]
    assert len(read) > 2


def test_a_jdl_makes_jobs_as_json_does(service: Service):
    user = service.user()
    jdl = 'Executable = "/bin/echo"; Arguments = "%s"; Parameters = {"a", "b", "c"};'
    answer = user.post("/api/v1/jobs", json={"jdl": jdl})
    assert answer.status_code == 201
    ids = answer.json()["job_ids"]
    assert len(ids) == 3
    assert user.get(f"/api/v1/jobs/{ids[1]}").json()["description"]["Arguments"] == "b"
    answer = user.post("/api/v1/jobs", json={"jdls": [jdl, jdl]})
    assert len(answer.json()["job_ids"]) == 6


def test_the_same_idempotency_key_gives_the_same_ids_and_another_body_409(service: Service):
    user = service.user()
    key = {"Idempotency-Key": "k1"}
    first = submit(user, JOB, JOB, **key)
    assert submit(user, JOB, JOB, **key) == first
    answer = user.post("/api/v1/jobs", json={"jobs": [JOB]}, headers=key)
    assert answer.status_code == 409
    assert error(answer)["code"] == "idempotency_conflict"
    assert submit(service.user("bob"), JOB, JOB, **key) != first


def test_one_bad_job_refuses_the_whole_and_names_index_and_field(service: Service):
    user = service.user()
    bad = {"Executable": "/bin/true", "Requirements": {"Memory": "lots"}, "CPUTimee": 5}
    answer = user.post("/api/v1/jobs", json={"jobs": [JOB, bad]})
    assert answer.status_code == 400
    problems = error(answer)["details"]["problems"]
    assert {"jobs[1]/Requirements/Memory", "jobs[1]/CPUTimee"} <= {each["path"] for each in problems}
    assert any(each.get("suggestion") == "CPUTime" for each in problems)
    assert user.get("/api/v1/jobs").json()["jobs"] == []


WRONG_BODIES = [
    {},
    {"jdl": "x", "jobs": [JOB]},
    {"jobs": []},
    {"jobs": [JOB] * 1001},
    {"job": JOB},
    {"vo": None},
    [],
    5,
    "x",
    None,
]


def test_a_submission_that_is_none_is_400(service: Service):
    user = service.user()
    for body in WRONG_BODIES:
        answer = user.post("/api/v1/jobs", json=body)
        assert answer.status_code == 400, body
        assert error(answer)["details"]["problems"]


def test_a_bulk_of_a_thousand_is_stored_whole(service: Service):
    user = service.user()
    assert len(submit(user, *[JOB] * 1000)) == 1000
    assert user.get("/api/v1/jobs/summary").json()["summary"] == [{"status": "Waiting", "count": 1000}]


def test_users_see_their_own_jobs_admins_those_of_the_vo_operators_all(service: Service):
    ada, bob, dune = service.user(), service.user("bob"), service.user(vo="dune")
    [of_ada], [of_bob], [of_dune] = submit(ada), submit(bob), submit(dune)
    admin, operator = service.as_role("vo_admin", vo="cms", user="eve"), service.operator()
    seen = {
        who: {job["job_id"] for job in client.get("/api/v1/jobs").json()["jobs"]}
        for who, client in {"ada": ada, "dune": dune, "admin": admin, "operator": operator}.items()
    }
    assert seen == {
        "ada": {of_ada},
        "dune": {of_dune},
        "admin": {of_ada, of_bob},
        "operator": {of_ada, of_bob, of_dune},
    }
    assert ada.get("/api/v1/jobs?vo=dune").json()["jobs"] == []
    assert ada.get("/api/v1/jobs?owner=bob").json()["jobs"] == []
    assert admin.get("/api/v1/jobs?owner=bob").json()["jobs"][0]["job_id"] == of_bob
    assert len(operator.get("/api/v1/jobs?vo=dune").json()["jobs"]) == 1


def test_jobs_of_another_vo_look_exactly_like_no_jobs(service: Service):
    [hidden] = submit(service.user(vo="dune"))
    user = service.user()
    for path in ("", "/log", "/output", "/explain", "/kill", "/reschedule"):
        call = user.post if path in ("/kill", "/reschedule") else user.get
        theirs, none = call(f"/api/v1/jobs/{hidden}{path}"), call(f"/api/v1/jobs/{hidden + 5000}{path}")
        assert theirs.status_code == none.status_code == 404
        assert theirs.text.replace(str(hidden), "N") == none.text.replace(str(hidden + 5000), "N")


def test_lists_are_sorted_by_a_field_page_by_page(service: Service):
    user = service.user()
    names = ["b", "c", "a", "c"]
    ids = submit(user, *({**JOB, "JobName": name} for name in names))

    def read(sort: str) -> list[int]:
        read, after = [], None
        while True:
            given = {"sort": sort, "limit": 3, **({} if after is None else {"after": after})}
            page = user.get("/api/v1/jobs", params=given).json()
            read += [job["job_id"] for job in page["jobs"]]
            if (after := page["next"]) is None:
                return read

    assert read("job_name") == [ids[2], ids[0], ids[3], ids[1]]
    assert read("-job_name") == [ids[3], ids[1], ids[0], ids[2]]
    assert read("job_id") == ids
    assert read("-job_id") == ids[::-1]
    wrong = user.get("/api/v1/jobs", params={"sort": "job_nam"})
    assert wrong.status_code == 400
    assert "did you mean job_name" in error(wrong)["message"]


def test_a_full_page_that_is_the_last_one_says_so(service: Service):
    user = service.user()
    submit(user, *[JOB] * 3)
    assert user.get("/api/v1/jobs", params={"limit": 3}).json()["next"] is None
    assert user.get("/api/v1/jobs", params={"limit": 2}).json()["next"] is not None


def test_jobs_are_found_by_ids_status_and_pool(service: Service):
    user = service.user()
    first, second = submit(user, JOB, STUCK)
    pool = user.get(f"/api/v1/jobs/{first}").json()["submit_pool"]

    def ids(**params):
        return [job["job_id"] for job in user.get("/api/v1/jobs", params=params).json()["jobs"]]

    assert ids(id=f"{first},99999") == [first]
    assert ids(status="Waiting,Running") == [second, first]
    assert ids(status="Done") == []
    assert ids(pool=pool) == [first]
    assert ids(minor_status="No eligible queue") == [second]


WRONG_QUERIES = [
    "limit=0",
    "limit=-1",
    "limit=1001",
    "limit=99999999999999999999999",
    "limit=x",
    "after=-3",
    "after=99999999999999999999",
    "status=Sleeping",
    "id=abc",
    "id=99999999999999999999",
    "id=-1",
    "nonsense=1",
    "owner=a%00b",
    "vo=%00",
    "a%00=1",
]


def test_wrong_filters_are_400(service: Service):
    user = service.user()
    for query in WRONG_QUERIES:
        answer = user.get(f"/api/v1/jobs?{query}")
        assert answer.status_code == 400, (query, answer.text)
        assert error(answer)["code"] == "invalid_request"


def test_a_job_is_killed_once_and_stays_killed(service: Service):
    user = service.user()
    [job_id] = submit(user)
    answer = user.post(f"/api/v1/jobs/{job_id}/kill")
    assert answer.json() == {"job_id": job_id, "status": "Killed"}
    assert user.get(f"/api/v1/jobs/{job_id}").json()["status"] == "Killed"
    assert user.post(f"/api/v1/jobs/{job_id}/kill").status_code == 200
    answer = user.post(f"/api/v1/jobs/{job_id}/reschedule")
    assert answer.status_code == 409
    assert error(answer)["details"]["current"] == "Killed"


@pytest.mark.parametrize("change", ["reschedule", "reset"])
def test_a_job_is_refused_for_the_same_reason_alone_and_among_others(service: Service, change: str):
    user = service.user()
    [job_id] = submit(user)
    user.post(f"/api/v1/jobs/{job_id}/kill").raise_for_status()
    alone = user.post(f"/api/v1/jobs/{job_id}/{change}")
    [refused] = user.post(f"/api/v1/jobs/{change}", json={"ids": [job_id]}).json()["refused"]
    assert (alone.status_code, error(alone)["code"]) == (409, "illegal_transition")
    assert refused == {"job_id": job_id, "reason": error(alone)["message"]}


def test_a_refusal_names_the_status_at_the_time_of_the_change(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    user = service.user()
    [job_id] = submit(user)
    change = queries_jobs._change_of_vo

    def kill_then_change(parts: Any, vo: str, ids: Any, wanted: ControlVerb, source: str) -> Any:
        if wanted is control.RESCHEDULE:
            user.post(f"/api/v1/jobs/{job_id}/kill").raise_for_status()
        return change(parts, vo, ids, wanted, source)

    monkeypatch.setattr(queries_jobs, "_change_of_vo", kill_then_change)
    [refused] = user.post("/api/v1/jobs/reschedule", json={"ids": [job_id]}).json()["refused"]
    assert refused["reason"] == f"job {job_id} is Killed; it cannot become Rescheduled"


def test_many_jobs_are_killed_by_filter_but_never_those_of_others(service: Service):
    ada, bob = service.user(), service.user("bob")
    mine, theirs = submit(ada, JOB, JOB, JOB), submit(bob)
    ada.post(f"/api/v1/jobs/{mine[0]}/kill")
    answer = ada.post("/api/v1/jobs/kill", json={"status": "Waiting"}).json()
    assert answer == {"job_ids": mine[1:], "refused": [], "next": None, "unknown": [], "warnings": []}
    answer = ada.post("/api/v1/jobs/kill", json={"ids": [*mine, *theirs]}).json()
    assert answer["job_ids"] == []
    refused = {each["job_id"]: each["reason"] for each in answer["refused"]}
    assert refused[theirs[0]] == f"job {theirs[0]} does not exist"
    assert bob.get(f"/api/v1/jobs/{theirs[0]}").json()["status"] == "Waiting"


@pytest.mark.parametrize("change", ["kill", "reschedule", "reset", "delete"])
def test_one_request_changes_a_bounded_number_of_jobs_and_the_next_goes_on_there(
    service: Service, monkeypatch: pytest.MonkeyPatch, change: str
):
    monkeypatch.setattr(queries_jobs, "_BATCH", 2)
    monkeypatch.setattr(queries_jobs, "_BATCHES", 2)
    user = service.user()
    ids = submit(user, *[JOB] * 9)
    body: dict[str, object] = {"status": "Waiting"}
    changed: list[list[int]] = []
    while not changed or body["after"] is not None:
        answer = user.post(f"/api/v1/jobs/{change}", json=body).json()
        changed.append(answer["job_ids"])
        body["after"] = answer["next"]
    assert changed == [ids[5:], ids[1:5], ids[:1]]
    assert user.post(f"/api/v1/jobs/{change}", json={"after": 3}).status_code == 400


def test_a_filter_that_names_nothing_kills_nothing(service: Service):
    user = service.user()
    submit(user)
    for body in ({}, {"vo": None}, {"status": []}, {"ids": []}):
        assert user.post("/api/v1/jobs/kill", json=body).status_code == 400, body
    assert user.post("/api/v1/jobs/kill", json={"stat": "Waiting"}).status_code == 400


def test_many_jobs_of_several_vos_are_rescheduled_by_an_operator(service: Service):
    ids = sorted(submit(service.user()) + submit(service.user(vo="dune")))
    answer = service.operator().post("/api/v1/jobs/reschedule", json={"status": "Waiting"}).json()
    assert answer["job_ids"] == ids


def test_waiting_jobs_of_an_owner_are_limited(service: Service, config_text: str):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {WaitingJobsPerOwner: 2}"))
    user = service.user()
    submit(user, JOB, JOB)
    answer = user.post("/api/v1/jobs", json={"jobs": [JOB]})
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0
    assert error(answer)["code"] == "quota_exceeded"


def test_a_job_that_cannot_run_says_why(service: Service):
    user = service.user()
    [job_id] = submit(user, STUCK)
    assert user.get(f"/api/v1/jobs/{job_id}").json()["minor_status"] == "No eligible queue"
    found = user.get(f"/api/v1/jobs/{job_id}/explain").json()
    assert (found["job_id"], found["status"]) == (job_id, "Waiting")
    assert (found["eligible_queues"], found["candidate_queues"]) == (0, 3)
    memory, model, cpu_time = found["reasons"]
    assert (cpu_time["requirement"], cpu_time["example"]["has"]) == ("CPUTime", "3600")
    assert memory["requirement"] == "Memory"
    assert (memory["excluded"], memory["only_this"]) == (3, 1)
    assert memory["example"] == {"queue": "LCG.B.org/ce2/all", "has": "16000"}
    assert (model["requirement"], model["excluded"], model["only_this"]) == ("CPUModel", 2, 0)
    assert model["example"]["has"] is None
    assert found["changes"][0]["gains"] > 0
    assert "no eligible queue" in found["now"][0]


def test_counts_by_two_columns_are_of_visible_jobs_only(service: Service):
    submit(service.user(vo="dune"))
    user = service.user()
    submit(user, JOB, STUCK)
    rows = user.get("/api/v1/jobs/summary?by=status,vo").json()["summary"]
    assert rows == [{"status": "Waiting", "vo": "cms", "count": 2}]
    answer = user.get("/api/v1/jobs/summary?by=colour")
    assert answer.status_code == 400


def test_a_large_count_since_an_age_is_cached(service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CountCache, "WORTH", 1)
    monkeypatch.setattr(CountCache, "ROWS_A_SECOND", 0.001)
    monkeypatch.setattr(CountCache, "LONGEST", timedelta(days=1))
    user = service.user()
    submit(user)
    counted = [
        user.get(f"/api/v1/jobs/summary?submitted_since={since}").json()["summary"][0]["count"]
        for since in ("24h", "24h", "25h")
        if submit(user)
    ]
    assert counted == [2, 2, 4]


def test_a_site_admin_counts_the_jobs_at_his_site_by_vo_but_not_by_whose_they_are(service: Service):
    for vo in ("cms", "dune"):
        submit(service.user(vo=vo))
    pilot = service.pilot("LCG.A.org/ce1/long", "dune")
    offer = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 10**5}
    assert pilot.post("/api/v1/matcher/requestJob", json=offer).json()["matches"]
    at_a = service.as_role("site_admin", site="LCG.A.org")
    rows = at_a.get("/api/v1/jobs/summary?by=vo,status").json()["summary"]
    assert rows == [{"vo": "dune", "status": "Matched", "count": 1}]
    for query in ("by=owner", "by=status&job_name=x", "by=status&owner=ada", "by=status&ids=1"):
        answer = at_a.get(f"/api/v1/jobs/summary?{query}")
        assert (answer.status_code, "not by" in error(answer)["message"]) == (403, True)
    at_b = service.as_role("site_admin", site="LCG.B.org")
    assert at_b.get("/api/v1/jobs/summary?by=vo,status").json()["summary"] == []
    assert at_a.get("/api/v1/jobs").status_code == 403


def test_the_log_names_who_changed_a_job_and_the_audit_log_who_changed_anothers(
    service: Service, caplog: pytest.LogCaptureFixture
):
    user, admin = service.user(), service.as_role("vo_admin", vo="cms", user="eve")
    own, others = submit(user, JOB, JOB)

    def source(job_id: int) -> str:
        return user.get(f"/api/v1/jobs/{job_id}/log").json()["log"][-1]["source"]

    with caplog.at_level(logging.INFO, "pilotage.audit"):
        user.post(f"/api/v1/jobs/{own}/kill").raise_for_status()
        admin.post(f"/api/v1/jobs/{others}/kill").raise_for_status()
    audited = [each.getMessage() for each in caplog.records if each.name == "pilotage.audit"]
    [line] = map(json.loads, audited)
    assert (source(own), source(others)) == ("JobManager, ada", "JobManager, eve")
    assert (line["job_id"], line["owner"], line["action"]) == (others, "ada", "jobs Killed")


def test_a_description_of_megabytes_is_refused_before_it_is_read(service: Service):
    answer = service.user().post("/api/v1/jobs", json={"jobs": [{**JOB, "Arguments": "x" * 10_000_000}, JOB]})
    assert answer.status_code == 413
    assert "bytes" in error(answer)["message"]


def test_a_submission_warns_of_jobs_without_a_queue_and_names_the_smallest_change(service: Service):
    user = service.user()
    for _ in range(2):  # of a new pool and of a known one
        answer = user.post("/api/v1/jobs", json={"jobs": [JOB, STUCK, STUCK]}).json()
        [warning] = answer["warnings"]
        reason = "no queue is eligible: 3 of 3 fail Memory, at least 64000; what would help: "
        assert warning.startswith(f"job {answer['job_ids'][1]} and 1 other: {reason}")
        assert "lower Memory from 64000 to" in warning


def test_what_would_help_follows_bans_under_the_same_configuration(service: Service):
    def warn() -> str:
        [warning] = service.user().post("/api/v1/jobs", json={"jobs": [STUCK]}).json()["warnings"]
        return str(warning).partition(": ")[2]

    calm = warn()
    assert "lower Memory from 64000 to 16000" in calm
    service.operator().post("/api/v1/sites/LCG.B.org/ban", json={"reason": "hot"}).raise_for_status()
    assert "lower Memory from 64000 to 4000" in warn()
    service.operator().post("/api/v1/sites/LCG.B.org/allow").raise_for_status()
    assert warn() == calm


def test_a_submission_warns_of_output_outside_the_work_directory_as_pilots_judge_it(
    service: Service, tmp_path: Path
):
    def warnings(**stated: object) -> list[str]:
        answer = service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x", **stated}] * 2})
        assert answer.status_code == 201, answer.text
        return [each for each in answer.json()["warnings"] if "work directory" in each]

    for name in ("/etc/o", "/dev/null", "../o", "a/../../o", "a/../o", "."):
        [warning] = warnings(StdOutput=name)
        assert warning.startswith(
            f"StdOutput: {name!r} is no name below the work directory of the job: pilots"
        )
        with pytest.raises(UnfitDescription, match="StdOutput"):
            work_area.make_standard_files(tmp_path, output=name, error="std.err")
    for name in ("o", "out/o", "./o", "..o", "o_%j.txt"):
        assert warnings(StdOutput=name, StdError=name, OutputSandbox=[name]) == []
        for descriptor in work_area.make_standard_files(tmp_path, output=name, error="std.err").values():
            os.close(descriptor)
    assert warnings() == []
    [error, *outputs] = warnings(StdError="/tmp/e", OutputSandbox=["/tmp/r.root", "r.root", "../x"])
    assert error.startswith("StdError: '/tmp/e'")
    assert [each.split(" ")[1] for each in outputs] == ["'/tmp/r.root'", "'../x'"]
    assert all(each.endswith("it is never sent back") for each in outputs)


def test_texts_of_the_same_form_are_warned_of_their_own_output_only(service: Service):
    def warnings(output: str) -> list[str]:
        text = f'Executable = "x"; StdOutput = "{output}"; OutputSandbox = {{"{output}"}};'
        answer = service.user().post("/api/v1/jobs", json={"jdls": [f"[ {text} ]"] * 3})
        assert answer.status_code == 201, answer.text
        return [each.split(" ")[1] for each in answer.json()["warnings"] if "work directory" in each]

    assert [warnings(name) for name in ("a", "b", "/c", "d")] == [[], [], ["'/c'", "'/c'"], []]


#: Queues that state a platform: where none does, any may do.
EL9 = CONFIG.replace("    LCG.B.org:\n", "    LCG.B.org:\n      Platform: el9\n").replace(
    "    LCG.A.org:\n", "    LCG.A.org:\n      Platform: el9\n"
)
#: Conditions of a class beside its Requirements that no queue fulfils, with how they are told.
NOWHERE = {
    "a platform": ({"Platform": "sparc"}, "3 of 3 fail Platform, sparc"),
    "many cores": ({"NumberOfProcessors": 900}, "3 of 3 fail NumberOfProcessors, at least 900"),
    "an unknown CE": ({"GridCE": "ce9"}, "3 of 3 fail GridCE, ce9"),
    "no site": (
        {"BannedSites": ["LCG.A.org", "LCG.B.org"]},
        "3 of 3 fail BannedSites, none of LCG.A.org, LCG.B.org",
    ),
}


@pytest.mark.parametrize("what", NOWHERE)
def test_a_submission_warns_of_a_class_that_no_queue_fits(service: Service, what: str):
    service.configure(EL9)
    asked, why = NOWHERE[what]
    described = {"Executable": "/bin/true", **asked}
    user = service.user()
    for _ in range(2):  # computed, and known
        answer = user.post("/api/v1/jobs", json={"jobs": [{"Executable": "a"}, described, described]}).json()
        [warning] = answer["warnings"]
        first = answer["job_ids"][1]
        assert warning.startswith(f"job {first} and 1 other: no queue is eligible: {why}; what would help: ")
    copy = user.post(f"/api/v1/jobs/{first}/resubmit").json()
    assert copy["warnings"] == [warning.replace(f"job {first} and 1 other", f"job {copy['job_ids'][0]}")]
    copies = user.post("/api/v1/jobs/resubmit", json={"ids": [first, first + 1]}).json()
    assert copies["warnings"] == [warning.replace(f"job {first}", f"job {copies['job_ids'][0]}")]


def test_a_warning_of_a_class_that_no_queue_fits_is_short(service: Service):
    asked = {"BannedSites": ["LCG.A.org", "LCG.B.org", *(f"LCG.Site{number}.org" for number in range(500))]}
    [warning] = service.user().post("/api/v1/jobs", json={"jobs": [{**JOB, **asked}]}).json()["warnings"]
    assert "3 of 3 fail BannedSites, none of LCG.A.org, LCG.B.org, LCG.Site0.org" in warning
    assert "LCG.Site99.org (8418 characters); what would help: take LCG.A.org off" in warning
    assert len(warning) < 500


def test_jobs_that_wait_for_the_optimizers_are_warned_of_as_well(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bounds, "DECIDED_JOBS", 1)
    answer = service.user().post("/api/v1/jobs", json={"jobs": [JOB, STUCK, STUCK]}).json()
    [warning] = answer["warnings"]
    assert warning.startswith(f"job {answer['job_ids'][1]} and 1 other: no queue is eligible: ")


def test_no_more_warnings_of_classes_than_an_answer_may_have(service: Service):
    service.configure(EL9)
    described = [{"Executable": "a", "Platform": f"p{number}"} for number in range(30)]
    answer = service.user().post("/api/v1/jobs", json={"jobs": described}).json()
    assert [each.split(":")[0] for each in answer["warnings"]] == [
        f"job {job_id}" for job_id in answer["job_ids"][:3]
    ]


def test_a_configuration_with_a_queue_that_fits_ends_the_warnings(service: Service):
    service.configure(EL9)
    described = {"Executable": "a", "Platform": "sparc"}
    user = service.user()
    assert user.post("/api/v1/jobs", json={"jobs": [described]}).json()["warnings"]
    service.configure(EL9.replace("          all: {", "          all: {Platform: sparc, ", 1))
    assert user.post("/api/v1/jobs", json={"jobs": [described]}).json()["warnings"] == []


def test_an_edit_of_many_jobs_says_of_how_many_no_queue_is_eligible(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    service.configure(EL9)
    user = service.user()
    ids = submit(user, {**JOB, "Parameters": 3})
    for arguments in "abc":  # descriptions of their own
        ids += submit(user, {**JOB, "Arguments": arguments})
    values = {"ids": ids, "set": {"Platform": "sparc"}}
    why = "with these values no queue is eligible: 3 of 3 fail Platform, sparc"
    for further in ({"dry_run": True}, {}):
        [warning] = user.post("/api/v1/jobs/edit", json={**values, **further}).json()["warnings"]
        assert warning.startswith(f"job {ids[-1]} and 5 others: {why}")
    monkeypatch.setattr(explanations, "MOST_FORESEEN", 2)
    [warning] = user.post("/api/v1/jobs/edit", json={"ids": ids, "set": {"Platform": "vax"}}).json()[
        "warnings"
    ]
    assert warning.startswith(f"job {ids[-1]} and 1 or more others: ")


def test_a_submission_warns_of_versions_without_quotes(service: Service):
    user = service.user()

    def warnings(*jobs: str) -> list[str]:
        answer = user.post("/api/v1/jobs", json={"jdls": list(jobs)})
        assert answer.status_code == 201, answer.text
        return [each for each in answer.json()["warnings"] if "quotes" in each]

    wanted = "Requirements/{}: {} is a number, as which 9.10 is 9.1; write versions in quotes"
    by_yaml = "Executable: a\nRequirements: {{{}}}\n".format
    by_jdl = '[ Executable = "a"; Requirements = {}; ]'.format
    assert warnings(by_jdl('versionGE(other.Kernel, "5.10") && other.MaxRAM > 2000.5')) == []
    for written in ("OSVersion: 9.10", "OSVersion: [9.10, '9.4']"):
        assert warnings(by_yaml(written)) == [wanted.format("OSVersion", "9.10") + ': "9.10"']
    assert warnings(by_yaml("OSVersion: 9.4")) == [wanted.format("OSVersion", "9.4") + ': "9.4"']
    assert warnings(by_yaml("Factor: 9.12"), by_yaml("OSVersion: '9.10', MaxRAM: 2000")) == []
    assert warnings(by_jdl("other.OSVersion == 9.10")) == [wanted.format("OSVersion", "9.10") + ': "9.10"']
    # As the job that waits compares it.
    assert warnings(by_yaml("Kernel: 5.10")) == [wanted.format("Kernel", "5.10") + ': "5.10"']


def test_a_submission_warns_of_numbers_that_lose_zeros_under_names_that_nobody_declares(service: Service):
    declared = "    JobDescription:\n      Declared: {type: number}\n"
    service.configure(CONFIG.replace("    JobDescription:\n", declared, 1))
    user = service.user()
    told = '{} is read as the number {}; if it is a version, write "{}"'
    lost = (("5.10", "5.1"), ("1.20", "1.2"), ("3.0", "3"))
    forms = (
        '[ Executable = "a"; Requirements = [ MySoft = {} ]; ]',
        '[ Executable = "a"; Requirements = other.MySoft >= {}; ]',
        "Executable: a\nRequirements: {{MySoft: {}}}\n",
        "Executable: a\nRequirements:\n  MySoft: [{}, '7']\n",
        "Executable = a\nRequirements\n{{\n  MySoft = {}\n}}\n",
    )

    def warnings(text: str) -> list[str]:
        answer = user.post("/api/v1/jobs", json={"jdls": [text]})
        assert answer.status_code == 201, answer.text
        return [each for each in answer.json()["warnings"] if "version" in each]

    for form in forms:
        for written, read in lost:
            text = form.format(written)
            assert warnings(text) == [f"Requirements/MySoft: {told.format(written, read, written)}"], text
        for right in ('"5.10"', "5.12", "510", "5"):
            assert warnings(form.format(right)) == [], (form, right)
    for name in ("MaxRAM", "CPUNormalizationFactor", "Declared", "Load", "GlueHostBenchmarkSI00"):
        assert warnings(forms[0].format("9.10").replace("MySoft", name)) == [], name


def test_what_a_number_lost_is_neither_stored_nor_hashed(service: Service):
    user = service.user()
    jdl = '[ Executable = "a"; CPUTime = 600.0; Requirements = [ MySoft = {} ]; Rank = {}; Arguments = {}; ]'
    texts = [jdl.format(*[number] * 3) for number in ("5.10", "5.1")]
    ids = user.post("/api/v1/jobs", json={"jdls": texts}).raise_for_status().json()["job_ids"]
    one, other = (user.get(f"/api/v1/jobs/{job_id}").json() for job_id in ids)
    # Arguments are a text.
    assert [each["description"].pop("Arguments") for each in (one, other)] == ["5.10", "5.1"]
    assert one["description"] == other["description"]
    assert one["submit_pool"] == other["submit_pool"]


def test_numbers_of_json_stay_as_they_are_written_where_texts_stand(service: Service):
    """In a submission, an explanation, an edit, and a copy, which is made of what is stored."""
    user = service.user()

    def send(path: str, body: str) -> Any:
        head = {"Content-Type": "application/json"}
        return user.post(f"/api/v1{path}", content=body, headers=head).raise_for_status().json()

    def tell_tags(job_id: int) -> list[str]:
        return user.get(f"/api/v1/jobs/{job_id}").json()["description"]["Tags"]

    job = '{"Executable": "a", "Priority": 2.50, "Tags": [5.10, "7", 1e1]}'
    [job_id] = send("/jobs", f'{{"jobs": [{job}]}}')["job_ids"]
    assert tell_tags(job_id) == ["5.10", "7", "1e1"]
    assert "5.10" in str(send("/explain", f'{{"jobs": [{job}]}}'))
    send("/jobs/edit", f'{{"ids": [{job_id}], "set": {{"Tags": 5.20}}}}')
    assert tell_tags(job_id) == ["5.20"]
    [copy] = send("/jobs/resubmit", f'{{"ids": [{job_id}], "set": {{"JobName": 1.0}}}}')["job_ids"]
    assert (tell_tags(copy), user.get(f"/api/v1/jobs/{copy}").json()["job_name"]) == (["5.20"], "1.0")
    with ServiceClient(service.url, service.token("user", vo="cms", user="ada")) as client:
        for values in (parse_assignments(["Tags=5.30"]), {"Tags": "5.30"}):
            client.change_jobs("edit", {"ids": f"{job_id}", "set": values})
            assert tell_tags(job_id) == ["5.30"]
        made = client.resubmit_jobs([job_id], idempotency_key="k", values=parse_assignments(["Tags=[5.40]"]))
        assert tell_tags(made["job_ids"][0]) == ["5.40"]


def test_a_copy_of_a_job_has_its_own_id_where_the_job_has_its_id(service: Service):
    user = service.user()
    named = {**JOB, "JobName": "run_%j", "Arguments": "%j %s", "Parameters": ["a"]}
    [first] = user.post("/api/v1/jobs", json={"jobs": [named]}).json()["job_ids"]
    [copy] = user.post(f"/api/v1/jobs/{first}/resubmit").json()["job_ids"]
    for job_id in (first, copy):
        shown = user.get(f"/api/v1/jobs/{job_id}").json()
        described = shown["description"]
        assert (shown["job_name"], described["JobName"]) == (f"run_{job_id}", f"run_{job_id}")
        assert described["Arguments"] == f"{job_id} a"


def test_a_copy_of_a_job_has_its_description_sandbox_and_owner(service: Service):
    user = service.user()
    sandbox = user.post("/api/v1/sandboxes", content=b"files").json()["sandbox"]
    jobs = [{**JOB, "Arguments": "%(n)s", "Parameters.n": ["a", "b"]}]
    ids = user.post("/api/v1/jobs", json={"jobs": jobs, "sandbox": sandbox}).json()["job_ids"]
    answer = user.post(f"/api/v1/jobs/{ids[1]}/resubmit")
    assert answer.status_code == 201, answer.text
    [copy] = answer.json()["job_ids"]
    new, old = (user.get(f"/api/v1/jobs/{job_id}").json() for job_id in (copy, ids[1]))
    assert new["description"]["Arguments"] == old["description"]["Arguments"] == "b"
    assert new["description"] == old["description"]
    assert (new["vo"], new["owner"], new["status"]) == ("cms", "ada", "Waiting")
    [again] = service.operator().post(f"/api/v1/jobs/{copy}/resubmit").json()["job_ids"]
    assert user.get(f"/api/v1/jobs/{again}").json()["owner"] == "ada"
    assert service.user("bob").post(f"/api/v1/jobs/{copy}/resubmit").status_code == 404
    key = {"Idempotency-Key": "a lost answer"}
    repeated = [
        user.post(f"/api/v1/jobs/{old}/resubmit", headers=key).json()["job_ids"]
        for old in (copy, copy, again)
    ]
    assert repeated[0] == repeated[1] != repeated[2]


def test_many_jobs_are_copied_by_one_request_each_with_its_sandbox(service: Service):
    user = service.user()
    sandbox = user.post("/api/v1/sandboxes", content=b"files").json()["sandbox"]
    jobs = {"jobs": [{**JOB, "Arguments": "%(n)s", "Parameters.n": ["a", "b"]}]}
    first, second = user.post("/api/v1/jobs", json={**jobs, "sandbox": sandbox}).json()["job_ids"]
    [third] = submit(user)
    [theirs] = submit(service.user("bob"))
    body, key = {"ids": [third, second, theirs, first, 4711]}, {"Idempotency-Key": "k"}
    answer = user.post("/api/v1/jobs/resubmit", json=body, headers=key)
    assert answer.status_code == 201, answer.text
    told = answer.json()
    old, new = (
        [user.get(f"/api/v1/jobs/{job_id}").json()["description"] for job_id in ids]
        for ids in ((third, second, first), told["job_ids"])
    )
    assert old == new, "in the order of their ids"
    assert {each["job_id"]: each["reason"] for each in told["refused"]} == {
        theirs: f"job {theirs} does not exist",
        4711: "job 4711 does not exist",
    }
    again = user.post("/api/v1/jobs/resubmit", json=body, headers=key).json()
    assert again["job_ids"] == told["job_ids"]
    assert user.post("/api/v1/jobs/resubmit", json={"ids": []}).status_code == 400
    assert user.post("/api/v1/jobs/resubmit", json={"ids": [4711]}).json()["job_ids"] == []


def test_jobs_of_others_are_refused_each_and_do_not_keep_own_ones_from_being_copied(service: Service):
    admin = service.as_role("vo_admin", vo="cms", user="eve")
    [own], [theirs] = submit(admin), submit(service.user("bob"))

    told = admin.post("/api/v1/jobs/resubmit", json={"ids": [theirs, own]})

    assert told.status_code == 201, told.text
    assert len(told.json()["job_ids"]) == 1
    [refused] = told.json()["refused"]
    reason = "you may not submit for others, only an operator may (Owner: 'bob', yours is 'eve')"
    assert refused == {"job_id": theirs, "reason": reason}
    assert admin.post("/api/v1/jobs/resubmit", json={"ids": [theirs]}).status_code == 403


def test_an_invalid_description_keeps_no_others_from_being_copied_and_reasons_name_their_jobs(
    service: Service,
):
    user = service.user()
    first, invalid, third = (submit(user)[0] for _ in range(3))
    with database.writing(service.engine) as conn:
        written = select(jobs.c.description_id).where(jobs.c.job_id == invalid).scalar_subquery()
        broken = {**JOB, "Requirements": {"Memory": "much"}}
        conn.execute(
            update(descriptions)
            .where(descriptions.c.description_id == written)
            .values(body=json.dumps(broken))
        )
    body, key = {"ids": [invalid, first, third]}, {"Idempotency-Key": "k"}

    told = user.post("/api/v1/jobs/resubmit", json=body, headers=key)

    assert told.status_code == 201, told.text
    copies = told.json()["job_ids"]
    assert len(copies) == 2
    [refused] = told.json()["refused"]
    assert refused["job_id"] == invalid
    assert refused["reason"].startswith("Requirements/Memory: ")
    again = user.post("/api/v1/jobs/resubmit", json=body, headers=key)
    assert again.json() == told.json(), "also without the invalid one it is the same request"
    other = user.post("/api/v1/jobs/resubmit", json={"ids": [first]}, headers={"Idempotency-Key": "l"})
    assert other.json()["job_ids"] not in ([each] for each in copies)
    alone = user.post("/api/v1/jobs/resubmit", json={"ids": [invalid, 4711]})
    assert alone.status_code == 400
    assert error(alone)["message"].startswith(f"job {invalid}: Requirements/Memory: ")


def test_copies_whose_input_sandbox_is_gone_are_refused_each_without_places_in_a_submission(
    service: Service,
):
    user = service.user()
    sandbox = user.post("/api/v1/sandboxes", content=b"files").json()["sandbox"]
    ids = user.post("/api/v1/jobs", json={"jobs": [JOB, JOB], "sandbox": sandbox}).json()["job_ids"]
    [other] = submit(user)
    with database.writing(service.engine) as conn:
        conn.execute(delete(blobs))

    told = user.post("/api/v1/jobs/resubmit", json={"ids": [*ids, other]})

    assert told.status_code == 201, told.text
    reason = f"InputSandbox: {sandbox} is not stored for cms; send it to /sandboxes"
    assert told.json()["refused"] == [{"job_id": job_id, "reason": reason} for job_id in ids]


def test_jobs_are_filtered_by_the_time_of_submission(service: Service):
    user = service.user("tim")
    [job_id] = submit(user)
    at = user.get(f"/api/v1/jobs/{job_id}").json()["submitted_at"]
    found = [
        [each["job_id"] for each in user.get("/api/v1/jobs", params=wanted).json()["jobs"]]
        for wanted in (
            {"submitted_since": at},
            {"submitted_before": at},
            {"submitted_since": "2020-01-01"},
            {"submitted_since": "30m"},
            {"submitted_before": "1d"},
        )
    ]
    assert found == [[job_id], [], [job_id], [job_id], []]
    killed = user.post("/api/v1/jobs/kill", json={"submitted_since": "1h"})
    assert killed.json()["job_ids"] == [job_id]
    answer = user.get("/api/v1/jobs", params={"submitted_since": "yesterday"})
    assert answer.status_code == 400
    assert error(answer)["message"].startswith("submitted_since: 'yesterday' is not a time: ")


def test_the_bearer_of_a_token_is_shown(service: Service):
    answer = service.user().get("/api/v1/tokens/me").json()
    assert (answer["role"], answer["user"], answer["vos"], answer["group"]) == (
        "user",
        "ada",
        ["cms"],
        "cms_user",
    )


@pytest.mark.parametrize("path", ["jobs/kill", "matcher/requestJob"])
def test_a_body_that_is_no_json_by_its_type_is_refused_with_the_header_that_would_be_right(
    service: Service, path: str
):
    caller = service.user() if path.startswith("jobs") else service.pilot()
    answer = caller.post(f"/api/v1/{path}", content=b'{"ids": [5]}', headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400
    wanted = "body: is of the type 'text/plain', allowed is JSON: send Content-Type: application/json"
    assert error(answer)["message"] == wanted


def test_a_misspelt_status_is_answered_with_the_one_that_was_meant(service: Service):
    answer = service.user().get("/api/v1/jobs", params={"status": "Waitin"})
    assert answer.status_code == 400
    assert "did you mean Waiting?" in error(answer)["message"]


def test_a_bulk_reschedule_names_the_limit_that_a_job_has_reached(service: Service):
    ada = service.user(vo="dune")
    [job_id] = submit(ada)
    with database.writing(service.engine) as conn:
        conn.execute(update(jobs).where(jobs.c.job_id == job_id).values(reschedules=7))
    answer = ada.post("/api/v1/jobs/reschedule", json={"ids": str(job_id)}).json()
    [refused] = answer["refused"]
    assert refused["reason"] == f"job {job_id} was already rescheduled 7 times, the maximum"


def test_a_held_job_is_explained_and_waits_again_when_it_is_released(service: Service):
    user = service.user()
    [held, other] = submit(user, JOB, JOB)
    answer = user.post("/api/v1/jobs/hold", json={"ids": [held]}).json()
    assert (answer["job_ids"], answer["refused"]) == ([held], [])
    found = user.get(f"/api/v1/jobs/{held}").json()
    assert (found["status"], found["minor_status"]) == ("Checking", "Held")
    assert found["application_status"] == "by ada"
    now = user.get(f"/api/v1/jobs/{held}/explain").json()["now"]
    assert now[0].startswith("held by ada since 20")
    assert now[0].endswith(f"`pilotage job release {held}`")
    again = user.post(f"/api/v1/jobs/{held}/reschedule")
    assert (again.status_code, error(again)["code"]) == (409, "job_kept")
    assert f"pilotage job release {held}" in error(again)["message"]
    none = user.post(f"/api/v1/jobs/{other}/release")
    assert (none.status_code, error(none)["code"]) == (409, "not_held")
    assert user.post("/api/v1/jobs/release", json={"owner": "ada"}).json()["job_ids"] == [held]
    assert user.get(f"/api/v1/jobs/{held}").json()["status"] == "Waiting"


MEMORY = {**JOB, "Requirements": {"Memory": 2000}}


def _log(user: httpx.Client, job_id: int) -> list[tuple[str, str]]:
    """Minor and application status of each entry of the log."""
    log = user.get(f"/api/v1/jobs/{job_id}/log").json()["log"]
    return [(entry["minor"], entry["application"]) for entry in log]


def test_a_copy_may_differ_and_tells_which_job_it_repeats(service: Service):
    user = service.user()
    [job_id] = submit(user, MEMORY)
    body = {"ids": [job_id], "set": {"Memory": 1500, "CPUTime": 600}}
    [copy] = user.post("/api/v1/jobs/resubmit", json=body).json()["job_ids"]
    described = user.get(f"/api/v1/jobs/{copy}").json()["description"]
    assert (described["Requirements"], described["CPUTime"]) == ({"Memory": 1500}, 600)
    told = f"repeats job {job_id} with Memory 2000 → 1500, CPUTime none → 600"
    assert _log(user, copy)[0] == ("Job accepted", told)
    assert user.get(f"/api/v1/jobs/{job_id}").json()["description"]["Requirements"] == {"Memory": 2000}
    wrong = user.post("/api/v1/jobs/resubmit", json={"ids": [job_id], "set": {"CPUTime": "long"}})
    assert (wrong.status_code, "CPUTime" in error(wrong)["message"]) == (400, True)
    owner = user.post("/api/v1/jobs/resubmit", json={"ids": [job_id], "set": {"Owner": "eve"}})
    assert "a job keeps its owner" in error(owner)["message"]
    many = {"ids": [job_id], "set": {f"A{number}": 1 for number in range(101)}}
    assert [user.post(f"/api/v1/jobs/{verb}", json=many).status_code for verb in ("edit", "resubmit")] == [
        400,
        400,
    ]


def test_a_waiting_job_that_is_edited_moves_to_another_pool_and_tells_what_was_changed(service: Service):
    user = service.user()
    [job_id, other] = submit(user, MEMORY, MEMORY)
    before = user.get(f"/api/v1/jobs/{job_id}").json()
    done = user.post("/api/v1/jobs/edit", json={"ids": [job_id], "set": {"Memory": 1500, "Priority": 5}})
    assert done.json()["job_ids"] == [job_id]
    after = user.get(f"/api/v1/jobs/{job_id}").json()
    assert (after["status"], after["priority"]) == ("Waiting", 5)
    assert after["description"]["Requirements"] == {"Memory": 1500}
    assert after["submit_pool"] != before["submit_pool"]
    told = ("Edited", "Memory 2000 → 1500, Priority none → 5")
    assert told in _log(user, job_id)
    unchanged = user.get(f"/api/v1/jobs/{other}").json()
    assert unchanged["submit_pool"] == before["submit_pool"]
    assert unchanged["description"]["Requirements"] == {"Memory": 2000}
    again = user.post("/api/v1/jobs/edit", json={"ids": [job_id], "set": {"Memory": 1500}}).json()
    assert (again["job_ids"], again["refused"]) == ([job_id], [])
    assert _log(user, job_id).count(told) == 1


def test_an_edit_is_checked_as_a_submission_and_refused_for_jobs_that_have_ended(service: Service):
    user = service.user()
    [job_id, killed] = submit(user, MEMORY, MEMORY)
    user.post(f"/api/v1/jobs/{killed}/kill").raise_for_status()
    [wrong] = user.post("/api/v1/jobs/edit", json={"ids": [job_id], "set": {"Priority": 99}}).json()[
        "refused"
    ]
    assert (wrong["job_id"], "Priority" in wrong["reason"]) == (job_id, True)
    by_filter = user.post("/api/v1/jobs/edit", json={"status": "Waiting", "set": {"Priority": 99}}).json()
    assert (by_filter["job_ids"], by_filter["refused"]) == ([], [wrong])
    [late] = user.post("/api/v1/jobs/edit", json={"ids": [killed], "set": {"Memory": 1}}).json()["refused"]
    assert late["reason"] == f"job {killed} is Killed; it cannot become Edited"
    assert user.get(f"/api/v1/jobs/{job_id}").json()["description"]["Requirements"] == {"Memory": 2000}


@pytest.mark.parametrize("verb", ["edit", "resubmit"])
def test_a_dry_run_with_other_values_tells_that_no_queue_would_be_eligible_and_changes_nothing(
    service: Service, verb: str
):
    user = service.user()
    [job_id, other] = submit(user, MEMORY, MEMORY)
    body = {"ids": [job_id, other], "set": {"Memory": 64_000}, "dry_run": True}
    foreseen = user.post(f"/api/v1/jobs/{verb}", json=body).json()
    assert (sorted(foreseen["job_ids"]), foreseen["refused"]) == ([job_id, other], [])
    [warning] = foreseen["warnings"]
    assert re.match(
        rf"job ({job_id}|{other}) and 1 other: with these values no queue is eligible: "
        "3 of 3 fail Memory, at least 64000; what would help: ",
        warning,
    )
    assert len(user.get("/api/v1/jobs").json()["jobs"]) == 2, "nothing is copied"
    assert user.get(f"/api/v1/jobs/{job_id}").json()["description"]["Requirements"] == {"Memory": 2000}
    wrong = user.post(f"/api/v1/jobs/{verb}", json=body | {"set": {"Priority": 99}}).json()
    assert (wrong["job_ids"], sorted(each["job_id"] for each in wrong["refused"])) == ([], [job_id, other])
    fine = user.post(f"/api/v1/jobs/{verb}", json=body | {"set": {"Memory": 1500}}).json()
    assert fine["warnings"] == []


def test_an_edit_that_leaves_no_queue_eligible_is_done_and_warned_of(service: Service):
    user = service.user()
    [job_id] = submit(user, MEMORY)
    done = user.post("/api/v1/jobs/edit", json={"ids": [job_id], "set": {"Memory": 64_000}}).json()
    assert done["job_ids"] == [job_id]
    assert done["warnings"][0].startswith(f"job {job_id}: with these values no queue is eligible")
    assert user.get(f"/api/v1/jobs/{job_id}").json()["description"]["Requirements"] == {"Memory": 64_000}


def test_a_held_job_that_is_edited_stays_held(service: Service):
    user = service.user()
    [job_id] = submit(user, MEMORY)
    user.post(f"/api/v1/jobs/{job_id}/hold").raise_for_status()
    user.post("/api/v1/jobs/edit", json={"ids": [job_id], "set": {"Memory": 1500}}).raise_for_status()
    assert user.get(f"/api/v1/jobs/{job_id}").json()["minor_status"] == "Held"
    assert ("Edited", "Memory 2000 → 1500") in _log(user, job_id)
    user.post(f"/api/v1/jobs/{job_id}/release").raise_for_status()
    found = user.get(f"/api/v1/jobs/{job_id}").json()
    assert (found["status"], found["description"]["Requirements"]) == ("Waiting", {"Memory": 1500})


def test_jobs_with_one_description_share_the_edited_one(service: Service):
    user = service.user()
    source = {**JOB, "Arguments": "%(n)s", "Requirements": {"Memory": 2000}, "Parameters.n": [1, 2]}
    ids = user.post("/api/v1/jobs", json={"jobs": [source]}).json()["job_ids"]
    user.post("/api/v1/jobs/edit", json={"ids": ids, "set": {"Memory": 1500}}).raise_for_status()
    found = [user.get(f"/api/v1/jobs/{job_id}").json()["description"] for job_id in ids]
    assert [each["Arguments"] for each in found] == ["1", "2"]
    assert [each["Requirements"] for each in found] == [{"Memory": 1500}] * 2
    with database.reading(service.parts.engine) as conn:
        assert len(conn.execute(select(descriptions)).all()) == 1


@pytest.mark.parametrize(
    "requirements", [{"Memory": 64000}, "other.Memory >= 64000", {"Memory": 2000, "CPUModel": "intel xenon"}]
)
def test_what_would_help_is_an_edit_after_which_a_queue_is_eligible(service: Service, requirements: object):
    user = service.user()
    [job_id] = submit(user, {**JOB, "Requirements": requirements})
    before = user.get(f"/api/v1/jobs/{job_id}/explain").json()
    assert before["eligible_queues"] == 0
    helps = [each["set"] for each in before["changes"] if each["set"]]
    assert helps
    done = user.post("/api/v1/jobs/edit", json={"ids": [job_id], "set": helps[0]}).json()
    assert (done["job_ids"], done["refused"]) == ([job_id], [])
    after = user.get(f"/api/v1/jobs/{job_id}/explain").json()
    assert after["eligible_queues"] == before["changes"][0]["gains"]


def test_a_job_that_waits_for_others_names_them_everywhere(service: Service):
    user = service.user()
    steps = [{**JOB, "JobName": "make"}, {**JOB, "JobName": "fit", "After": "make"}]
    first, second = submit(user, *steps)
    found = user.get(f"/api/v1/jobs/{second}").json()
    assert (found["status"], found["minor_status"]) == ("Checking", "Waits for other jobs")
    assert found["after"] == [{"job_id": first, "status": "Waiting", "has_ended": False}]
    assert user.get(f"/api/v1/jobs/{first}").json()["after"] == []
    explained = user.get(f"/api/v1/jobs/{second}/explain").json()
    assert explained["now"][0] == f"waits for {first} (Waiting)"
    refused = user.post(f"/api/v1/jobs/{second}/reschedule")
    assert refused.status_code == 409
    edit = user.post("/api/v1/jobs/edit", json={"ids": [second], "set": {"After": [first]}}).json()
    assert "a job waits for those that it was submitted after" in edit["refused"][0]["reason"]
    user.post("/api/v1/jobs/edit", json={"ids": [second], "set": {"Priority": 2}}).raise_for_status()
    assert user.get(f"/api/v1/jobs/{second}").json()["minor_status"] == "Waits for other jobs"
    assert user.post(f"/api/v1/jobs/{second}/kill").status_code == 200


def test_a_copy_of_a_job_waits_for_the_same_jobs_but_for_those_that_are_done(service: Service):
    user = service.user()
    first, second, third = submit(
        user, {**JOB, "JobName": "a"}, {**JOB, "JobName": "b"}, {**JOB, "After": ["a", "b"]}
    )
    with database.writing(service.engine) as conn:
        conn.execute(
            update(job_dependencies).where(job_dependencies.c.parent_id == first).values(ended_as="Done")
        )
    [copy] = user.post("/api/v1/jobs/resubmit", json={"ids": [third]}).json()["job_ids"]
    assert user.get(f"/api/v1/jobs/{copy}").json()["after"] == [
        {"job_id": second, "status": "Waiting", "has_ended": False}
    ]
    [again] = user.post("/api/v1/jobs/resubmit", json={"ids": [copy]}).json()["job_ids"]
    assert user.get(f"/api/v1/jobs/{again}").json()["after"][0]["job_id"] == second


def test_copies_that_wait_for_other_jobs_are_foreseen_as_they_are_stored(service: Service):
    user = service.user()
    first, second, job_id = submit(user, JOB, JOB, {**JOB, "JobName": "last"})
    again = {"ids": [job_id], "set": {"After": [first, second]}}
    assert user.post("/api/v1/jobs/edit", json=again).json()["refused"]
    foreseen = user.post("/api/v1/jobs/resubmit", json={**again, "dry_run": True}).json()
    assert (foreseen["job_ids"], foreseen["refused"]) == ([job_id], [])
    [copy] = user.post("/api/v1/jobs/resubmit", json=again).json()["job_ids"]
    assert [each["job_id"] for each in user.get(f"/api/v1/jobs/{copy}").json()["after"]] == [first, second]


@pytest.mark.parametrize(
    ("bound", "value", "message"),
    [
        ("DEPENDENCIES", 3, "these jobs have 4 pairs of a job and one before it, allowed are 3 at a time"),
        ("ALL_FILLED", 100, "bytes, allowed are 100 at a time: name fewer jobs"),
    ],
)
def test_so_much_is_read_of_jobs_that_are_copied_at_once_and_no_more(
    service: Service, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, message: str
):
    user = service.user()
    before = [{**JOB, "JobName": name} for name in "ab"]
    a, b, first, second = submit(user, *before, *({**JOB, "After": ["a", "b"]} for _ in range(2)))
    monkeypatch.setattr(bounds, bound, value)
    refused = user.post("/api/v1/jobs/resubmit", json={"ids": [first, second]})
    assert refused.status_code == 400
    assert message in error(refused)["message"]
    one = user.post("/api/v1/jobs/resubmit", json={"ids": [first]})
    assert len(one.json()["job_ids"]) == 1
    edit = user.post("/api/v1/jobs/edit", json={"ids": [first, second], "set": {"Priority": 1}})
    assert edit.status_code == (400 if bound == "ALL_FILLED" else 200)
    by_filter = user.post("/api/v1/jobs/edit", json={"status": "Waiting", "set": {"Priority": 2}})
    assert by_filter.json()["job_ids"] == [a, b], "a part of them after the other"
