import contextlib
import json
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest

from cs_config.options import bounds
from matcher.claim.claim_thread import ClaimWorker, PendingRequest
from matcher.claim.matcher import Matcher
from pilotage.client import api
from pilotage.client.api import ServiceClient
from tests.support import databases
from tests.support.service import CONFIG, Service
from tests.support.wait import until

pytestmark = databases.BOTH

QUEUE = "LCG.A.org/ce1/long"
OTHER = "LCG.B.org/ce2/all"
PHASE = {"name": "generated", "done": 0, "of": 2}
JOB = {"Executable": "/bin/true", "Requirements": {"Memory": 2000}}


def resource(queue: str = QUEUE, **more: object) -> dict[str, object]:
    site, ce, name = queue.split("/")
    return {"Site": site, "GridCE": ce, "Queue": name, "CPUTime": 100_000, **more}


def submit(service: Service, *jobs: dict, vo: str = "cms") -> list[int]:
    return service.submit(*(jobs or [JOB]), vo=vo)


def ask(client, queue: str = QUEUE, headers: dict | None = None, **more: object):
    return client.post("/api/v1/matcher/requestJob", json=resource(queue, **more), headers=headers)


def take(client, queue: str = QUEUE, **more: object) -> dict:
    answer = ask(client, queue, **more)
    assert answer.status_code == 200, answer.text
    [found] = answer.json()["matches"]
    return found


def status(service: Service, job_id: int) -> str:
    return service.operator().get(f"/api/v1/jobs/{job_id}").json()["status"]


def test_a_pilot_takes_a_job_runs_it_and_finishes(service: Service):
    [job_id] = submit(service)
    pilot = service.pilot(QUEUE)
    found = take(pilot)
    assert (found["job_id"], found["epoch"]) == (job_id, 1)
    assert found["description"]["Executable"] == "/bin/true"
    assert status(service, job_id) == "Matched"
    lease = f"/api/v1/leases/{found['lease']}"
    started = pilot.post(f"{lease}/start").json()
    assert started["commands"] == []
    assert 0 < started["heartbeat_seconds"] <= 20
    assert status(service, job_id) == "Running"
    said = {"progress": "half", "output_tail": "x" * 20_000 + "the end"}
    assert pilot.post(f"{lease}/heartbeat", json=said).json()["commands"] == []
    ended = {"status": "Done", "exit_code": 0}
    first = pilot.post(f"{lease}/finish", json=ended)
    assert first.status_code == 200
    assert pilot.post(f"{lease}/finish", json=ended).json() == first.json()
    assert pilot.post(f"{lease}/finish", json={"status": "Failed"}).status_code == 409
    shown = service.user().get(f"/api/v1/jobs/{job_id}").json()
    assert shown["status"] == "Done"
    assert shown["attempt"]["progress"] == "half"
    assert shown["attempt"]["output_tail"].endswith("the end")
    assert shown["attempt"]["exit_code"] == 0
    assert "lease" not in shown["attempt"]
    assert shown["site"] == "LCG.A.org"


