"""Documents of DiracX's match-making specification as jobs and as requests, over HTTP on each database."""

from typing import Any

import pytest

from tests.support import databases
from tests.support.factories.specification_scenarios import SpecificationScenario, read_scenarios
from tests.support.service import Service

SITES = {"SiteA"}.union(*({*each.sites, each.node["site"]} for each in read_scenarios()))
SITE = "{VO: [cms], CEs: {ce: {Queues: {q: {Architecture: x86_64}}}}}"
CONFIG = f"""
Resources: {{Sites: {{{", ".join(f"{site}: {SITE}" for site in sorted(SITES))}}}}}
Registry: {{VO: {{cms: {{}}}}}}
Operations: {{Defaults: {{Limits: {{RequestsPerSecond: 100000}}}}}}
"""
pytestmark = [databases.BOTH, pytest.mark.config(CONFIG)]


def test_jobs_of_all_scenarios_go_to_the_nodes_that_they_fit(service: Service) -> None:
    user = service.user()
    wrong: list[str] = []
    for scenario in read_scenarios():
        answer = user.post("/api/v1/jobs", json={"jobs": [scenario.description]})
        assert answer.status_code == 201, (scenario.name, answer.text)
        [job_id] = answer.json()["job_ids"]
        assert user.get(f"/api/v1/jobs/{job_id}").json()["description"]["requirements"] == scenario.job
        if take(service.pilot(processors=1024), scenario) != ([job_id] if scenario.fits else []):
            wrong.append(scenario.name)
        user.post(f"/api/v1/jobs/{job_id}/kill")
    assert not wrong


def take(pilot: Any, scenario: SpecificationScenario) -> list[int]:
    answer = pilot.post("/api/v1/matcher/requestJob", json=scenario.node)
    assert answer.status_code == 200, (scenario.name, answer.text)
    for match in answer.json()["matches"]:
        assert match["description"]["requirements"] == scenario.job
        assert "CPUTime" not in match["description"], "a pilot would compare it with the time that is left"
    return [match["job_id"] for match in answer.json()["matches"]]


def test_a_misspelt_word_of_a_reserved_prefix_is_a_warning(service: Service) -> None:
    cpu = {"architecture": {"name": "x86_64", "level": "x86-64-v1"}}
    job = {"executable": "x", "requirements": {"wall_time": 60, "cpu": cpu, "tags": "os:debain12"}}
    answer = service.user().post("/api/v1/jobs", json={"jobs": [job]}).json()
    misspelt, stuck = answer["warnings"]
    assert misspelt == "os:debain12: unknown word of a reserved prefix, did you mean os:debian12?"
    assert stuck.startswith("job 1: no queue is eligible: 9 of 9 fail TagExpression, os:debain12; ")


def test_a_document_without_sections_is_a_warning(service: Service) -> None:
    def submit(requirements: dict[str, object]) -> list[str]:
        job = {"executable": "x", "requirements": requirements}
        return list(service.user().post("/api/v1/jobs", json={"jobs": [job]}).json()["warnings"])

    assert any(
        "without a section such as cpu" in text for text in submit({"wall_time": 60, "tags": "os:el9"})
    )
    assert not any("section" in text for text in submit({"wall_time": 60, "OS": "el9"}))


def test_directors_send_pilots_where_only_the_nodes_know_whether_a_job_fits(service: Service) -> None:
    cpu = {"architecture": {"name": "x86_64", "level": "x86-64-v3"}}
    job = {"executable": "x", "requirements": {"wall_time": 60, "cpu": cpu}}
    service.user().post("/api/v1/jobs", json={"jobs": [job]})
    place = {"Site": "SiteA", "GridCE": "ce", "Queue": "q", "CPUTime": 1000}
    resources = [place, place | {"Architecture": "x86_64"}, place | {"Architecture": "aarch64"}]
    found = service.operator().post("/api/v1/matcher/getDemand", json={"resources": resources}).json()
    assert [bool(each) for each in found["resources"]] == [True, True, False]


def test_directors_send_pilots_for_tags_and_work_that_only_the_nodes_measure(service: Service) -> None:
    cpu = {"architecture": {"name": "x86_64", "level": "x86-64-v1"}}
    job = {
        "executable": "x",
        "requirements": {
            "cpu_work_db12": 20_000,
            "cpu": cpu,
            "tags": "cvmfs:lhcb.cern.ch & ~hostfeat:ptrace",
        },
    }
    service.user().post("/api/v1/jobs", json={"jobs": [job]})
    place = {"Site": "SiteA", "GridCE": "ce", "Queue": "q", "CPUTime": 1000, "WallTime": 1000}
    resources = [
        place,
        place | {"Tag": ["cvmfs:lhcb.cern.ch"]},
        place | {"Tag": ["cvmfs:atlas.cern.ch"]},
        place | {"Tag": ["hostfeat:ptrace"]},
        place | {"CPUPowerDB12": 25},
        place | {"CPUPowerDB12": 15},
    ]
    found = service.operator().post("/api/v1/matcher/getDemand", json={"resources": resources}).json()
    assert [bool(each) for each in found["resources"]] == [True, True, False, False, True, False]


def test_an_explanation_tells_what_only_the_nodes_decide(service: Service) -> None:
    cpu = {"architecture": {"name": "x86_64", "level": "x86-64-v3"}}
    job = {"executable": "x", "requirements": {"wall_time": 60, "cpu": cpu, "tags": "hostfeat:io_uring"}}
    user = service.user()
    [job_id] = user.post("/api/v1/jobs", json={"jobs": [job]}).json()["job_ids"]
    now = user.get(f"/api/v1/jobs/{job_id}/explain").json()["now"]
    [text] = [each for each in now if "leave to their nodes" in each]
    assert "CPULevel x86-64-v3" in text
    assert "TagExpression hostfeat:io_uring" in text
    assert "WallTime" not in text
