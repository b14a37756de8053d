from typing import Any

import pytest

from cs_config.editing import history
from tests.support.service import Service

LONG = "Resources/Sites/LCG.A.org/CEs/ce1/Queues/long"
QUEUE = "LCG.A.org/ce1/long"


def blame(client, path: str, vo: str | None = None) -> dict[str, dict[str, Any]]:
    answer = client.get("/api/v1/config/blame", params={"path": path} | ({"vo": vo} if vo else {}))
    assert answer.status_code == 200, answer.text
    return {each["path"]: each for each in answer.json()["values"]}


def patch(client, values: dict[str, Any], version: int) -> None:
    answer = client.patch("/api/v1/config", json={"set": values}, headers={"If-Match": str(version)})
    assert answer.status_code == 200, answer.text


def test_an_effective_value_tells_who_wrote_it_when_and_what_it_keeps_away(service: Service):
    jobs = [{"Executable": "x", "Requirements": {"Memory": 3000}}] * 2
    jobs += [{"Executable": "x", "Requirements": {"Memory": 3000, "OS": "el9"}}] * 3
    assert service.user().post("/api/v1/jobs", json={"jobs": jobs}).status_code == 201
    eve = service.as_role("vo_admin", vo="cms", user="eve")
    patch(eve, {f"{LONG}/VOs/cms/MaxRAM": 2000}, 1)
    patch(service.operator(), {f"{LONG}/OS": "el8"}, 2)
    found = blame(service.user(), QUEUE, "cms")
    ram = found["MaxRAM"]
    assert (ram["value"], ram["places"]) == (2000, [f"{LONG}/VOs/cms/MaxRAM"])
    assert ram["origin"].startswith("Queue VOs/cms, version 2")
    assert (ram["since"]["version"], ram["since"]["author"]) == (2, "eve")
    assert ram["excludes"] == {"jobs": 5, "only_this": 2}
    assert found["OS"]["since"]["author"] == "root"
    assert found["OS"]["excludes"] == {"jobs": 3, "only_this": 0}
    assert found["CPUTime"]["since"]["version"] == 1
    assert found["CPUTime"]["excludes"] == {"jobs": 0, "only_this": 0}


def test_who_is_let_in_and_what_is_switched_off_keeps_all_away(service: Service):
    dune = {"jobs": [{"Executable": "x", "Requirements": {"Memory": 10}}]}
    assert service.user(vo="dune").post("/api/v1/jobs", json=dune).status_code == 201
    patch(service.operator(), {"Resources/Sites/LCG.B.org/Enabled": False}, 1)
    found = blame(service.user(vo="dune"), "LCG.B.org/ce2/all", "dune")
    assert found["VO"]["excludes"] == {"jobs": 1, "only_this": 0}
    assert found["Enabled"]["excludes"] == {"jobs": 1, "only_this": 0}


def test_options_tell_whether_they_are_the_vos_own(service: Service):
    dune = service.as_role("vo_admin", vo="dune", user="zoe")
    patch(dune, {"Operations/dune/JobScheduling/HoldTime": 900}, 1)
    found = blame(dune, "Operations", "dune")
    hold, memory = found["JobScheduling/HoldTime"], found["JobDescription/Memory/type"]
    assert hold["places"] == ["Operations/dune/JobScheduling/HoldTime"]
    assert (hold["since"]["version"], hold["since"]["author"]) == (2, "zoe")
    assert memory["places"] == ["Operations/Defaults/JobDescription/Memory/type"]
    assert memory["since"]["version"] == 1


def test_versions_that_were_stored_without_noting_their_paths_are_compared(
    service: Service, config_text: str
):
    service.configure(config_text.replace("MaxRAM: 4000", "MaxRAM: 4500"))  # notes nothing
    service.configure("# a comment\n" + config_text.replace("MaxRAM: 4000", "MaxRAM: 4500"))
    found = blame(service.operator(), QUEUE, "cms")
    assert found["MaxRAM"]["since"]["version"] == 2
    assert found["CPUTime"]["since"]["version"] == 1