def test_what_a_pilot_notes_is_shown_with_the_job_also_after_its_end(service: Service):
    [job_id] = submit(service)
    pilot = service.pilot(QUEUE)
    lease = f"/api/v1/leases/{take(pilot)['lease']}"

    def note(**said: object) -> int:
        return pilot.post(f"{lease}/note", json=said).status_code

    def shown() -> dict[str, Any]:
        return service.user().get(f"/api/v1/jobs/{job_id}").json()

    assert note(minor_status="Downloading InputSandbox", parameters={"Node": "n1", "Queue": "long"}) == 200
    assert (shown()["status"], shown()["minor_status"]) == ("Matched", "Downloading InputSandbox")
    pilot.post(f"{lease}/start")
    assert note(application_status="Event 7", parameters={"Node": "n2"}) == 200
    assert (shown()["minor_status"], shown()["application_status"]) == ("Job Initialization", "Event 7")
    assert note(parameters={"": "x"}) == 400
    assert note(parameters={str(each): "" for each in range(99)}) == 400
    assert note(parameters={"long": "x" * 20_000}) == 400
    assert pilot.post(f"{lease}/finish", json={"status": "Completed"}).json()["status"] == "Completed"
    assert note(minor_status="too late", parameters={"CPU": "12"}) == 200
    assert (shown()["status"], shown()["minor_status"]) == ("Completed", "Pending Requests")
    assert shown()["parameters"] == {"CPU": "12", "Node": "n2", "Queue": "long"}
    lines = service.user().get(f"/api/v1/jobs/{job_id}/log").json()["log"]
    assert [(each["to"], each["application"]) for each in lines][-2:] == [
        ("Running", "Event 7"),
        ("Completed", ""),
    ]
    admin = service.as_role("vo_admin", vo="cms", user="eve")
    ended = admin.post(
        f"/api/v1/jobs/{job_id}/complete", json={"status": "Failed", "minor_status": "no tape"}
    )
    assert (ended.status_code, shown()["minor_status"]) == (200, "no tape")
    assert admin.post(f"/api/v1/jobs/{job_id}/complete", json={"status": "Done"}).status_code == 409
    noted = service.user().get("/api/v1/jobs", params={"application_status": "Event 7"}).json()["jobs"]
    assert noted == []
    service.user().post(f"/api/v1/jobs/{job_id}/reset").raise_for_status()
    assert shown()["reschedules"] == 0
    assert service.user().post("/api/v1/jobs/delete", json={"ids": [job_id]}).json()["job_ids"] == [job_id]
    assert shown()["status"] == "Deleted"


def test_a_grid_job_shows_its_phases_and_local_jobs_and_keeps_them(service: Service):
    [job_id] = submit(service)
    manager = service.as_role("gateway", vo="cms", site="LCG.A.org")
    lease = f"/api/v1/leases/{take(manager)['lease']}"
    manager.post(f"{lease}/start")
    phases = [
        {"name": "generated", "done": 117, "of": 250, "unit": "events"},
        {"name": "merged", "done": 0, "of": 2},
    ]
    said = {"phases": phases, "local_jobs": {"running": 3, "done": 1}}
    assert manager.post(f"{lease}/heartbeat", json=said).status_code == 200
    manager.post(f"{lease}/heartbeat")
    manager.post(f"{lease}/finish", json={"status": "Done"})
    attempt = service.user().get(f"/api/v1/jobs/{job_id}").json()["attempt"]
    assert attempt["phases"] == [phases[0], {**phases[1], "unit": ""}]
    assert attempt["local_jobs"] == {"running": 3, "done": 1}


def test_jobs_are_listed_counted_and_killed_by_the_status_of_their_local_jobs(service: Service):
    grid, _, unsplit = submit(service, JOB, JOB, JOB)
    manager, user = service.as_role("gateway", vo="cms", site="LCG.A.org"), service.user()
    found = {match["job_id"]: match["lease"] for match in (take(manager) for _ in range(3))}
    for job_id, said in ((grid, {"local_jobs": {"failed": 1}}), (unsplit, {"phases": [PHASE]})):
        lease = f"/api/v1/leases/{found[job_id]}"
        manager.post(f"{lease}/start").raise_for_status()
        manager.post(f"{lease}/heartbeat", json=said).raise_for_status()

    def listed(wanted: str) -> list[int]:
        answer = user.get("/api/v1/jobs", params={"local_status": wanted}).raise_for_status().json()
        for job in answer["jobs"]:
            assert user.get(f"/api/v1/jobs/{job['job_id']}").json()["attempt"]["local_status"] in wanted
        return [job["job_id"] for job in answer["jobs"]]

    assert (listed("error"), listed("unsubmitted")) == ([grid], [unsplit])
    assert (listed("error,unsubmitted"), listed("active,done")) == ([unsplit, grid], [])
    counted = user.get("/api/v1/jobs/summary", params={"local_status": "error"}).json()["summary"]
    assert [row["count"] for row in counted] == [1]
    assert user.get("/api/v1/jobs", params={"local_status": "broken"}).status_code == 400
    assert user.post("/api/v1/jobs/kill", json={"local_status": ["error"]}).json()["job_ids"] == [grid]
    refused = user.get("/api/v1/jobs/changes", params={"local_status": "error"})
    assert (refused.status_code, "leave local_status out" in refused.text) == (400, True)


