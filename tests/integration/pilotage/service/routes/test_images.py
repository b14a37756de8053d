"""Jobs that name a container image, over HTTP on each database: which pilots get them, and why not."""

from typing import Any

import pytest

from tests.support import databases
from tests.support.service import Service

OPEN = "{VO: [cms], CEs: {ce: {Queues: {q: {CPUTime: 1000000}}}}}"
CLOSED = "{VO: [cms], CEs: {ce: {Queues: {q: {Tag: [hostfeat:io_uring], CPUTime: 1000000}}}}}"
CONFIG = f"""
Resources: {{Sites: {{Open: {OPEN}, Closed: {CLOSED}}}}}
Registry: {{VO: {{cms: {{}}}}}}
"""
pytestmark = [databases.BOTH, pytest.mark.config(CONFIG)]
CPU = {"architecture": {"name": "x86_64", "level": "x86-64-v1"}}
DOCUMENT = {"wall_time": 60, "cpu": CPU}
UNPACKED = "/cvmfs/unpacked.cern.ch/registry.hub.docker.com/library/debian:stable"
APPTAINER, REPOSITORY, REMOTE = "hostfeat:apptainer", "cvmfs:unpacked.cern.ch", "image:remote"
HARDWARE = {"Architecture": "x86_64", "CPUFlags": "sse2 cx8 fpu fxsr mmx sse cmov", "WallTime": 1000}


def take(service: Service, *tags: str) -> list[int]:
    place = {"Site": "Open", "GridCE": "ce", "Queue": "q", "CPUTime": 200_000}
    request = place | HARDWARE | ({"Tag": list(tags)} if tags else {})
    answer = service.pilot().post("/api/v1/matcher/requestJob", json=request)
    assert answer.status_code == 200, answer.text
    return [match["job_id"] for match in answer.json()["matches"]]


def submit(service: Service, **body: Any) -> int:
    answer = service.user().post("/api/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    [job_id] = answer.json()["job_ids"]
    return int(job_id)


@pytest.mark.parametrize(
    "body",
    [
        {"jdl": f'[Executable = "x"; Image = "{UNPACKED}"]'},
        {"jobs": [{"Executable": "x", "Image": UNPACKED}]},
        {"jobs": [{"Executable": "x", "Image": UNPACKED, "requirements": DOCUMENT}]},
    ],
    ids=["jdl", "json", "document"],
)
def test_only_a_pilot_that_starts_the_image_gets_its_job(service: Service, body: dict[str, Any]) -> None:
    job_id = submit(service, **body)
    described = service.user().get(f"/api/v1/jobs/{job_id}").json()["description"]
    assert described["Image"] == UNPACKED
    assert take(service) == [], "a pilot of 1.0 states no tags, and would run it without the image"
    assert take(service, REPOSITORY) == []
    assert take(service, APPTAINER) == []
    assert take(service, APPTAINER, "cvmfs:atlas.cern.ch") == []
    assert take(service, APPTAINER, REPOSITORY) == [job_id]


def test_an_image_of_a_registry_needs_a_site_that_allows_it(service: Service) -> None:
    job_id = submit(service, jobs=[{"Executable": "x", "Image": "docker://debian:stable"}])
    assert take(service, APPTAINER, REPOSITORY) == []
    assert take(service, REMOTE) == []
    assert take(service, APPTAINER, REMOTE) == [job_id]


def test_an_image_of_the_sandbox_needs_apptainer_only(service: Service) -> None:
    job_id = submit(service, jobs=[{"Executable": "x", "Image": "own.sif"}])
    assert take(service, APPTAINER) == [job_id]


def test_an_explanation_tells_of_apptainer_and_the_repository(service: Service) -> None:
    job_id = submit(service, jobs=[{"Executable": "x", "Image": UNPACKED}])
    found = service.user().get(f"/api/v1/jobs/{job_id}/explain").json()
    wanted = f"Image needs apptainer: {APPTAINER}, {REPOSITORY}"
    assert any(wanted in text and "what a pilot measures there decides" in text for text in found["now"])
    assert "leave out Image" in str(found)


def test_an_explanation_tells_which_tag_allows_images_of_registries(service: Service) -> None:
    job_id = submit(service, jobs=[{"Executable": "x", "Image": "docker://debian:stable"}])
    found = service.user().get(f"/api/v1/jobs/{job_id}/explain").json()
    assert f"needs apptainer: {REMOTE}, {APPTAINER}" in str(found)
    places = [{"Site": "Open", "GridCE": "ce", "Queue": "q", "CPUTime": 200_000}]
    demand = service.operator().post("/api/v1/matcher/getDemand", json={"resources": places}).json()
    assert not any(demand["resources"]), "the queue does not allow it, so no pilot is sent"


def test_directors_send_pilots_where_nodes_may_have_apptainer(service: Service) -> None:
    submit(service, jobs=[{"Executable": "x", "Image": UNPACKED}])
    places = [{"Site": site, "GridCE": "ce", "Queue": "q", "CPUTime": 200_000} for site in ("Open", "Closed")]
    resources = [places[0], places[1] | {"Tag": ["hostfeat:io_uring"]}]
    found = service.operator().post("/api/v1/matcher/getDemand", json={"resources": resources}).json()
    assert [bool(each) for each in found["resources"]] == [True, False]


@pytest.mark.parametrize(
    ("image", "problem"),
    [("--bind=/", "begins with -"), ("../x.sif", "a part .."), ("ftp://x", "is no image"), ("a b", "blanks")],
)
def test_what_is_no_image_is_refused(service: Service, image: str, problem: str) -> None:
    answer = service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x", "Image": image}]})
    assert answer.status_code == 400
    assert "Image" in answer.text
    assert problem in answer.text


def test_a_default_image_of_the_vo_counts_and_reaches_the_pilot(service: Service) -> None:
    service.configure(
        CONFIG + "Operations: {Defaults: {JobDescription: {Image: {default: 'docker://debian'}}}}\n"
    )
    job_id = submit(service, jobs=[{"Executable": "x"}])
    assert take(service, "other") == []
    assert take(service, APPTAINER, REMOTE) == [job_id]
