"""Over HTTP: jobs that fail run again by the rules of their descriptions, or of their VO."""

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from taskqueue.jobs import edits
from tests.support import databases
from tests.support.service import CONFIG, Service

pytestmark = databases.BOTH

ASKED = {"CPUTime": 100_000}
AT_A = {**ASKED, "Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long"}
AT_B = {**ASKED, "Site": "LCG.B.org", "GridCE": "ce2", "Queue": "all"}
QUEUES = {"LCG.A.org": "LCG.A.org/ce1/long", "LCG.B.org": "LCG.B.org/ce2/all"}
KILLED = {"status": "Failed", "exit_code": 137, "minor_status": "Application Finished With Errors"}
TOO_LARGE = {"status": "Failed", "exit_code": 1, "minor_status": "Job has exceeded its memory limit"}
ELSEWHERE = {"status": "Failed", "exit_code": 65}
RULES = ["137 or memory limit: Memory x 1.5, twice", "65: another site"]


def _run(service: Service, end: Mapping[str, Any], place: Mapping[str, Any] = AT_B) -> dict[str, Any]:
    """Run the one waiting job to this end; the answer to the pilot."""
    pilot = service.pilot(QUEUES[place["Site"]])
    [match] = pilot.post("/api/v1/matcher/requestJob", json=place).json()["matches"]
    assert pilot.post(f"/api/v1/leases/{match['lease']}/start", json={}).is_success
    answer = pilot.post(f"/api/v1/leases/{match['lease']}/finish", json=end)
    assert answer.is_success, answer.text
    again = pilot.post(f"/api/v1/leases/{match['lease']}/finish", json=end)
    assert again.json() == answer.json()
    return dict(answer.json())


def _submit(service: Service, **more: Any) -> int:
    [job_id] = service.submit({"Executable": "true", "Retry": RULES, **more})
    return job_id


def _read(service: Service, job_id: int) -> dict[str, Any]:
    return dict(service.user().get(f"/api/v1/jobs/{job_id}").json())


def _log(service: Service, job_id: int) -> list[tuple[str, str, str]]:
    found = service.user().get(f"/api/v1/jobs/{job_id}/log").json()["log"]
    return [(each["to"], each["minor"], each["application"]) for each in found]


def test_each_retry_has_more_memory_until_none_is_left(service: Service):
    job_id = _submit(service, MinRAM=1001)
    assert _run(service, KILLED)["status"] == "Rescheduled"
    job = _read(service, job_id)
    assert (job["status"], job["description"]["MinRAM"], job["reschedules"]) == ("Waiting", 1502, 0)
    assert _run(service, TOO_LARGE)["status"] == "Rescheduled"
    assert _run(service, KILLED)["status"] == "Failed"
    job = _read(service, job_id)
    assert (job["status"], job["description"]["MinRAM"], job["epoch"]) == ("Failed", 2253, 3)
    assert job["application_status"] == f"no retry is left of {RULES[0]!r}"
    assert [text for status, _, text in _log(service, job_id) if status == "Rescheduled"] == [
        "Application Finished With Errors, exit code 137; MinRAM 1001 → 1502; retry 1 of 2",
        "Job has exceeded its memory limit, exit code 1; MinRAM 1502 → 2253; retry 2 of 2",
    ]
    assert [(each["epoch"], each["note"][-12:]) for each in job["retries"]] == [
        (1, "retry 1 of 2"),
        (2, "retry 2 of 2"),
    ]


def test_a_job_that_states_no_memory_gets_more_than_it_had(service: Service):
    job_id = _submit(service)
    _run(service, {**KILLED, "memory_mb": 3000})
    assert _read(service, job_id)["description"]["MinRAM"] == 4500


def test_a_hard_limit_of_memory_grows_with_the_rest(service: Service):
    job_id = _submit(service, MinRAM=1000, MaxRAM=1200)
    _run(service, KILLED)
    found = _read(service, job_id)["description"]
    assert (found["MinRAM"], found["MaxRAM"]) == (1500, 1800)


def test_a_retry_is_kept_from_the_site_where_the_job_failed(service: Service):
    job_id = _submit(service)
    _run(service, ELSEWHERE, AT_A)
    pilot = service.pilot(QUEUES["LCG.A.org"])
    assert pilot.post("/api/v1/matcher/requestJob", json=AT_A).json()["matches"] == []
    assert _read(service, job_id)["description"]["BannedSites"] == ["LCG.A.org"]
    assert _run(service, {"status": "Done", "exit_code": 0})["status"] == "Done"


