"""Requirements that only nodes can decide, from submission to pilot, over HTTP."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.support.service import Service

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      CEs:
        ce1:
          Queues:
            mixed:
              CPUTime: 100000
              SharedDisk: true
              NodeAttributes: {GlueHostBenchmarkSI00: unknown, RAM: unknown, OS: [el8, el9]}
              Forwarding:
                Vocabulary: Slurm
                Attributes: {RAM: {min: mem, unit: MB}, OS: {features: {el8: el8, el9: el9}}}
            plain: {CPUTime: 100000, RAM: 2000, OS: el9}
Registry:
  VO: {cms: {}}
"""
pytestmark = pytest.mark.config(CONFIG)
MIXED, PLAIN = "LCG.A.org/ce1/mixed", "LCG.A.org/ce1/plain"
Json = Mapping[str, Any]


def submit(service: Service, requirements: object) -> int:
    return service.submit({"Executable": "/bin/true", "Requirements": requirements})[0]


def ask(pilot: httpx.Client, queue: str, facts: object = None) -> Json:
    site, ce, name = queue.split("/")
    body = {"Site": site, "GridCE": ce, "Queue": name, "CPUTime": 100_000}
    answer = pilot.post(
        "/api/v1/matcher/requestJob", json=body if facts is None else {**body, "NodeFacts": facts}
    )
    found: Json = answer.json()
    return {**found, "status": answer.status_code}


def test_of_two_pilots_at_one_queue_the_one_on_the_right_node_gets_the_job(service: Service) -> None:
    job = submit(service, {"RAM": 4000})
    small, large = service.pilot(MIXED), service.pilot(MIXED)
    refused = ask(small, MIXED, {"RAM": 2000})
    assert (refused["reason"], refused["matches"]) == ("node", [])
    assert refused["retry_after"] > 0
    assert ask(small, MIXED)["reason"] == "node"
    assert [match["job_id"] for match in ask(large, MIXED, {"RAM": 4000})["matches"]] == [job]


def test_bad_facts_are_400_and_named(service: Service) -> None:
    refused = ask(service.pilot(MIXED), MIXED, {"RAM": {"MB": 4000}, "OS": [["el8"]]})
    assert refused["status"] == 400
    message = refused["error"]["message"]
    assert "NodeFacts/RAM" in message
    assert "NodeFacts/OS[0]" in message


def test_a_refusal_because_of_the_node_is_counted(service: Service) -> None:
    submit(service, {"RAM": 4000})
    ask(service.pilot(MIXED), MIXED, {"RAM": 2000})
    metrics = service.operator().get("/metrics").text
    assert 'reason="node"' in metrics


def test_the_explanation_knows_what_nodes_may_have(service: Service) -> None:
    job = submit(service, {"RAM": 4000, "OS": "el7"})
    found = service.user().get(f"/api/v1/jobs/{job}/explain").json()
    assert found["eligible_queues"] == 0
    reasons = {reason["requirement"]: reason for reason in found["reasons"]}
    assert reasons["RAM"]["example"] == {"queue": PLAIN, "has": "2000"}
    assert reasons["OS"]["excluded"] == 2
    assert {"el8, el9", "el9"} >= {reasons["OS"]["example"]["has"]}
    assert found["forwarding"] is None


def test_what_holds_a_job_names_the_node(service: Service) -> None:
    job = submit(service, {"RAM": 4000, "SharedDisk": True})
    found = service.user().get(f"/api/v1/jobs/{job}/explain").json()
    assert found["eligible_queues"] == 1
    [held] = [text for text in found["now"] if "node" in text]
    assert "the only eligible queue decides only at the node" in held
    assert "RAM" in held
    assert MIXED in held


def test_forwarding_says_what_is_decided_where(service: Service) -> None:
    job = submit(service, {"RAM": 1500, "OS": "el9"})
    found = service.user().get(f"/api/v1/jobs/{job}/explain?forwarding=true").json()["forwarding"]
    by_queue = {each["example"]: each for each in found}
    assert by_queue[PLAIN]["flags"] == []
    assert by_queue[PLAIN]["left"] is None
    assert len(by_queue[PLAIN]["at_queue"]) == 2
    assert set(by_queue[MIXED]["flags"]) == {"--mem=1500M", "--constraint=el9"}
    assert "RAM" in by_queue[MIXED]["left"]
    body = {"jobs": [{"Executable": "x", "Requirements": {"RAM": 1500}}]}
    foreseen = service.user().post("/api/v1/explain?forwarding=true", json=body).json()
    assert {each["example"] for each in foreseen["forwarding"]} == {MIXED, PLAIN}


def test_a_director_learns_which_pools_need_which_flags(service: Service) -> None:
    pools = []
    for requirements in ({"RAM": 1500}, {"RAM": 1500.2}, {"OS": "el9"}, {"SharedDisk": True}):
        job = submit(service, requirements)
        pools.append(service.user().get(f"/api/v1/jobs/{job}").json()["submit_pool"])
    director = service.as_role("director", vo="cms")
    asked = {"queues": [MIXED, PLAIN, "LCG.A.org/ce1/mixt"]}
    plain = director.post("/api/v1/matcher/getSubmitPoolsForQueue", json=asked).json()
    assert "flags" not in plain
    found = director.post("/api/v1/matcher/getSubmitPoolsForQueue", json={**asked, "flags": True}).json()
    assert {**found, "flags": None} == {**plain, "flags": None}
    groups = {tuple(each["flags"]): each["pools"] for each in found["flags"][MIXED]}
    assert groups[()] == [pools[3]]
    assert groups["--constraint=el9",] == [pools[2]]
    assert sorted(pool for each in groups.values() for pool in each) == sorted(pools)
    assert found["flags"][PLAIN] == [{"flags": [], "pools": sorted(pools[:3])}]
    assert found["unknown"] == [{"queue": "LCG.A.org/ce1/mixt", "did_you_mean": MIXED}]


def test_what_a_site_advertises_is_explained_with_its_age(service: Service) -> None:
    new = CONFIG.replace("OS: [el8, el9]}", "OS: [el8, el9], SAMStation: advertised}")
    config = service.operator().get("/api/v1/config")
    stored = service.operator().put(
        "/api/v1/config", json={"text": new}, headers={"If-Match": config.headers["ETag"]}
    )
    assert stored.status_code == 200, stored.text
    job = submit(service, 'other.SAMStation == "dzero"')
    assert (
        waits_for(service, job)
        == f"exclude it at the only eligible queue ({MIXED}: SAMStation is not advertised)"
    )
    advertised = service.operator().post("/api/v1/sites/LCG.A.org/advertisement", json={"SAMStation": "cdf"})
    assert advertised.status_code == 200, advertised.text
    assert waits_for(service, job).startswith(
        f"exclude it at the only eligible queue ({MIXED}: SAMStation = cdf, advertised by LCG.A.org "
    )
    assert ask(service.pilot(MIXED), MIXED)["reason"] == "no_task_queue"
    service.operator().post("/api/v1/sites/LCG.A.org/advertisement", json={"SAMStation": "dzero"})
    assert waits_for(service, job).startswith("admit it at the only eligible queue")
    assert [match["job_id"] for match in ask(service.pilot(MIXED), MIXED)["matches"]] == [job]


def waits_for(service: Service, job: int) -> str:
    found = service.user().get(f"/api/v1/jobs/{job}/explain").json()
    [text] = [each for each in found["now"] if each.startswith("values that are advertised now ")]
    assert not [each for each in found["now"] if "only at the node" in each]
    return str(text).removeprefix("values that are advertised now ")