def test_a_lease_of_a_gateway_is_good_for_gateways_of_its_site_and_vo_only(service: Service):
    submit(service)
    lease = f"/api/v1/leases/{take(service.as_role('gateway', vo='cms', site='LCG.A.org'))['lease']}"
    others = [
        service.as_role("gateway", vo="cms", site="LCG.B.org"),
        service.as_role("gateway", vo="dune", site="LCG.A.org"),
        service.pilot(QUEUE),
    ]
    assert [other.post(f"{lease}/start").status_code for other in others] == [404, 404, 404]
    assert service.as_role("gateway", vo="cms,dune", site="LCG.A.org").post(f"{lease}/start").is_success


def test_a_lease_of_a_pilot_is_good_for_no_gateway(service: Service):
    submit(service)
    lease = f"/api/v1/leases/{take(service.pilot(QUEUE))['lease']}"
    gateway = service.as_role("gateway", vo="cms", site="LCG.A.org")
    assert gateway.post(f"{lease}/start").status_code == 404


@pytest.mark.parametrize(
    "said",
    [
        {"phases": [{"name": "generated", "done": 251, "of": 250}]},
        {"phases": [{"name": "", "done": 1, "of": 2}]},
        {"phases": [{"name": "x", "done": -1, "of": 2}]},
        {"phases": [{"name": "x\u001b[2J", "done": 1, "of": 2}]},
        {"phases": [{"name": "x", "done": 1, "of": 2}] * 51},
        {"phases": [{"name": "x", "done": 1, "of": 2**53 + 1}]},
        {"local_jobs": {"running": -1}},
        {"local_jobs": {"Running there": 1}},
        {"local_jobs": {f"state_{chr(97 + n)}": 1 for n in range(21)}},
    ],
)
def test_progress_that_makes_no_sense_is_refused_and_changes_nothing(service: Service, said: dict[str, Any]):
    [job_id] = submit(service)
    pilot = service.pilot(QUEUE)
    lease = f"/api/v1/leases/{take(pilot)['lease']}"
    pilot.post(f"{lease}/start")
    assert pilot.post(f"{lease}/heartbeat", json=said).status_code == 400
    attempt = service.user().get(f"/api/v1/jobs/{job_id}").json()["attempt"]
    assert (attempt["phases"], attempt["local_jobs"]) == ([], {})


def test_nothing_to_give_says_why_and_when_to_ask_again(service: Service):
    answer = ask(service.pilot(QUEUE), Colour="red").json()
    assert answer["matches"] == []
    assert answer["reason"] == "no_task_queue"
    assert answer["retry_after"] > 0
    assert any("Colour" in warning for warning in answer["warnings"])


def test_a_pilot_gets_as_many_jobs_as_it_counts(service: Service):
    submit(service, *[JOB] * 5)
    assert len(ask(service.pilot(QUEUE), count=3).json()["matches"]) == 3


def test_each_match_says_what_its_job_may_use(service: Service):
    submit(service, {"Executable": "x", "NumberOfProcessors": 2, "MinRAM": 1000, "GPUs": 1})
    found = take(service.pilot(QUEUE), NumberOfProcessors=6, MaxRAM=4000, GPUs=1)
    assert [found[name] for name in ("processors", "ram", "gpus")] == [2, 1000, 1]


WRONG = [
    {"CPUTime": "long"},
    {"CPUTime": None},
    {"CPUTime": -1},
    {"count": 0},
    {"count": 1001},
    {"count": "x"},
    {"request_id": ""},
    {"request_id": "x" * 300},
    {"MaxRAM": 1.5},
    {"Tag": [5]},
    {"Site": None, "GridCE": None},
]


def test_a_wrong_resource_is_400(service: Service):
    operator = service.operator()
    for wrong in WRONG:
        answer = ask(operator, **wrong)
        assert answer.status_code == 400, (wrong, answer.text)
        assert answer.json()["error"]["details"]["problems"]


def test_a_bound_pilot_asks_for_its_own_queue_only(service: Service):
    submit(service)
    pilot = service.pilot(QUEUE)
    assert ask(pilot, OTHER).status_code == 403
    assert pilot.post("/api/v1/matcher/requestJob", json={"CPUTime": 1}).status_code == 403
    assert (
        pilot.post("/api/v1/matcher/requestJob", json={"CPUTime": 1, "Site": "LCG.A.org"}).status_code == 403
    )
    pools = pilot.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [OTHER]})
    assert pools.status_code == 403
    assert ask(pilot).status_code == 200


