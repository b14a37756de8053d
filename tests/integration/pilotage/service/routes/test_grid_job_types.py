"""Jobs of types that job managers handle are given to who names the type, and to nobody else."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.schema.tables import scopes
from tests.support.service import Service

CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      CEs:
        ce1: {Queues: {pilots: {}, gate: {JobType: [generic, MonteCarlo]}}}
Operations:
  dune: {JobTypes: {Concatenation: {manager: true}}}
  cms: {JobTypes: {generic: {manager: false}}}
Registry: {VO: {cms: {}, dune: {}}}
"""
pytestmark = pytest.mark.config(CONFIG)
GRID_JOB = {
    "Executable": "gen.sh",
    "JobType": "montecarlo",
    "Arguments": "--events {events}",
    "Events": 2000,
}
AT = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "pilots", "CPUTime": 100_000}


def problems(service: Service, *jobs: dict[str, object]) -> dict[str, str]:
    answer = service.user().post("/api/v1/jobs", json={"jobs": jobs})
    assert answer.status_code == 400, answer.text
    return {each["path"]: each["message"] for each in answer.json()["error"]["details"]["problems"]}


def given(client: httpx.Client, **said: object) -> list[int]:
    answer = client.post("/api/v1/matcher/requestJob", json={**AT, **said})
    assert answer.status_code == 200, answer.text
    return [each["job_id"] for each in answer.json()["matches"]]


def listed(service: Service, **said: object) -> list[int]:
    found = service.operator().post("/api/v1/matcher/getMatchingTaskQueues", json={**AT, **said}).json()
    return [job_id for each in found["task_queues"] for job_id in each["job_ids"]]


def test_only_who_names_the_type_is_given_and_shown_a_grid_job(service: Service) -> None:
    [job_id] = service.submit(GRID_JOB)
    pilot = service.pilot("LCG.A.org/ce1/pilots")
    assert listed(service) == listed(service, JobType="Any") == listed(service, JobType="Merge") == []
    assert given(pilot) == given(pilot, JobType="any") == given(pilot, JobType=["generic"]) == []
    assert listed(service, JobType=["generic", "MonteCarlo"]) == [job_id]
    assert given(pilot, JobType=["generic", "MonteCarlo"]) == [job_id]


def test_a_vo_lists_types_for_itself(service: Service) -> None:
    [of_dune] = service.submit({"Executable": "a", "JobType": "Concatenation"}, vo="dune")
    [of_cms, generic] = service.submit(
        {"Executable": "a", "JobType": "Concatenation"}, {"Executable": "a", "JobType": "generic"}
    )
    assert sorted(listed(service)) == [of_cms, generic]
    assert listed(service, JobType="concatenation", VO="dune") == [of_dune]


def test_an_explanation_leaves_out_the_queues_that_state_other_types(service: Service) -> None:
    service.configure(CONFIG.replace("pilots: {}", "pilots: {}, merging: {JobType: Merge}"))
    [job_id] = service.submit(GRID_JOB)
    user = service.user()
    for found in (
        user.get(f"/api/v1/jobs/{job_id}/explain").json(),
        user.post("/api/v1/explain", json={"jobs": [GRID_JOB]}).json(),
    ):
        assert (found["eligible_queues"], found["candidate_queues"]) == (2, 3)
        [reason] = found["reasons"]
        assert (reason["requirement"], reason["only_this"]) == ("JobType", 1)
        assert "montecarlo, which job managers handle" in reason["wanted"]
        assert reason["example"]["queue"] == "LCG.A.org/ce1/merging"
    path = "/api/v1/resources/queues/LCG.A.org/ce1/{}/explain"
    serves: dict[str, Any] = {
        name: service.operator().get(path.format(name)).json()["serves"]
        for name in ("pilots", "gate", "merging")
    }
    # Any gateway may request the job at a queue without JobType.
    job = {"cms": {"jobs": 1, "classes": 1}}
    assert serves == {"pilots": job, "gate": job, "merging": {}}