def test_a_process_that_dies_while_it_retries_leaves_the_end_to_be_reported_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    job_id = _submit(service, MinRAM=1000)
    pilot = service.pilot(QUEUES["LCG.B.org"])
    [match] = pilot.post("/api/v1/matcher/requestJob", json=AT_B).json()["matches"]
    lease = f"/api/v1/leases/{match['lease']}"
    pilot.post(f"{lease}/start", json={})

    def die(*_: object, **__: object) -> None:
        raise KeyError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(edits, "replace_descriptions", die)
        with contextlib.suppress(KeyError):
            pilot.post(f"{lease}/finish", json=KILLED)
    job = _read(service, job_id)
    assert (job["status"], job["description"]["MinRAM"], job["retries"]) == ("Running", 1000, [])
    assert [pilot.post(f"{lease}/finish", json=KILLED).json()["status"] for _ in range(2)] == [
        "Rescheduled",
        "Rescheduled",
    ]
    job = _read(service, job_id)
    assert (job["description"]["MinRAM"], len(job["retries"])) == (1500, 1)


def test_other_ends_fail_as_without_rules(service: Service):
    job_id = _submit(service)
    assert _run(service, {"status": "Failed", "exit_code": 2})["status"] == "Failed"
    assert _read(service, job_id)["application_status"] == ""


def test_a_job_that_no_queue_could_run_then_fails_with_the_reason(service: Service):
    job_id = _submit(service, MinRAM=12_000)
    assert _run(service, KILLED)["status"] == "Failed"
    job = _read(service, job_id)
    why = "Retry: no queue of cms could run the job with MinRAM 12000 → 18000"
    assert job["application_status"] == f"no retry by {RULES[0]!r}: {why}"
    assert job["description"]["MinRAM"] == 12_000


def test_a_job_whose_only_site_it_leaves_fails_with_the_reason(service: Service):
    job_id = _submit(service, Site="LCG.A.org")
    assert _run(service, ELSEWHERE, AT_A)["status"] == "Failed"
    assert "BannedSites bans every site that the job names" in _read(service, job_id)["application_status"]


def test_a_killed_job_is_not_retried(service: Service):
    job_id = _submit(service)
    pilot = service.pilot(QUEUES["LCG.B.org"])
    [match] = pilot.post("/api/v1/matcher/requestJob", json=AT_B).json()["matches"]
    pilot.post(f"/api/v1/leases/{match['lease']}/start", json={})
    assert service.user().post(f"/api/v1/jobs/{job_id}/kill").is_success
    assert pilot.post(f"/api/v1/leases/{match['lease']}/finish", json=KILLED).json()["status"] == "Killed"
    assert _read(service, job_id)["status"] == "Killed"


def test_a_retry_waits_for_its_delay(service: Service):
    job_id = _submit(service, Retry="any failure: after 2 h, 3 times")
    _run(service, KILLED)
    assert _read(service, job_id)["status"] == "Rescheduled"


def test_rules_of_a_vo_hold_for_jobs_without_rules_of_their_own(service: Service):
    rule = 'Retry: {default: "137: CPUTime x 2"}'
    service.configure(CONFIG.replace("JobDescription:\n", f"JobDescription:\n      {rule}\n"))
    [first] = service.submit({"Executable": "true", "CPUTime": 1000})
    _run(service, KILLED)
    assert _read(service, first)["description"]["CPUTime"] == 2000
    _run(service, KILLED)
    assert _read(service, first)["status"] == "Failed"
    [second] = service.submit({"Executable": "true", "Retry": []})
    assert _run(service, KILLED)["status"] == "Failed"
    assert _read(service, second)["epoch"] == 1


def test_jobs_that_share_a_description_part_by_their_retries(service: Service):
    first, second = service.submit(
        {"Executable": "true", "MinRAM": 1000, "Retry": RULES, "Parameters": [1, 2], "Arguments": "%s"}
    )
    _run(service, KILLED)
    _run(service, {"status": "Done", "exit_code": 0})
    found = {each: _read(service, each)["description"] for each in (first, second)}
    assert sorted(each["MinRAM"] for each in found.values()) == [1000, 1500]
    assert sorted(each["Arguments"] for each in found.values()) == ["1", "2"]


def test_a_value_that_becomes_infinite_is_too_large(service: Service):
    job_id = _submit(service, Requirements="other.Foo <= 1e308 || true", Retry="any failure: Foo x 10")
    assert _run(service, KILLED)["status"] == "Failed"
    assert "is out of range" in _read(service, job_id)["application_status"]


def test_a_rule_that_cannot_be_applied_is_refused(service: Service):
    for rule, problem in (
        ("1: MinRAM x 2", "MinRAM is not a number in the description"),
        ("1: Memry = 2", "did you mean"),
        ("; ".join(f"{code}: A = 1, B = 2, C = 3" for code in range(14)), "42 changed values are too many"),
        ("1: Owner = bob", "a job keeps its owner"),
    ):
        jobs = [{"Executable": "true", "Retry": rule}]
        answer = service.user().post("/api/v1/jobs", json={"jobs": jobs})
        assert answer.status_code == 400
        assert problem in answer.text, answer.text