def test_an_unbound_pilot_belongs_to_the_first_queue_it_states(service: Service):
    submit(service, JOB, JOB)
    pilot = service.pilot()
    assert take(pilot)
    assert ask(pilot, OTHER).status_code == 403
    assert pilot.post("/api/v1/matcher/requestJob", json={"CPUTime": 1}).status_code == 403
    assert take(pilot)
    asks = service.pilot()
    first = asks.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [OTHER]})
    assert first.status_code == 200
    assert ask(asks, QUEUE).status_code == 403
    [bound] = service.operator().get("/api/v1/pilots?site=LCG.B.org").json()["pilots"]
    assert (bound["ce"], bound["queue"], bound["status"]) == ("ce2", "all", "Running")


def test_a_pilot_without_a_queue_gets_only_jobs_that_any_place_may_run(service: Service):
    submit(service)
    [free] = submit(service, {"Executable": "x"})
    pilot = service.pilot()
    answer = pilot.post("/api/v1/matcher/requestJob", json={"CPUTime": 100_000}).json()
    assert [found["job_id"] for found in answer["matches"]] == [free]
    answer = pilot.post("/api/v1/matcher/requestJob", json={"CPUTime": 100_000}).json()
    assert answer["matches"] == []


def test_a_queue_that_does_not_exist_is_404_with_a_suggestion(service: Service):
    answer = ask(service.pilot(), "LCG.A.org/ce1/lnog")
    assert answer.status_code == 404
    assert answer.json()["error"]["details"]["did_you_mean"] == QUEUE


def test_a_gateway_takes_jobs_at_its_own_site_only(service: Service):
    submit(service, JOB, JOB)
    gateway = service.as_role("gateway", vo="cms,dune", site="LCG.A.org")
    assert take(gateway)
    assert ask(gateway, OTHER).status_code == 403
    assert gateway.post("/api/v1/matcher/requestJob", json={"CPUTime": 1}).status_code == 403


def test_an_operator_takes_jobs_of_any_vo(service: Service):
    submit(service, vo="dune")
    assert take(service.operator(), VO="DUNE")


def test_pools_of_thousands_of_queues_come_in_one_answer(service: Service):
    submit(service, {"Executable": "x", "Requirements": {"Memory": 5000}})
    [pool] = service.user().get("/api/v1/pools").json()["pools"]
    director = service.as_role("director", vo="cms")
    names = [QUEUE, OTHER, "LCG.A.org/ce1/lnog", "nonsense"] + [f"X.y/z/{n}" for n in range(3000)]
    found = director.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": names}).json()
    assert found["pools"] == {QUEUE: [], OTHER: [pool["pool_id"]]}
    assert len(found["unknown"]) == 3002
    assert found["unknown"][0] == {"queue": "LCG.A.org/ce1/lnog", "did_you_mean": QUEUE}


def test_a_pilot_asks_for_the_one_queue_that_it_is_in(service: Service):
    pilot = service.pilot(QUEUE)
    path = "/api/v1/matcher/getSubmitPoolsForQueue"
    refused = pilot.post(path, json={"queues": [QUEUE, *(f"X.y/z/{n}" for n in range(3000))]})
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        403,
        "a pilot may only request its own queue",
    )
    assert pilot.post(path, json={"queues": ["q" * 2**18]}).status_code == 413


@pytest.mark.parametrize(("ce", "queue"), [("CE", "Queue"), ("GridCE", "Queue"), ("CEName", "QueueName")])
def test_pools_of_one_queue_by_its_parts(service: Service, ce: str, queue: str):
    director = service.as_role("director", vo="cms")
    body = {"Site": "LCG.A.org", ce: "ce1", queue: "long"}
    found = director.post("/api/v1/matcher/getSubmitPoolsForQueue", json=body).json()
    assert found == {"pools": {QUEUE: []}, "unknown": []}
    two_names = director.post(
        "/api/v1/matcher/getSubmitPoolsForQueue", json={**body, "CE": "a", "CEName": "b"}
    )
    assert two_names.status_code == 400
    none = director.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": ["a/b/c", "d"]})
    assert none.status_code == 404


