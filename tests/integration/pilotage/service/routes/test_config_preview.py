from typing import Any

import pytest

from matcher.explain import work_budget
from matcher.preview.outlook import NAMES
from tests.support.service import Service

SITE = "Resources/Sites/LCG.A.org"
CE = f"{SITE}/CEs/ce1"


def submit(service: Service, vo: str, requirements: dict[str, Any], count: int = 1) -> list[int]:
    return service.submit(*[{"Executable": "x", "Requirements": requirements}] * count, vo=vo)


def preview(client, values: dict[str, Any] | None = None, *removed: str, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/config/preview", json={"set": values or {}, "remove": removed, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def cms(service: Service):
    return service.as_role("vo_admin", vo="cms", user="eve")


def test_a_vo_admin_sees_which_waiting_jobs_a_change_frees_and_then_they_are_free(service: Service, cms):
    stuck = submit(service, "cms", {"Memory": 20000}, 3)
    submit(service, "cms", {"Memory": 1000}, 2)
    change = {f"{CE}/Queues/long/VOs/cms/MaxRAM": 32000}
    found = preview(cms, change)
    assert found["version"] == 1
    assert found["totals"]["freed_jobs"] == 3
    assert found["jobs"] == {"cms": {"waiting": 5, "stuck": 0, "freed": 3, "gain": 3, "lose": 0}}
    [freed] = found["classes"]
    assert freed["becomes"] == "freed"
    assert (freed["jobs"], freed["example_job"]) == (3, stuck[0])
    assert freed["queues"] == ["LCG.A.org/ce1/long"]
    [pool] = found["pools"]
    assert (pool["waiting"], pool["gained"], pool["lost"]) == (3, ["LCG.A.org/ce1/long"], [])
    assert cms.get("/api/v1/config").json()["version"] == 1
    headers = {"If-Match": "1"}
    assert cms.patch("/api/v1/config", json={"set": change}, headers=headers).status_code == 200
    assert cms.get(f"/api/v1/jobs/{stuck[0]}/explain").json()["eligible_queues"] == 1
    assert preview(cms, change)["totals"] == dict.fromkeys(NAMES, 0)


def test_a_preview_evaluates_the_classes_with_most_jobs_and_no_guard_holds_for_the_others(
    service: Service, cms, monkeypatch: pytest.MonkeyPatch
):
    for memory in range(10):
        submit(service, "cms", {"Memory": 20000 + memory}, 1 + memory)
    monkeypatch.setattr(work_budget, "PREVIEWED", 150)
    change = {f"{CE}/Queues/long/VOs/cms/MaxRAM": 32000}
    found = preview(cms, change)
    assert found["jobs"]["cms"]["waiting"] == 55
    left = found["left_out"]["cms"]
    assert 0 < left["classes"] < 10
    assert found["totals"]["freed_jobs"] == 55 - left["jobs"]
    assert found["totals"]["pools_gaining"] == 10 - left["classes"]
    body = {"set": change, "guard": ["stuck_jobs=0"]}
    refused = cms.patch("/api/v1/config", json=body, headers={"If-Match": "1"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "guard_failed")
    assert "change fewer queues at once" in refused.text
    queue = service.operator().get("/api/v1/resources/queues/LCG.A.org/ce1/long/explain")
    assert queue.json()["left_out"] == {}
    monkeypatch.setattr(work_budget, "PREVIEWED", 100_000)
    assert cms.patch("/api/v1/config", json=body, headers={"If-Match": "1"}).status_code == 200


def test_jobs_whose_last_queue_goes_become_stuck(service: Service):
    submit(service, "cms", {"Memory": 10000}, 2)  # LCG.B.org only
    submit(service, "cms", {"Memory": 1000})
    found = preview(service.operator(), {}, "Resources/Sites/LCG.B.org")
    assert found["totals"]["stuck_jobs"] == 2
    assert found["totals"]["pools_without_queue"] == 1
    assert found["totals"]["pools_losing"] == 2
    assert found["removed_queues"] == ["LCG.B.org/ce2/all"]
    assert [each["without_queue"] for each in found["pools"]] == [True, False]


def test_what_runs_at_a_queue_that_goes_is_counted(service: Service):
    submit(service, "cms", {"Memory": 1000})
    queue = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
    pilot = service.pilot("LCG.A.org/ce1/long")
    assert len(pilot.post("/api/v1/matcher/requestJob", json=queue).json()["matches"]) == 1
    for change, why in (
        ({f"{CE}/Enabled": False}, "it is switched off"),
        ({f"{SITE}/VO": ["dune"]}, "it is not for cms"),
    ):
        found = preview(service.operator(), change)
        assert found["totals"]["running_jobs"] == 1
        [going] = found["running"]
        assert (going["queue"], going["vo"], going["why"]) == ("LCG.A.org/ce1/long", "cms", why)
    assert preview(service.operator(), {}, CE)["running"][0]["why"] == "the queue is removed"
    assert preview(service.operator(), {f"{CE}/MaxRAM": 1})["running"] == []


def test_throttles_and_limits_that_would_bite_at_once_are_told(service: Service):
    submit(service, "cms", {"Memory": 1000})
    queue = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
    service.pilot("LCG.A.org/ce1/long").post("/api/v1/matcher/requestJob", json=queue)
    limit = "Operations/cms/JobScheduling/RunningLimit"
    found = preview(
        service.operator(),
        {
            f"{SITE}/Throttle": {"Policy": "simple", "MaxJobs": 5},
            limit: {"LCG.A.org": {"VO": {"cms": 1}}},
        },
    )
    assert [each["scope"] for each in found["closed"]] == ["LCG.A.org", "LCG.A.org"]
    assert "no fresh advertisement" in found["closed"][0]["why"]
    assert "RunningLimit is 1" in found["closed"][1]["why"]
    loose = {f"{SITE}/Throttle": {"Policy": "simple", "MaxJobs": 5, "Stale": "open"}}
    assert preview(service.operator(), loose)["closed"] == []


def test_a_limit_that_keeps_out_what_it_kept_out_before_closes_nothing(service: Service):
    submit(service, "cms", {"Memory": 1000}, 2)
    queue = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
    for _ in range(2):
        service.pilot("LCG.A.org/ce1/long").post("/api/v1/matcher/requestJob", json=queue)
    limit = f"{SITE}/RunningLimit/VO/cms"
    operator = service.operator()
    assert len(preview(operator, {limit: 2})["closed"]) == 1
    changed = operator.patch("/api/v1/config", json={"set": {limit: 1}}, headers={"If-Match": "1"})
    assert changed.status_code == 200
    assert preview(operator, {limit: 2})["closed"] == []
    of_ce = f"{CE}/RunningLimit/VO/cms"
    assert [each["scope"] for each in preview(operator, {limit: 2, of_ce: 1})["closed"]] == ["LCG.A.org/ce1"]


def test_floors_that_are_lowered_or_go_are_told_and_guarded(service: Service):
    """With what the VO has there, to those who may see the VO; a raised or equal floor is not told."""
    submit(service, "cms", {"Memory": 1000}, 3)
    queue = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
    operator = service.operator()
    floors = {f"{SITE}/Floors/cms": 20, f"{SITE}/Floors/dune": "30%"}
    headers = {"If-Match": "1"}
    assert operator.patch("/api/v1/config", json={"set": floors}, headers=headers).status_code == 200
    service.pilot("LCG.A.org/ce1/long").post("/api/v1/matcher/requestJob", json=queue)
    lower = {"site": "LCG.A.org", "vo": "cms", "before": "20 cores", "cores": 1, "jobs": 2}
    gone = {"site": "LCG.A.org", "vo": "dune", "before": "30 %", "after": None, "cores": 0, "jobs": 0}
    found = preview(operator, {f"{SITE}/Floors/cms": 5}, f"{SITE}/Floors/dune")
    assert found["floors"] == [{**lower, "after": "5 cores"}, gone]
    assert found["totals"]["lowered_floors"] == 2
    assert preview(operator, {}, f"{SITE}/Floors")["floors"] == [{**lower, "after": None}, gone]
    [other_kind] = preview(operator, {f"{SITE}/Floors/cms": "60%"})["floors"]
    assert other_kind["after"] == "60 %"
    assert preview(operator, {f"{SITE}/Floors/cms": 30, f"{SITE}/Floors/dune": "30.0%"})["floors"] == []
    assert preview(operator, {}, SITE)["floors"] == [], "its queues are told"
    cms = service.as_role("vo_admin", vo="cms", user="eve")
    change = {"set": {f"{SITE}/Floors/cms": 5}, "guard": ["lowered_floors=0"]}
    refused = cms.patch("/api/v1/config", json=change, headers={"If-Match": "2"})
    assert "guard lowered_floors=0: there would be 1" in refused.text
    assert preview(cms, change["set"])["floors"] == [{**lower, "after": "5 cores"}]


def test_types_of_waiting_jobs_that_another_order_moves_are_told(service: Service):
    jobs = [{"Executable": "x", "JobType": name} for name in ("MC", "Merge", "Merge", "User")]
    service.submit(*jobs, vo="cms")
    admin = service.as_role("vo_admin", vo="cms", user="eve")
    option = "Operations/cms/JobScheduling/JobPriorities"
    tiers = ["{MC: 2, Reco: 1}", "Merge"]
    found = preview(admin, {option: tiers})["order"]
    assert {each["before"] for each in found} == {"no tier, as there are none"}
    assert [(each["vo"], each["job_type"], each["jobs"], each["after"]) for each in found] == [
        ("cms", "MC", 1, "tier 1 of 2, {MC: 2, Reco: 1}"),
        ("cms", "Merge", 2, "tier 2 of 2, Merge"),
        ("cms", "User", 1, "no tier, after all 2"),
    ]
    headers = {"If-Match": "1"}
    assert admin.patch("/api/v1/config", json={"set": {option: tiers}}, headers=headers).status_code == 200
    assert preview(admin, {option: tiers})["order"] == []
    [moved] = preview(admin, {option: ["{MC: 3, Reco: 1}", "Merge"]})["order"]
    assert (moved["job_type"], moved["after"]) == ("MC", "tier 1 of 2, {MC: 3, Reco: 1}")
    foreign = service.as_role("vo_admin", vo="atlas", user="zoe")
    assert preview(foreign, {"Operations/atlas/JobScheduling/JobPriorities": ["MC"]})["order"] == []


def test_a_site_admin_limits_kinds_of_jobs_at_the_own_site_after_a_preview(service: Service):
    admin = service.as_role("site_admin", site="LCG.A.org", user="sam")
    submit(service, "cms", {"Memory": 1000}, 2)
    queue = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
    pilot = service.pilot("LCG.A.org/ce1/long")
    pilot.post("/api/v1/matcher/requestJob", json=queue)
    change = {f"{SITE}/RunningLimit": {"VO": {"cms": 1}}}
    why = "LCG.A.org has 1 job with VO cms, its own RunningLimit is 1"
    [closed] = preview(admin, change)["closed"]
    assert (closed["scope"], f"LCG.A.org {closed['why']}") == ("LCG.A.org", why)
    headers = {"If-Match": "1"}
    answer = admin.patch("/api/v1/config", json={"set": change}, headers=headers)
    assert answer.status_code == 200, answer.text
    elsewhere = {"Resources/Sites/LCG.B.org/RunningLimit": {"VO": {"cms": 1}}}
    assert admin.patch("/api/v1/config", json={"set": elsewhere}, headers=headers).status_code == 403
    asked = pilot.post("/api/v1/matcher/requestJob", json=queue).json()
    assert asked["reason"] == "limits", asked
    user = service.user(vo="cms")
    job = {"Executable": "x", "Site": "LCG.A.org", "Requirements": {"Memory": 1000}}
    found = user.post("/api/v1/explain", json={"jobs": [job]}).json()
    assert any(why in each for each in found["now"]), found["now"]
    [limit] = user.get("/api/v1/sites/LCG.A.org").json()["limits"]
    assert (limit["of_site"], limit["attribute"], limit["most"], limit["there"]) == (True, "VO", 1, 1)


def test_a_parameter_that_no_job_asks_for_or_every_job_misses_is_told(service: Service):
    submit(service, "cms", {"CPUModel": "Intel Xeon"}, 2)
    site = {f"{SITE}/CPUModell": "Intel Xeon", f"{SITE}/CPUModel": "Intel Xenon", f"{SITE}/MaxRAM": 1}
    found = preview(service.operator(), site)["in_vain"]
    assert {(each["name"], each["jobs"]) for each in found} == {("CPUModell", 0), ("CPUModel", 2)}
    right = {f"{SITE}/CPUModel": "Intel Xeon"}
    assert preview(service.operator(), right)["in_vain"] == []


def test_the_names_in_a_limit_are_no_parameters_that_jobs_might_ask_for(service: Service):
    submit(service, "cms", {"CPUModel": "Intel Xeon"}, 2)
    of_vo = {"VO": {"cms": 1}}
    for name, value in {"Floors": {"cms": 1}, "RunningLimit": of_vo, "MatchingDelay": of_vo}.items():
        assert preview(service.operator(), {f"{SITE}/{name}": value})["in_vain"] == [], name


def test_what_is_probably_not_meant_so_is_told_before_it_is_done(service: Service, cms):
    change = {f"{CE}/Queues/long/VOs/cms/MaxRAMMb": 32000}
    [warning] = preview(cms, change)["warnings"]
    assert warning["path"] == f"{CE}/Queues/long/VOs/cms/MaxRAMMb"
    assert warning["suggestion"] == "MaxRAM"
    assert edit(cms, change) == 200
    assert preview(cms, {f"{CE}/Queues/long/VOs/cms/MaxRAM": 1})["warnings"] == []  # it was there before
    dune = service.as_role("vo_admin", vo="dune")
    assert edit(service.operator(), {f"{CE}/VOs/cms/NumberOfProcessorsX2": 1}) == 200
    assert "cms" not in str(preview(dune, {"Operations/dune/JobScheduling/MaxRescheduling": 2}))


def edit(client, values: dict[str, Any]) -> int:
    version = client.get("/api/v1/config").json()["version"]
    headers = {"If-Match": str(version)}
    return client.patch("/api/v1/config", json={"set": values}, headers=headers).status_code


def test_a_vo_admin_learns_nothing_of_other_vos(service: Service, cms):
    submit(service, "dune", {"Memory": 6000})
    found = preview(cms, {f"{SITE}/VOs/cms/MaxRAM": 1})
    assert found["jobs"] == {}
    assert found["pools"] == []
    answer = cms.post("/api/v1/config/preview", json={"set": {f"{SITE}/VOs/dune/MaxRAM": 1}})
    assert answer.status_code == 403
    whole = cms.post("/api/v1/config/preview", json={"config": {"Resources": {}}})
    assert whole.status_code == 403


def test_a_site_admin_sees_the_numbers_of_every_vo_and_pools_of_his_own(service: Service):
    submit(service, "dune", {"Memory": 3000})
    submit(service, "cms", {"Memory": 3000})
    at_a = service.as_role("site_admin", vo="cms", site="LCG.A.org", user="sam")
    found = preview(at_a, {f"{SITE}/Enabled": False})
    assert found["jobs"]["dune"]["stuck"] == 1
    assert found["jobs"]["cms"]["lose"] == 1
    assert {each["vo"] for each in found["pools"]} == {"cms"}
    assert [each["example_job"] for each in found["classes"]] == [None]


def test_a_guard_refuses_by_itself_and_nothing_is_changed(service: Service, config_text: str):
    submit(service, "cms", {"Memory": 10000}, 2)
    operator = service.operator()
    change = {"set": {"Resources/Sites/LCG.B.org/CEs/ce2/MaxRAM": 9000}, "guard": ["stuck_jobs=0"]}
    headers = {"If-Match": "1"}
    answer = operator.patch("/api/v1/config", json=change, headers=headers)
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["details"]["totals"]["stuck_jobs"]) == ("guard_failed", 2)
    assert "stuck_jobs=0: there would be 2" in error["message"]
    text = {"text": config_text.replace("16000", "9000"), "guard": ["stuck_jobs <= 1"]}
    assert operator.put("/api/v1/config", json=text, headers=headers).status_code == 409
    assert operator.get("/api/v1/config").json()["version"] == 1
    text["guard"] = ["stuck_jobs<=2", "running_jobs=0"]
    assert operator.put("/api/v1/config", json=text, headers=headers).json() == {
        "version": 2,
        "warnings": [],
        "more_warnings": 0,
    }


def test_a_guard_that_is_none_is_400(service: Service):
    operator = service.operator()
    for guard in ("stuck_jobs", "stuck_job=0", "stuck_jobs=x", "stuck_jobs=-1", ""):
        body = {"set": {f"{SITE}/MaxRAM": 1}, "guard": [guard]}
        answer = operator.patch("/api/v1/config", json=body, headers={"If-Match": "1"})
        assert (answer.status_code, "guard" in answer.text) == (400, True), guard