def test_of_other_vos_nothing_is_blamed(service: Service):
    cms = service.user(vo="cms")
    for params in (
        {"path": "Operations/dune"},
        {"path": "Operations/dunee"},
        {"path": "Resources/Sites/LCG.A.org/CEs/ce1/Queues/short/VOs/dune"},
    ):
        answer = cms.get("/api/v1/config/blame", params=params)
        assert answer.status_code == 404, params
        assert "MaxRescheduling" not in answer.text
        assert "did you mean" not in answer.text
    assert cms.get("/api/v1/config/blame", params={"path": QUEUE, "vo": "dune"}).status_code == 403
    assert set(blame(cms, "Resources/Sites/LCG.A.org/CEs/ce1/Queues/short")) == {"CPUTime"}


def values(client, path: str, **more: object) -> dict[str, dict[str, Any]]:
    answer = client.get("/api/v1/config/values", params={"path": path, **more})
    assert answer.status_code == 200, answer.text
    return {each["path"]: each for each in answer.json()["values"]}


def test_values_are_shown_as_written_or_as_a_queue_inherits_them(service: Service):
    user = service.user(vo="dune")
    written = values(user, QUEUE)
    inherited = values(user, QUEUE, inherited=True)
    assert set(written) < set(inherited)
    assert inherited["MaxRAM"]["origin"].startswith("CE, test.yaml:")
    assert values(user, "LCG.A.org/ce1/short", vo="dune")["MaxRAM"]["value"] == 8000


def test_values_of_other_vos_are_not_shown(service: Service):
    cms = service.user(vo="cms")
    assert not any("dune" in path for path in values(cms, ""))
    assert any("dune" in path for path in values(service.operator(), ""))
    theirs = cms.get("/api/v1/config/values", params={"path": "Operations/dune"})
    none = cms.get("/api/v1/config/values", params={"path": "Operations/none"})
    assert theirs.status_code == none.status_code == 404
    assert cms.get("/api/v1/config/values", params={"path": QUEUE, "vo": "dune"}).status_code == 403


def test_values_come_in_pages_and_no_path_has_too_many(service: Service, monkeypatch: pytest.MonkeyPatch):
    user = service.user()
    whole = values(user, "")
    monkeypatch.setattr(history, "_MOST_VALUES", 3)
    read, after = [], 0
    while after is not None:
        page = user.get("/api/v1/config/values", params={"path": "", "after": after}).json()
        assert len(page["values"]) <= 3
        read, after = read + page["values"], page["next"]
    assert {each["path"]: each for each in read} == whole
    monkeypatch.setattr(history, "_MOST_BELOW", 5)
    refused = user.get("/api/v1/config/values", params={"path": ""})
    assert refused.status_code == 400
    assert "more than 5 values are there" in refused.json()["error"]["message"]


def test_a_suggestion_is_a_name_that_the_caller_may_see(service: Service):
    def suggest(client, path: str, **vo: str) -> str | None:
        answer = client.get("/api/v1/config/values", params={"path": path, **vo})
        assert answer.status_code == 404, answer.text
        return answer.json()["error"]["details"].get("did_you_mean")

    short = "Resources/Sites/LCG.A.org/CEs/ce1/Queues/short"
    cms, dune = service.user(), service.user(vo="dune")
    assert suggest(cms, "Resourcse") == "Resources"
    assert suggest(dune, f"{short}/VOs/dun") == f"{short}/VOs/dune"
    assert suggest(dune, f"{short}/VOs/dune/MaxRAMM") == f"{short}/VOs/dune/MaxRAM"
    for hidden in ("VOs/dun", "VOs/dune", "VOs/dune/MaxRAMM", "VOs/dune/MaxRAM"):
        assert suggest(cms, f"{short}/{hidden}") is None
        assert suggest(cms, f"{short}/{hidden}", vo="cms") is None
    assert suggest(cms, "Registry/VO/dun", vo="cms") is None
    assert suggest(cms, "Operations/JobDescriptio", vo="cms") == "JobDescription"
    assert suggest(cms, "Operations/dun") is None
    assert suggest(cms, "Operations/dune") is None
