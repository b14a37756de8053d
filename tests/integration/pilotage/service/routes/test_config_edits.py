import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.service import Service

LONG = "Resources/Sites/LCG.A.org/CEs/ce1/Queues/long"
SHORT = "Resources/Sites/LCG.A.org/CEs/ce1/Queues/short"


def patch(client, values: dict[str, Any], version: int | None = 1, **more: Any):
    headers = {} if version is None else {"If-Match": str(version)}
    return client.patch("/api/v1/config", json={"set": values, **more}, headers=headers)


def versions(client) -> list[dict[str, Any]]:
    return client.get("/api/v1/config/versions").json()["versions"]


def queues(client) -> dict[str, Any]:
    sites = client.get("/api/v1/config").json()["config"]["Resources"]["Sites"]
    return sites["LCG.A.org"]["CEs"]["ce1"]["Queues"]


def audit(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(each.getMessage()) for each in caplog.records if each.name == "pilotage.audit"]


@pytest.fixture
def cms(service: Service):
    return service.as_role("vo_admin", vo="cms", user="eve")


@pytest.fixture
def dune(service: Service):
    return service.as_role("vo_admin", vo="dune", user="zoe")


@pytest.fixture
def at_a(service: Service):
    return service.as_role("site_admin", vo="cms", site="LCG.A.org", user="sam")


def test_a_vo_admin_changes_what_his_vo_gets_of_a_queue(service: Service, cms, caplog):
    with caplog.at_level(logging.INFO, logger="pilotage.audit"):
        answer = patch(cms, {f"{LONG}/VOs/cms/MaxRAM": 7000}, message="they have more")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "version": 2,
        "warnings": [],
        "more_warnings": 0,
        "changes": [{"path": f"{LONG}/VOs", "change": "added", "after": {"cms": {"MaxRAM": 7000}}}],
    }
    shown = cms.get("/api/v1/resources/queues/LCG.A.org/ce1/long").json()
    assert shown["parameters"]["MaxRAM"]["value"] == 7000
    other = service.as_role("vo_admin", vo="dune", user="zoe")
    queue = other.get("/api/v1/resources/queues/LCG.A.org/ce1/long").json()
    assert queue["parameters"]["MaxRAM"]["value"] == 4000
    [line] = audit(caplog)
    assert (line["action"], line["role"], line["version"]) == ("configuration", "vo_admin", 2)
    assert line["paths"] == f"{LONG}/VOs/cms"


@pytest.mark.parametrize("blank", ["  ", "\t\n", "\u00a0"])
def test_a_blank_reason_is_refused_and_changes_nothing(service: Service, blank: str):
    operator, queue = service.operator(), "/api/v1/resources/queues/LCG.A.org/ce1/long"
    whole = {"text": operator.get("/api/v1/config").json()["text"], "message": blank}
    refused = [
        patch(operator, {f"{LONG}/MaxRAM": 7000}, message=blank),
        operator.put("/api/v1/config", json=whole, headers={"If-Match": "1"}),
        operator.post("/api/v1/config/rollback", json={"version": 1, "message": blank}),
        operator.post(f"{queue}/drain", json={"message": blank}),
    ]
    told = "message: is blank, state a reason"
    assert [(each.status_code, told in each.json()["error"]["message"]) for each in refused] == [
        (400, True)
    ] * 4
    assert len(versions(operator)) == 1
    assert patch(operator, {f"{LONG}/MaxRAM": 7000}, message=" more  ").status_code == 200
    assert versions(operator)[0]["message"] == "more"
    operator.post(f"{queue}/drain", json={"message": ""}).raise_for_status()
    assert versions(operator)[0]["message"] == "drain LCG.A.org/ce1/long"


def test_an_edit_of_anothers_section_is_403_names_the_path_and_is_written_down(cms, caplog):
    with caplog.at_level(logging.INFO, logger="pilotage.audit"):
        answer = patch(cms, {f"{SHORT}/VOs/dune/MaxRAM": 1, f"{LONG}/CPUTime": 5})
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert error["details"]["paths"] == [f"{SHORT}/VOs/dune/MaxRAM", f"{LONG}/CPUTime"]
    assert "8000" not in answer.text
    [line] = audit(caplog)
    assert (line["action"], line["method"]) == ("refused", "PATCH")
    assert f"{SHORT}/VOs/dune/MaxRAM" in line["reason"]
    assert cms.get("/api/v1/config").json()["version"] == 1


def test_of_two_edits_of_one_path_the_second_gets_409_with_the_difference(service: Service, dune, caplog):
    path = f"{SHORT}/VOs/dune/MaxRAM"
    assert patch(service.operator(), {path: 8500}).status_code == 200
    with caplog.at_level(logging.INFO, logger="pilotage.audit"):
        answer = patch(dune, {path: 9000, f"{LONG}/VOs/dune/MaxRAM": 5})
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["code"] == "version_conflict"
    conflict = {"path": path, "change": "changed", "before": 8000, "after": 8500}
    assert error["details"] == {"expected": 1, "current": 2, "conflicts": [conflict]}
    assert dune.get("/api/v1/config").json()["version"] == 2
    assert audit(caplog)[-1]["action"] == "refused"
    assert patch(dune, {path: 9000}, 2).json()["version"] == 3


def test_a_conflict_with_a_section_that_went_tells_nothing_of_other_vos(service: Service, cms):
    assert patch(service.operator(), {}, remove=["Resources/Sites/LCG.A.org/CEs/ce1"]).status_code == 200
    answer = patch(cms, {f"{SHORT}/VOs/cms/MaxRAM": 1})
    assert answer.status_code == 409
    assert "dune" not in answer.text
    assert "8000" not in answer.text


