"""Typical mistakes on a real grid: every explanation names the mistake and the change that helps."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from cs_config.configuration import Configuration
from tests.running_service import Service, running

Json = Mapping[str, Any]
JOB = {"Executable": "/bin/true"}


@pytest.fixture
def service(engine: Engine, tmp_path: Path, osg: Configuration) -> Iterator[Service]:
    with running(engine, tmp_path, osg.source) as service:
        yield service


def requirements(found: Json) -> set[str]:
    return {reason["requirement"] for reason in found["reasons"]}


def helps(found: Json, *words: str) -> Json:
    """The change that is told in these words; it must gain something."""
    told = [each for each in found["changes"] if all(word in each["change"] for word in words)]
    assert told, found["changes"]
    assert all(each["gains"] > 0 for each in told)
    return dict(told[0])


MISTAKES = [
    ({"Requirements": {"SoftwareTag": "AppVersio1"}}, "SoftwareTag", ("AppVersion1", "AppVersio1")),
    ({"Requirements": {"SofwareTag": "AppVersion1"}}, "SofwareTag", ("write SoftwareTag",)),
    ({"Requirements": {"CPUModel": "Intel Xenon"}}, "CPUModel", ("Intel Xeon",)),
    ({"Requirements": {"Memory": 4_000_000}}, "Memory", ("lower Memory",)),
    ({"Requirements": {"OS": "windows"}}, "OS", ("OS",)),
    ({"Requirements": {"Country": "Germany"}}, "Country", ("leave out Country",)),
    (
        {"Requirements": 'other.Country == "DE" && other.MaxRAM > 4000000'},
        "Requirements",
        ("MaxRAM > 4000000",),
    ),
    ({"Requirements": "other.GPUz > 1"}, "Requirements", ("other.GPUz > 1",)),
    ({"Tags": ["gpu"]}, "Tags", ("leave out the tag gpu",)),
    ({"Site": "OSG.CRN.ch"}, "Site", ("OSG.CERN.ch", "instead of OSG.CRN.ch")),
    ({"Site": ["OSG.CERN.ch"], "GridCE": "nosuch.cern.ch"}, "GridCE", ("GridCE",)),
    ({"Site": "OSG.CERN.ch", "Requirements": {"CPUModel": "AMD EPYC"}}, "CPUModel", ("CPUModel",)),
    ({"CPUTime": 500_000, "Site": "OSG.CERN.ch"}, "CPUTime", ("lower CPUTime",)),
    ({"NumberOfProcessors": 1000}, "NumberOfProcessors", ("lower NumberOfProcessors",)),
    ({"GPUs": 64}, "GPUs", ("lower GPUs",)),
    ({"WholeNode": True, "Requirements": {"Memory": 1000}}, "WholeNode", ("WholeNode",)),
    (
        {"BannedSites": ["OSG.CERN.ch", "OSG.KIT.de"], "Requirements": {"SoftwareTag": "AppVersion2"}},
        "BannedSites",
        ("OSG.CERN.ch off BannedSites",),
    ),
    (
        {"Requirements": {"SofwareTag": "AppVersion1", "Memory": 4_000_000}},
        "Memory",
        ("Memory", "SoftwareTag"),
    ),
]


@pytest.mark.parametrize(("said", "requirement", "words"), MISTAKES)
def test_the_mistake_and_its_remedy_are_named(
    service: Service, said: Json, requirement: str, words: tuple[str, ...]
):
    user = service.user()
    found = user.post("/api/v1/explain", json={"jobs": [{**JOB, **said}]}).json()
    assert (found["job_id"], found["eligible_queues"], found["candidate_queues"]) == (None, 0, 210)
    assert requirement in requirements(found)
    helps(found, *words)
    submitted = user.post("/api/v1/jobs", json={"jobs": [{**JOB, **said}]}).json()
    again = user.get(f"/api/v1/jobs/{submitted['job_ids'][0]}/explain").json()
    assert (again["reasons"], again["changes"]) == (found["reasons"], found["changes"])


def test_a_vo_without_rights_is_told_so(service: Service):
    user = service.user(vo="icecube")
    found = user.post("/api/v1/explain", json={"jobs": [{**JOB, "Site": "OSG.CERN.ch"}]}).json()
    assert found["eligible_queues"] == 0
    assert {"VO", "Site"} <= requirements(found)
    helps(found, "admit the VO icecube")
    helps(found, "leave out Site")


def test_a_vo_that_no_queue_is_for_has_no_candidates(service: Service):
    found = service.user(vo="nobody").post("/api/v1/explain", json={"jobs": [JOB]}).json()
    assert (found["eligible_queues"], found["candidate_queues"]) == (0, 0)
    assert "VO" in requirements(found)
    assert "its VO may use no queue at all" in found["now"]


def test_a_platform_that_no_queue_knows_is_named(service: Service):
    found = service.user().post("/api/v1/explain", json={"jobs": [{**JOB, "Platform": "el99"}]}).json()
    assert any("Platform el99" in each for each in found["now"])


def test_memory_that_no_queue_says_to_have_is_named(service: Service):
    found = service.user().post("/api/v1/explain", json={"jobs": [{**JOB, "MinRAM": 4_000_000}]}).json()
    [memory] = [reason for reason in found["reasons"] if reason["requirement"] == "MinRAM"]
    assert memory["only_this"] > 100
    helps(found, "lower MinRAM from 4000000 to")
    assert any("no queue says that it has 4000000 MB" in each for each in found["now"])


def test_an_unknown_site_is_named_with_the_one_that_was_meant(service: Service):
    found = service.user().post("/api/v1/explain", json={"jobs": [{**JOB, "Site": "OSG.CRN.ch"}]}).json()
    assert any("knows no site OSG.CRN.ch" in each and "OSG.CERN.ch" in each for each in found["now"])


def test_what_the_submission_refuses_is_refused_here_too(service: Service):
    user = service.user()
    answer = user.post("/api/v1/explain", json={"jobs": [{**JOB, "Requirements": {"Memory": "much"}}]})
    assert answer.status_code == 400
    two = user.post("/api/v1/explain", json={"jobs": [JOB, JOB]})
    assert two.status_code == 400


def test_a_job_that_the_optimizers_failed_is_explained_from_its_description(service: Service):
    user = service.user()
    said = {**JOB, "Site": "OSG.CERN.ch", "BannedSites": ["OSG.CERN.ch"]}
    [job_id] = user.post("/api/v1/jobs", json={"jobs": [said]}).json()["job_ids"]
    found = user.get(f"/api/v1/jobs/{job_id}/explain").json()
    assert found["status"] == "Failed"
    assert {"Site", "BannedSites"} <= requirements(found)
    assert found["eligible_queues"] == 0


def test_a_job_that_waits_says_that_no_pilot_came_and_who_comes_before_it(service: Service):
    user = service.user()
    first, second = user.post("/api/v1/jobs", json={"jobs": [JOB, JOB]}).json()["job_ids"]
    assert user.get(f"/api/v1/jobs/{first}/explain").json()["now"] == [
        "no pilot of an eligible queue has asked for work in the last 15 minutes"
    ]
    found = user.get(f"/api/v1/jobs/{second}/explain").json()
    assert "1 of the 2 jobs of its task queue are handed out before it" in found["now"]
