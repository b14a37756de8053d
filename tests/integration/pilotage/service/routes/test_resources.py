from typing import Any

import httpx
import pytest

from pilotage.service.routes import pools as routes_pools
from tests.support.service import Service


def test_effective_parameters_of_a_queue_differ_by_vo_and_know_their_origin(service: Service):
    path = "/api/v1/resources/queues/LCG.A.org/ce1/short"
    cms = service.user(vo="cms").get(path).json()
    dune = service.user(vo="dune").get(path).json()
    assert cms["parameters"]["MaxRAM"]["value"] == 4000
    assert cms["parameters"]["MaxRAM"]["level"] == "CE"
    assert dune["parameters"]["MaxRAM"]["value"] == 8000
    assert "dune" in dune["parameters"]["MaxRAM"]["level"]
    assert dune["parameters"]["MaxRAM"]["file"] == "test.yaml"
    assert dune["parameters"]["MaxRAM"]["line"] > 0
    assert service.operator().get(f"{path}?vo=dune").json() == dune
    assert service.user(vo="cms").get(f"{path}?vo=dune").status_code == 403


def test_a_queue_that_does_not_exist_is_404_with_a_suggestion(service: Service):
    answer = service.user().get("/api/v1/resources/queues/LCG.A.org/ce1/lnog")
    assert answer.status_code == 404
    assert answer.json()["error"]["details"]["did_you_mean"] == "LCG.A.org/ce1/long"


def test_queues_are_listed_page_by_page_with_the_values_that_hold_for_every_vo(service: Service):
    user = service.user(vo="dune")
    first = user.get("/api/v1/resources/queues", params={"limit": 2}).json()
    assert first["next"] == "LCG.A.org/ce1/short"
    rest = user.get("/api/v1/resources/queues", params={"limit": 2, "after": first["next"]}).json()
    assert rest["next"] is None
    found = {each["queue"]: each["parameters"] for each in first["queues"] + rest["queues"]}
    assert list(found) == sorted(found)
    assert found["LCG.A.org/ce1/short"]["MaxRAM"] == 4000
    at_site = user.get("/api/v1/resources/queues", params={"site": "LCG.B.org"}).json()["queues"]
    assert [each["queue"] for each in at_site] == ["LCG.B.org/ce2/all"]


def test_queues_are_listed_as_a_vo_gets_them(service: Service):
    path = "/api/v1/resources/queues?vo=dune"
    queues = service.user(vo="dune").get(path).json()["queues"]
    found = {each["queue"]: each["parameters"] for each in queues}
    assert set(found) == {"LCG.A.org/ce1/long", "LCG.A.org/ce1/short"}
    assert found["LCG.A.org/ce1/short"]["MaxRAM"] == 8000
    assert service.user(vo="cms").get(path).status_code == 403


def test_an_empty_vo_shows_the_values_that_hold_for_every_vo(service: Service):
    shown = service.user(vo="dune").get("/api/v1/resources/queues/LCG.A.org/ce1/short?vo=").json()
    assert shown["vo"] is None
    assert shown["parameters"]["MaxRAM"]["value"] == 4000


def test_eligible_nodes_come_as_a_tree(service: Service):
    user = service.user()
    body = {"queue": {"Memory": 3000}, "ce": {"MaxRAM": 10000}}
    tree = user.post("/api/v1/resources/getEligibleNodes", json=body).json()
    assert list(tree) == ["LCG.B.org"]
    assert tree["LCG.B.org"]["ce2"]["all"]["CPUModel"] == "Intel Xeon"
    everything = user.post("/api/v1/resources/getEligibleNodes", json={}).json()
    assert set(everything["LCG.A.org"]["ce1"]) == {"long", "short"}
    dune = service.user(vo="dune").post("/api/v1/resources/getEligibleNodes", json={"vo": "dune"}).json()
    assert set(dune) == {"LCG.A.org"}


def test_a_wrong_selection_is_400(service: Service):
    user = service.user()
    for body in ({"node": "Qeue"}, {"queue": {"Memory": "much"}}, {"ce": 5}, {"quue": {}}):
        assert user.post("/api/v1/resources/getEligibleNodes", json=body).status_code == 400, body
    assert user.post("/api/v1/resources/getEligibleNodes", json={"vo": "dune"}).status_code == 403


def test_an_operator_without_a_vo_has_to_name_one_for_nodes(service: Service):
    operator = service.operator()
    assert operator.post("/api/v1/resources/getEligibleNodes", json={}).status_code == 400
    assert operator.post("/api/v1/resources/getEligibleNodes", json={"vo": "CMS"}).status_code == 200


