"""Many pilots, resources or queues in one request, as directors of many queues send them."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from matcher import demand
from pilotage.client.api import ServiceClient
from pilotage.fabric.director import matcher_client
from tests.support.service import Service

LONG, SHORT, OTHER = "LCG.A.org/ce1/long", "LCG.A.org/ce1/short", "LCG.B.org/ce2/all"
API = "/api/v1"


def register(director: httpx.Client, *stamps: str, queue: str = LONG) -> httpx.Response:
    body = {"pilots": [{"stamp": stamp, "queue": queue} for stamp in stamps]}
    return director.post(f"{API}/pilots/registrations", json=body)


def report(director: httpx.Client, reason: str = "", **statuses: str) -> list[str]:
    reports = [{"stamp": stamp, "status": status, "reason": reason} for stamp, status in statuses.items()]
    answer = director.post(f"{API}/pilots/statuses", json={"reports": reports})
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["unchanged"]
    return found


def test_each_of_many_registered_pilots_gets_a_secret_of_its_own(service: Service):
    director = service.as_role("director", vo="cms")

    answer = register(director, "b.1", "b.2")

    assert answer.status_code == 201, answer.text
    secrets = answer.json()["secrets"]
    assert len(set(secrets.values())) == 2
    for stamp, secret in secrets.items():
        exchange = {"request_id": "12345678-1234-5678-1234-567812345678"}
        exchanged = service.client(secret).post(f"{API}/pilots/{stamp}/token", json=exchange)
        assert exchanged.status_code == 200, exchanged.text


def test_if_one_of_many_pilots_cannot_be_registered_none_is(service: Service):
    director = service.as_role("director", vo="cms", site="LCG.A.org")
    assert register(director, "c.1").status_code == 201

    taken = register(director, "c.2", "c.1")
    elsewhere = director.post(
        f"{API}/pilots/registrations",
        json={"pilots": [{"stamp": "c.3", "queue": LONG}, {"stamp": "c.4", "queue": OTHER}]},
    )
    nowhere = director.post(f"{API}/pilots/registrations", json={"pilots": [{"stamp": "c.5"}]})

    assert (taken.status_code, elsewhere.status_code, nowhere.status_code) == (409, 403, 400)
    assert [pilot["stamp"] for pilot in director.get(f"{API}/pilots").json()["pilots"]] == ["c.1"]


def test_pilots_that_have_ended_or_are_others_keep_their_status(service: Service):
    director = service.as_role("director", vo="cms")
    register(director, "d.1", "d.2", "d.3")
    register(service.as_role("director", vo="dune"), "d.4")
    report(director, **{"d.2": "Done"})

    unchanged = report(
        director,
        **{"d.1": "Running", "d.2": "Waiting", "d.3": "Aborted", "d.4": "Deleted", "d.5": "Done"},
    )

    assert unchanged == ["d.2", "d.4", "d.5"]
    shown = service.operator().get(f"{API}/pilots").json()["pilots"]
    statuses = {each["stamp"]: each["status"] for each in shown}
    assert statuses == {"d.1": "Running", "d.2": "Done", "d.3": "Aborted", "d.4": "Submitted"}


def test_jobs_of_pilots_that_ended_stall_as_after_a_single_report(service: Service):
    director = service.as_role("director", vo="cms")
    register(director, "e.1", "e.2", "e.3")
    service.user().post(f"{API}/jobs", json={"jobs": [{"Executable": "x"}] * 3})
    place = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}
    jobs = {}
    for stamp in ("e.1", "e.2", "e.3"):
        pilot = service.as_role("pilot", vo="cms", queue=LONG, stamp=stamp)
        [found] = pilot.post(f"{API}/matcher/requestJob", json=place).json()["matches"]
        assert pilot.post(f"{API}/leases/{found['lease']}/start").status_code == 200
        jobs[stamp], lease = found["job_id"], found["lease"]

    reason = "\nNODE_FAIL: NodeDown\nlast lines of its output"
    assert report(director, reason, **{"e.1": "Failed", "e.2": "Running", "e.3": "Aborted"}) == []

    shown = {stamp: service.user().get(f"{API}/jobs/{job_id}").json() for stamp, job_id in jobs.items()}
    assert {stamp: (each["status"], each["application_status"]) for stamp, each in shown.items()} == {
        "e.1": ("Stalled", "NODE_FAIL: NodeDown"),
        "e.2": ("Running", ""),
        "e.3": ("Stalled", "NODE_FAIL: NodeDown"),
    }
    explained = service.user().get(f"{API}/jobs/{jobs['e.1']}/explain").json()["now"]
    soon = "it is rescheduled soon, or fails if that was done too often"
    assert explained == [f"its pilot has ended (NODE_FAIL: NodeDown): {soon}"]
    assert service.operator().get(f"{API}/pilots/e.1").json()["status_reason"] == reason

    # That of e.3 was wrong: its payload ends.
    end = {"status": "Failed", "exit_code": 3, "application_status": "exit code 3"}
    pilot.post(f"{API}/leases/{lease}/finish", json=end).raise_for_status()
    explained = service.user().get(f"{API}/jobs/{jobs['e.3']}/explain").json()["now"]
    assert explained == ["it has failed: Application Finished With Errors: exit code 3"]


def test_demand_for_many_resources_counts_each_task_queue_once(service: Service):
    jobs = [{"Executable": "x", "NumberOfProcessors": 2, "MinRAM": 100}] * 3
    service.user().post(f"{API}/jobs", json={"jobs": jobs})
    director = service.as_role("director", vo="cms")
    resources = [
        {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000, "NumberOfProcessors": 4},
        {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000, "NumberOfProcessors": 1},
        {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "lung", "CPUTime": 100_000},
        {"Site": "LCG.B.org", "GridCE": "ce2", "Queue": "all", "CPUTime": 100_000, "NumberOfProcessors": 2},
    ]

    found = director.post(f"{API}/matcher/getDemand", json={"resources": resources}).json()

    [task_queue] = found["task_queues"]
    number = task_queue.pop("task_queue")
    assert found["resources"] == [[number], [], [], [number]]
    assert task_queue == {
        "submit_pool": None,
        "waiting": 3,
        "processors": 2,
        "ram": 100,
        "gpus": 0,
        "whole_node": False,
    }


def test_an_answer_about_demand_has_a_bounded_number_of_candidates_and_directors_ask_for_the_rest(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demand, "_MOST_CANDIDATES", 4)
    jobs = [{"Executable": "x", "MinRAM": ram} for ram in (100, 200)]
    service.user().post(f"{API}/jobs", json={"jobs": jobs})
    place = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}
    resources = [{**place, "MaxRAM": 1_000 + each} for each in range(5)]
    director = service.as_role("director", vo="cms")
    asked: list[int] = []

    class Asked(ServiceClient):
        def __init__(self) -> None:
            pass

        def demand(self, resources: Sequence[Mapping[str, object]]) -> Any:
            asked.append(len(resources))
            body = {"resources": list(resources)}
            return director.post(f"{API}/matcher/getDemand", json=body).json()

    found = list(matcher_client._fetch_demand(Asked(), resources))
    assert [len(each.task_queues) for each in found] == [2] * 5
    assert asked == [5, 3, 1]


def test_many_queues_are_described_in_one_answer(service: Service):
    director = service.as_role("director", vo="cms")
    body = {"queues": [LONG, "LCG.A.org/ce1/lung"], "vo": "cms"}

    found = director.post(f"{API}/resources/queues", json=body).json()

    [queue] = found["queues"]
    single = director.get(f"{API}/resources/queues/{LONG}", params={"vo": "cms"}).json()
    assert queue["parameters"] == {name: each["value"] for name, each in single["parameters"].items()}
    assert (queue["queue"], queue["usable"], found["unknown"]) == (LONG, True, ["LCG.A.org/ce1/lung"])


def test_a_vo_has_so_many_pilots_that_have_not_ended_whoever_registers_them(
    service: Service, config_text: str
):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {PilotsPerVO: 3}"))
    here, there = (service.as_role("director", vo="cms", site=f"LCG.{name}.org") for name in "AB")
    one = {"stamp": "q.3", "queue": LONG}

    def register_one(stamp: str) -> httpx.Response:
        return here.post(f"{API}/pilots", json={"stamp": stamp, "queue": LONG})

    assert register(here, "q.1", "q.2").status_code == 201
    refused = register(there, "q.3", "q.4", queue=OTHER)
    assert refused.status_code == 429, "all or none"
    assert refused.json()["error"]["message"] == (
        "cms would have more than 3 pilots that have not ended: Limits/PilotsPerVO allows no more,"
        " until some end or an operator raises it"
    )
    assert [register_one("q.3").status_code, register_one("q.4").status_code] == [201, 429]
    assert here.post(f"{API}/pilots", json=one).status_code == 200, "nothing new"
    assert register(service.as_role("director", vo="dune"), "r.1", "r.2", "r.3").status_code == 201
    report(here, **{"q.1": "Failed"})
    assert register(there, "q.4", queue=OTHER).status_code == 201


def test_a_director_that_registered_too_many_pilots_in_an_hour_registers_no_more(
    service: Service, config_text: str
):
    service.configure(config_text.replace("Defaults:", "Defaults:\n    Limits: {JobsPerHour: 2}"))
    director = service.as_role("director", vo="cms", site="LCG.A.org")
    one = {"stamp": "h.3", "queue": LONG}
    assert register(director, "h.1", "h.2").status_code == 201
    report(director, **{"h.1": "Failed", "h.2": "Failed"})
    for answer in (register(director, "h.3"), director.post(f"{API}/pilots", json=one)):
        assert answer.status_code == 429
        assert answer.json()["error"]["message"].startswith("too many pilots, try again in ")
    assert not [each for each in director.get(f"{API}/pilots").json()["pilots"] if each["stamp"] == "h.3"]
    assert director.post(f"{API}/pilots", json={**one, "stamp": "h.1"}).status_code == 200, "nothing new"