def test_no_edit_is_lost_when_many_come_at_the_same_time(service: Service):
    clients = [service.operator() for _ in range(8)]
    paths = [f"Resources/Sites/LCG.A.org/X{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda c, p: patch(c, {p: 1}), clients, paths))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert sorted(answer.json()["version"] for answer in answers) == list(range(2, 10))
    site = clients[0].get("/api/v1/config").json()["config"]["Resources"]["Sites"]["LCG.A.org"]
    assert all(f"X{number}" in site for number in range(8))


def test_an_edit_that_changes_nothing_makes_no_version(dune):
    assert patch(dune, {f"{SHORT}/VOs/dune/MaxRAM": 8000}).json() == {
        "version": 1,
        "changes": [],
        "warnings": [],
        "more_warnings": 0,
    }


def test_what_becomes_wrong_of_others_by_an_edit_is_refused_and_not_told(service: Service, cms):
    values = {f"{SHORT}/VOs/dune/MaxRamm": 5, "Operations/cms/JobDescription/MaxRamm/type": "number"}
    assert patch(service.operator(), values).status_code == 200
    answer = patch(cms, {}, 2, remove=["Operations/cms/JobDescription/MaxRamm"])
    assert answer.status_code == 422
    assert "dune" not in answer.text
    assert "others depend on what this removes" in answer.text


def test_an_edit_states_its_version_which_must_have_been(cms):
    assert patch(cms, {f"{LONG}/VOs/cms/MaxRAM": 1}, None).status_code == 428
    assert patch(cms, {f"{LONG}/VOs/cms/MaxRAM": 1}, 77).status_code == 409
    assert patch(cms, {}).status_code == 400
    assert patch(cms, {}, remove=[f"{LONG}/VOs/cms"]).status_code == 404


def test_everybody_sees_the_history_of_what_concerns_him(service: Service, cms, dune, at_a):
    operator = service.operator()
    patch(dune, {f"{SHORT}/VOs/dune/MaxRAM": 9000}, 1, message="of dune")
    patch(cms, {f"{LONG}/VOs/cms/MaxRAM": 7000}, 2, message="of cms")
    edits = {"Operations/dune/JobScheduling/HoldTime": 3, f"{LONG}/CPUTime": 5}
    patch(operator, edits, 3, message="of both")
    seen = {
        name: [
            (each["version"], each["message"])
            for each in client.get("/api/v1/config/versions").json()["versions"]
        ]
        for name, client in {"cms": cms, "dune": dune, "at_a": at_a, "operator": operator}.items()
    }
    assert seen["operator"] == [(4, "of both"), (3, "of cms"), (2, "of dune"), (1, "")]
    assert seen["dune"] == [(4, "of both"), (2, "of dune"), (1, "")]
    assert seen["cms"] == [(4, ""), (3, "of cms"), (1, "")]
    assert seen["at_a"] == [(4, ""), (3, "of cms"), (2, "of dune"), (1, "")]
    newest = versions(cms)[0]
    assert newest["paths"] == [f"{LONG}/CPUTime"]
    of_path = operator.get("/api/v1/config/versions", params={"path": f"{LONG}/CPUTime"}).json()["versions"]
    assert [each["version"] for each in of_path] == [4, 1]


def test_the_difference_of_two_versions_is_told_as_far_as_it_is_seen(service: Service, cms):
    patch(service.operator(), {f"{SHORT}/VOs/dune/MaxRAM": 9000, f"{LONG}/CPUTime": 5})
    answer = cms.get("/api/v1/config/diff", params={"from": 1})
    change = {"path": f"{LONG}/CPUTime", "change": "changed", "before": 100000, "after": 5}
    assert answer.json() == {"from_version": 1, "to_version": 2, "changes": [change]}
    back = service.operator().get("/api/v1/config/diff", params={"from": 2, "to": 1}).json()["changes"]
    assert [each["after"] for each in back] == [100000, 8000]
    assert cms.get("/api/v1/config/diff", params={"from": 9}).status_code == 404


def test_a_vo_admin_goes_back_in_his_own_sections(service: Service, cms, dune):
    patch(cms, {f"{LONG}/VOs/cms/MaxRAM": 7000}, 1)
    patch(dune, {f"{SHORT}/VOs/dune/MaxRAM": 9000}, 2)
    answer = cms.post("/api/v1/config/rollback", json={"version": 1})
    assert answer.json()["version"] == 4
    assert [each["change"] for each in answer.json()["changes"]] == ["removed"]
    assert queues(dune)["short"]["VOs"] == {"dune": {"MaxRAM": 9000}}
    again = cms.post("/api/v1/config/rollback", json={"version": 1}).json()
    assert again == {"version": 4, "changes": [], "warnings": [], "more_warnings": 0}
    stale = cms.post("/api/v1/config/rollback", json={"version": 1}, headers={"If-Match": "2"})
    assert stale.status_code == 409
    assert "dune" not in stale.text


@pytest.mark.usefixtures("_rates_gain_nothing")
def test_one_admin_stores_some_versions_a_minute_and_others_go_on(service: Service, cms, dune):
    path = "Operations/{}/JobScheduling/HoldTime"
    version = 1
    while (answer := patch(cms, {path.format("cms"): 300 + version}, version)).status_code == 200:
        version = answer.json()["version"]
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0
    assert version > 30
    assert patch(dune, {path.format("dune"): 700}, version).status_code == 200
    assert patch(service.operator(), {path.format("cms"): 77}, version + 1).status_code == 200