def test_pools_of_queues_come_in_pages_and_without_a_limit_all(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(service, *({"Executable": "x", "Requirements": {"Memory": size}} for size in range(3000, 3005)))
    submit(service, {"Executable": "x", "Requirements": {"Memory": 5000}})
    path, names = "/api/v1/matcher/getSubmitPoolsForQueue", [QUEUE, "LCG.A.org/ce1/short", "a/b/c", OTHER]
    director = service.as_role("director", vo="cms")
    for flags in (False, True):
        body = {"queues": names, "flags": flags}
        whole = director.post(path, json=body).json()
        assert [len(pools) for pools in whole["pools"].values()] == [5, 5, 6]
        with (
            ServiceClient(service.url, service.token("director", vo="cms")) as client,
            monkeypatch.context() as patched,
        ):
            for limit in (1, 2, 4, 5, 15, 16, 17):
                patched.setattr(api, "MOST_POOLS", limit)
                read = client.pilot_groups(names) if flags else client.submit_pools(names)
                assert {**read, "next": None} == {**whole, "next": None}, limit
        page = director.post(f"{path}?limit=6", json=body).json()
        assert (sum(map(len, page["pools"].values())), page["unknown"]) == (6, whole["unknown"])
        with monkeypatch.context() as patched:
            patched.setattr(bounds, "QUEUE_POOLS", 4)
            streamed = director.post(path, json=body)
        assert "Content-Length" not in streamed.headers, "an answer with many is sent queue by queue"
        assert streamed.json() == whole
    for wrong in ("limit=0", "limit=20001", "after=x", "after=1:"):
        assert director.post(f"{path}?{wrong}", json={"queues": names}).status_code == 400


def test_a_page_continues_where_a_queue_or_pool_has_gone_meanwhile(service: Service) -> None:
    submit(service, *({"Executable": "x", "Requirements": {"Memory": size}} for size in range(3000, 3003)))
    path, body = "/api/v1/matcher/getSubmitPoolsForQueue", {"queues": [QUEUE, OTHER]}
    director = service.as_role("director", vo="cms")
    first = director.post(f"{path}?limit=2", json=body).json()
    service.configure(CONFIG.replace("            long: {CPUTime: 100000}\n", ""))
    rest = director.post(f"{path}?limit=100&after={first['next']}", json=body).json()
    assert len(rest["pools"][OTHER]) == 3
    assert (rest["next"], rest["unknown"]) == (None, [])


def test_a_question_without_queues_is_400(service: Service):
    director = service.as_role("director", vo="cms")
    for body in ({}, {"queues": []}, {"Site": "A"}, {"queues": ["a/b/c"], "Site": "A"}):
        answer = director.post("/api/v1/matcher/getSubmitPoolsForQueue", json=body)
        assert answer.status_code == 400, body


def test_a_director_asks_for_its_own_sites_and_vos(service: Service):
    submit(service, vo="dune")
    here = service.as_role("director", vo="cms", site="LCG.A.org")
    with pytest.MonkeyPatch.context() as patched:
        for name in ("get_submit_pools", "get_pilot_groups"):
            patched.setattr(service.parts.matcher, name, lambda *_: pytest.fail("read before it was refused"))
        for body in ({"queues": [OTHER]}, {"queues": [QUEUE, OTHER], "flags": True}):
            refused = here.post("/api/v1/matcher/getSubmitPoolsForQueue", json=body)
            assert refused.status_code == 403
    found = here.post("/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [QUEUE]}).json()
    assert found["pools"] == {QUEUE: []}


def test_a_director_lists_the_task_queues_that_a_resource_may_serve(service: Service):
    ids = submit(service, *[JOB] * 3)
    submit(service, vo="dune")
    director = service.as_role("director", vo="cms")
    answer = director.post("/api/v1/matcher/getMatchingTaskQueues", json=resource())
    [found] = answer.json()["task_queues"]
    assert (found["vo"], found["owner"], found["owner_group"]) == ("cms", "ada", "cms_user")
    assert (found["waiting"], found["job_ids"]) == (3, ids)
    assert found["submit_pool"] == found["definition"]["submit_pool"]
    assert found["tier"] is None


def test_pilots_are_registered_and_followed_by_their_director(service: Service):
    director = service.as_role("director", vo="cms", site="LCG.A.org")
    body = {"stamp": "s1", "queue": QUEUE}
    first = director.post("/api/v1/pilots", json=body)
    assert (first.status_code, first.json()["status"]) == (201, "Submitted")
    assert director.post("/api/v1/pilots", json=body).status_code == 200
    news = {"status": "Waiting", "reference": "batch:17"}
    assert director.post("/api/v1/pilots/s1/status", json=news).json()["reference"] == "batch:17"
    assert director.post("/api/v1/pilots/s1/status", json={"status": "Done"}).status_code == 200
    assert director.post("/api/v1/pilots/s1/status", json={"status": "Running"}).status_code == 409
    assert director.post("/api/v1/pilots/s1/status", json={"status": "Flying"}).status_code == 400
    assert director.post("/api/v1/pilots", json={"stamp": "s2", "queue": OTHER}).status_code == 403
    wrong = {"stamp": "s2", "queue": "LCG.A.org/ce1/lnog"}
    assert director.post("/api/v1/pilots", json=wrong).status_code == 404
    assert [each["stamp"] for each in director.get("/api/v1/pilots").json()["pilots"]] == ["s1"]
    elsewhere = service.as_role("director", vo="dune")
    assert elsewhere.get("/api/v1/pilots").json()["pilots"] == []
    assert elsewhere.post("/api/v1/pilots/s1/status", json=news).status_code == 404


def test_a_registered_pilot_is_seen_when_it_asks_and_renews_its_token(service: Service):
    director = service.as_role("director", vo="cms")
    director.post("/api/v1/pilots", json={"stamp": "s1", "queue": QUEUE})
    pilot = service.as_role("pilot", vo="cms", stamp="s1")
    ask(pilot)
    [seen] = director.get("/api/v1/pilots?status=Running").json()["pilots"]
    assert seen["last_seen_at"] is not None
    assert ask(pilot, OTHER).status_code == 403
    renewed = pilot.post("/api/v1/tokens/renew").json()["token"]
    assert ask(service.client(renewed)).status_code == 200


def test_metrics_count_matches_and_refusals(service: Service):
    submit(service)
    pilot = service.pilot(QUEUE)
    take(pilot)
    ask(pilot)
    submit(service, {"Executable": "x"}, {"Executable": "x"})
    for number in range(2):
        elsewhere = {"Site": f"LCG.New{number}.org", "CPUTime": 100_000}
        free = service.as_role("pilot", vo="cms", stamp=f"s{number}")
        assert free.post("/api/v1/matcher/requestJob", json=elsewhere).json()["matches"]
    text = service.as_role("monitor").get("/metrics").text
    assert 'pilotage_matches_total{site="LCG.A.org",vo="cms"} 1.0' in text
    assert 'pilotage_matches_total{site="",vo="cms"} 2.0' in text, "clients name any number of sites"
    assert 'pilotage_match_refusals_total{reason="no_task_queue"} 1.0' in text


@pytest.mark.parametrize("reason", ["banned", "throttled", "limits"])
def test_every_reason_why_a_place_is_closed_is_told_and_counted(
    service: Service, config_text: str, reason: str
):
    closed = config_text
    if reason == "banned":
        service.operator().post("/api/v1/sites/LCG.A.org/ban", json={"reason": "fire"})
    elif reason == "throttled":
        throttle = "Throttle: {Policy: level0, MaxSubmittingJobs: 0, Stale: derived}"
        closed = config_text.replace("    LCG.A.org:\n", f"    LCG.A.org:\n      {throttle}\n")
    else:
        limit = "JobScheduling: {RunningLimit: {LCG.A.org: {VO: {cms: 0}}}}"
        closed = config_text.replace("  Defaults:\n", f"  Defaults:\n    {limit}\n")
    service.configure(closed)
    submit(service)
    pilot = service.pilot(QUEUE)
    answers = [ask(pilot).json() for _ in range(2)]
    assert [(each["matches"], each["reason"]) for each in answers] == [([], reason)] * 2
    assert all(each["retry_after"] > 0 for each in answers)
    text = service.as_role("monitor").get("/metrics").text
    assert f'pilotage_match_refusals_total{{reason="{reason}"}} 2.0' in text


@contextlib.contextmanager
def held_up(service: Service, monkeypatch: pytest.MonkeyPatch):
    """The claim thread, which serves requests for several jobs, hangs at its next batch until the end."""
    arrived, go = threading.Event(), threading.Event()
    serve = Matcher.serve

    def slowly(self, batch):
        arrived.set()
        go.wait(300)
        return serve(self, batch)

    monkeypatch.setattr(Matcher, "serve", slowly)
    try:
        yield arrived
    finally:
        go.set()
        monkeypatch.setattr(Matcher, "serve", serve)


def test_what_cannot_be_delivered_in_time_is_503_and_not_kept(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    [job_id] = submit(service)
    pilot = service.pilot(QUEUE)
    with held_up(service, monkeypatch):
        answer = ask(pilot, headers={"Request-Timeout": "0.3"}, count=2)  # it is still held up
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json()["error"]["code"] == "not_in_time"
    until(lambda: status(service, job_id) == "Waiting")
    assert take(pilot)["job_id"] == job_id


def test_a_client_that_goes_away_leaves_its_job_to_others(service: Service, monkeypatch: pytest.MonkeyPatch):
    [job_id] = submit(service)
    token = service.token("pilot", vo="cms", queue=QUEUE)
    abandon, noticed = ClaimWorker.abandon, threading.Event()

    def note(self: ClaimWorker, ticket: PendingRequest) -> None:
        abandon(self, ticket)
        noticed.set()

    monkeypatch.setattr(ClaimWorker, "abandon", note)
    with held_up(service, monkeypatch) as arrived:
        send_and_close(service, token, arrived)
        assert noticed.wait(300)
    until(lambda: status(service, job_id) == "Waiting")
    assert take(service.pilot(QUEUE))["job_id"] == job_id


def send_and_close(service: Service, token: str, arrived: threading.Event) -> None:
    where = urlsplit(service.url)
    body = json.dumps(resource(count=2)).encode()
    head = (
        f"POST /api/v1/matcher/requestJob HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(head.encode() + body)
        assert arrived.wait(300)


def test_a_dead_claimer_is_503(service: Service):
    service.parts.claimer.stop()
    answer = ask(service.pilot(QUEUE))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "busy"


def test_a_time_out_has_to_be_a_number_of_seconds(service: Service):
    pilot = service.pilot(QUEUE)
    for seconds in ("x", "0", "-1", "nan", "1e9"):
        assert ask(pilot, headers={"Request-Timeout": seconds}).status_code == 400


def test_a_queue_that_is_not_for_the_vo_is_no_ban(service: Service, config_text: str):
    service.configure(config_text.replace("VO: [cms, dune]", "VO: [dune]", 1))
    submit(service)
    answer = ask(service.pilot(QUEUE)).json()
    assert (answer["matches"], answer["reason"]) == ([], "not_usable")
    text = service.as_role("monitor").get("/metrics").text
    assert 'pilotage_match_refusals_total{reason="not_usable"} 1.0' in text
    assert 'reason="banned"' not in text


@pytest.mark.parametrize("has_stated", [True, False])
def test_a_token_with_the_stamp_of_a_pilot_of_another_vo_does_not_get_its_jobs(
    service: Service, has_stated: bool
):
    """Nor without a queue, or if that pilot has stated none and is not recorded."""
    [job_id] = submit(service, {"Executable": "x"})
    own, other = (service.as_role("pilot", vo=vo, stamp="s") for vo in ("cms", "dune"))
    without = {"CPUTime": 100_000, "request_id": "one"}
    stated = resource(request_id="one") if has_stated else without
    answer = own.post("/api/v1/matcher/requestJob", json=stated)
    assert [each["job_id"] for each in answer.json()["matches"]] == [job_id]
    for body in (without, resource(request_id="one")):
        answer = other.post("/api/v1/matcher/requestJob", json=body)
        assert answer.status_code == 403, answer.text
        assert "another VO" in answer.text or "was not sent to" in answer.text