def test_equal_requirements_of_two_vos_make_two_pools(service: Service):
    job = {"Executable": "x", "Requirements": {"Memory": 5000}}
    for vo in ("cms", "dune"):
        service.user(vo=vo).post("/api/v1/jobs", json={"jobs": [job]})
    [cms] = service.user(vo="cms").get("/api/v1/pools").json()["pools"]
    [dune] = service.user(vo="dune").get("/api/v1/pools").json()["pools"]
    assert cms["pool_id"] != dune["pool_id"]
    assert (cms["queues"], dune["queues"]) == (["LCG.B.org/ce2/all"], ["LCG.A.org/ce1/short"])
    assert cms["requirements"] == {"Memory": 5000}
    assert cms["jobs"] == {"Waiting": 1}
    assert cms["eligible_queues"] == 1
    assert cms["config_version"] == 1
    assert cms["refreshed_at"] is not None
    operator = service.operator()
    assert len(operator.get("/api/v1/pools").json()["pools"]) == 2
    assert operator.get("/api/v1/pools?vo=DUNE").json()["pools"] == [dune]
    assert operator.get(f"/api/v1/pools/{cms['pool_id']}").json() == cms
    assert service.user(vo="cms").get("/api/v1/pools?vo=dune").json()["pools"] == []


def test_a_pool_of_another_vo_looks_like_none(service: Service):
    job = {"Executable": "x", "Requirements": {"Memory": 5000}}
    service.user(vo="dune").post("/api/v1/jobs", json={"jobs": [job]})
    [pool] = service.operator().get("/api/v1/pools").json()["pools"]
    user = service.user(vo="cms")
    theirs, none = user.get(f"/api/v1/pools/{pool['pool_id']}"), user.get(f"/api/v1/pools/{'0' * 64}")
    assert theirs.status_code == none.status_code == 404
    assert theirs.text.replace(pool["pool_id"], "") == none.text.replace("0" * 64, "")


@pytest.mark.parametrize("characters", [2_000_000, 150, 1])
def test_pools_page_without_gaps(service: Service, monkeypatch: pytest.MonkeyPatch, characters: int):
    monkeypatch.setattr(routes_pools, "_CHARACTERS", characters)
    jobs = [{"Executable": "x", "Requirements": {"Memory": 1000 + number}} for number in range(7)]
    user = service.user()
    user.post("/api/v1/jobs", json={"jobs": jobs})
    found, after = [], ""
    while after is not None:
        page = user.get("/api/v1/pools", params={"limit": 3, "after": after}).json()
        sizes = (len(str(pool["requirements"])) + 40 * len(pool["queues"]) for pool in page["pools"])
        assert len(page["pools"]) == 1 or sum(sizes) <= characters
        found += [pool["pool_id"] for pool in page["pools"]]
        after = page["next"]
    assert len(found) == len(set(found)) == 7


def test_a_site_admin_selects_for_every_vo_at_the_own_site(service: Service):
    admin = service.as_role("site_admin", site="LCG.A.org")
    found = admin.post("/api/v1/resources/getEligibleNodes", json={"vo": "cms", "node": "Site"}).json()
    assert list(found) == ["LCG.A.org"]
    assert admin.post("/api/v1/resources/getEligibleNodes", json={}).status_code == 400


def test_a_site_admin_and_a_user_see_the_pools_of_a_queue(service: Service):
    for vo in ("cms", "dune"):
        job = {"Executable": "x", "Requirements": {"Memory": 1000}}
        service.user(vo=vo).post("/api/v1/jobs", json={"jobs": [job]})
    mine, queue = "LCG.A.org/ce1/short", {"queues": ["LCG.A.org/ce1/short", "LCG.A.org/ce1/shrt"]}

    def ask(client: httpx.Client) -> Any:
        return client.post("/api/v1/matcher/getSubmitPoolsForQueue", json=queue).json()

    every = ask(service.as_role("site_admin", site="LCG.A.org"))
    assert len(every["pools"][mine]) == 2
    assert every["unknown"] == [{"queue": "LCG.A.org/ce1/shrt", "did_you_mean": mine}]
    own = ask(service.user(vo="dune"))["pools"][mine]
    assert len(own) == 1
    assert own[0] in every["pools"][mine]
    refused = service.as_role("site_admin", site="LCG.B.org").post(
        "/api/v1/matcher/getSubmitPoolsForQueue", json={"queues": [mine]}
    )
    assert refused.status_code == 403