def test_an_explanation_states_that_only_a_gateway_takes_the_type(service: Service) -> None:
    service.configure(CONFIG.replace("JobType: [generic, MonteCarlo]", ""))
    found = service.user().post("/api/v1/explain", json={"jobs": [GRID_JOB]}).json()
    assert found["eligible_queues"] == 2
    assert any("only a gateway takes jobs of type montecarlo" in each for each in found["now"])


def test_the_types_that_gateways_advertise_are_shown_and_explained(service: Service) -> None:
    site, gate = service.as_role("site_admin", site="LCG.A.org"), "LCG.A.org/ce1/gate"

    def advertise(*job_types: str) -> None:
        for path in ("", "/ces/ce1", "/ces/ce1/queues/gate"):
            answer = site.post(f"/api/v1/sites/LCG.A.org{path}/advertisement", json={"JobTypes": job_types})
            assert (answer.status_code, answer.json()["warnings"]) == (200, [])

    def blocked() -> list[str]:
        explained = service.user().post("/api/v1/explain", json={"jobs": [GRID_JOB]}).json()
        return [each for each in explained["now"] if "only a gateway" in each]

    assert "handled: no type" in blocked()[0]
    advertise("generic", "Merge")
    assert f"handled: generic, Merge at {gate}" in blocked()[0]
    [shown] = site.get("/api/v1/sites/LCG.A.org").json()["job_types"]
    assert (shown["scope"], shown["job_types"], shown["stale"]) == (gate, ["generic", "Merge"], False)
    # An advertisement does not make a type a job manager's.
    [merge] = service.submit({"Executable": "a", "JobType": "Merge"})
    assert listed(service) == [merge]
    advertise("generic", "MonteCarlo")
    assert blocked() == []
    with database.writing(service.engine) as conn:
        conn.execute(update(scopes).values(advertised_at=utc_now() - timedelta(hours=1)))
    assert "handled: no type" in blocked()[0]
    assert site.get("/api/v1/sites/LCG.A.org").json()["job_types"][0]["stale"]


def test_what_waits_goes_by_the_types_of_now(service: Service) -> None:
    [job_id] = service.submit({"Executable": "a", "JobType": "cdfmc"})
    assert listed(service) == [job_id]
    service.configure(CONFIG.replace("cms: {JobTypes: {", "cms: {JobTypes: {CdfMC: {manager: true}, "))
    assert listed(service) == given(service.pilot("LCG.A.org/ce1/pilots")) == []
    assert listed(service, JobType="cdfmc") == [job_id]


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ({"Arguments": "--events {events}"}, "Arguments"),
        ({"Arguments": ["a", "x{local_job}"], "JobType": "Merge"}, "Arguments"),
        ({"Events": 100, "JobType": "cdfmc"}, "Events"),
        ({"LocalJobs": 12}, "LocalJobs"),
    ],
)
def test_what_only_a_job_manager_understands_is_refused_in_other_jobs(
    service: Service, job: dict[str, object], name: str
) -> None:
    [(path, message)] = problems(service, {"Executable": "a", **job}).items()
    assert path == name
    assert "montecarlo" in message
    assert str(job.get("JobType", "there is no JobType")) in message


def test_braces_of_a_users_own_are_left_alone(service: Service) -> None:
    service.submit({"Executable": "awk", "Arguments": "{print} ${HOME} {0}"})


def test_one_of_many_texts_alike_that_has_an_open_place_is_refused(service: Service) -> None:
    texts = [
        f'Executable = "a"; Arguments = "{said}"; JobName = "{number}";'
        for number, said in enumerate(("one", "two", "{seed}", "three"))
    ]
    answer = service.user().post("/api/v1/jobs", json={"jdls": texts})
    assert answer.status_code == 400
    assert [each["path"] for each in answer.json()["error"]["details"]["problems"]] == ["jobs[2]/Arguments"]
    parametric = {"Executable": "a", "Arguments": "%s", "Parameters": ["one", "{events}"]}
    assert set(problems(service, parametric)) == {"Arguments"}
