"""Queues that ask who a job is, over HTTP: the document's own checks, with the identity of its token."""

import pytest

from tests.support.service import Service

CONFIG = """
Resources:
  Sites:
    EGEE.Milano.it:
      VO: [cms, dune]
      CEs:
        ce:
          Queues:
            checked:
              GlueCEAccessControlBaseRule: ["VO:dune", ada]
              CloseSE: gridftp05.cern.ch
              AuthorizationCheck: >-
                member(other.CertificateSubject,GlueCEAccessControlBaseRule)
                || member(strcat("VO:",other.VirtualOrganisation), GlueCEAccessControlBaseRule)
              CloseOutputSECheck: >-
                IsUndefined(other.OutputSE) || member(other.OutputSE,GlueCESEBindGroupSEUniqueID)
              SI00: 400
            open: {SI00: 600, Rank: 5}
            slow: {Requirements: other.CPUTime <= 1000, Rank: other.CPUTime * 2}
Registry:
  VO: {cms: {}, dune: {}}
"""
pytestmark = pytest.mark.config(CONFIG)
AT = {"Site": "EGEE.Milano.it", "GridCE": "ce", "CPUTime": 100_000}
JOB = {"Executable": "/bin/true", "CPUTime": 3600}


def submit(service: Service, user: str = "ada", vo: str = "cms", **said: object) -> int:
    return service.submit({**JOB, **said}, user=user, vo=vo)[0]


def given(service: Service, queue: str, vo: str) -> list[int]:
    pilot = service.pilot(f"EGEE.Milano.it/ce/{queue}", vo)
    answer = pilot.post("/api/v1/matcher/requestJob", json={**AT, "Queue": queue})
    assert answer.status_code == 200, answer.text
    return [each["job_id"] for each in answer.json()["matches"]]


def test_the_checks_of_a_queue_see_whose_the_job_is(service: Service):
    bobs = submit(service, "bob")
    assert given(service, "checked", "cms") == []
    adas = submit(service, "ada")
    assert given(service, "checked", "cms") == [adas]
    of_dune = submit(service, "bob", "dune")
    assert given(service, "checked", "dune") == [of_dune]
    assert given(service, "open", "cms") == [bobs]


def test_the_checks_of_a_queue_see_what_the_job_says(service: Service):
    submit(service, OutputSE="elsewhere.org")
    near = submit(service, OutputSE="gridftp05.cern.ch")
    assert given(service, "checked", "cms") == [near]
    assert given(service, "checked", "cms") == []


def test_what_a_queue_asks_is_among_the_reasons(service: Service):
    job_id = submit(service, "bob", OutputSE="elsewhere.org", Site="EGEE.Milano.it")
    found = service.user("bob").get(f"/api/v1/jobs/{job_id}/explain").json()
    assert (found["candidate_queues"], found["eligible_queues"]) == (3, 1)
    reasons = {each["requirement"]: each for each in found["reasons"]}
    assert reasons.keys() == {"AuthorizationCheck", "CloseOutputSECheck", "Requirements of the queue"}
    asked = reasons["Requirements of the queue"]
    assert (asked["wanted"], asked["excluded"], asked["only_this"]) == ("other.CPUTime <= 1000", 1, 1)
    assert asked["example"] == {"queue": "EGEE.Milano.it/ce/slow", "has": "other.CPUTime = 3600"}
    assert "other.VirtualOrganisation = cms" in reasons["AuthorizationCheck"]["example"]["has"]
    foreseen = service.user("ada").post("/api/v1/explain", json={"jobs": [{**JOB, "CPUTime": 500}]}).json()
    assert (foreseen["eligible_queues"], foreseen["reasons"]) == (3, [])


def test_a_queue_tells_what_it_asks_in_vain(service: Service):
    submit(service, "bob")
    submit(service, "ada", CPUTime=500)
    found = service.operator().get("/api/v1/resources/queues/EGEE.Milano.it/ce/slow/explain").json()
    assert found["serves"] == {"cms": {"jobs": 1, "classes": 1}}
    [reason] = found["reasons"]
    assert (reason["requirement"], reason["has"]) == ("Requirements of the queue", "not true of these jobs")
    assert reason["example"]["wanted"] == "other.CPUTime <= 1000"
    assert found["changes"] == [{"offer": "do without `other.CPUTime <= 1000`", "gains": 1, "vos": ["cms"]}]


def test_queues_come_in_the_order_of_the_rank(service: Service):
    def ranked(job_id: int, **query: int) -> list[tuple[str, float | None]]:
        answer = service.user().get(f"/api/v1/jobs/{job_id}/queues", params=query)
        assert answer.status_code == 200, answer.text
        return [(each["queue"].rpartition("/")[2], each["rank"]) for each in answer.json()["queues"]]

    by_speed = submit(service, CPUTime=500, Rank="other.GlueHostBenchmarkSI00 - MY.CPUTime")
    assert ranked(by_speed) == [("open", 100), ("checked", -100), ("slow", None)]
    assert ranked(by_speed, limit=1) == [("open", 100)]
    assert ranked(submit(service, CPUTime=500)) == [("slow", 1000), ("open", 5), ("checked", None)]
    stranger = service.user("eve", "dune").get(f"/api/v1/jobs/{by_speed}/queues")
    assert stranger.status_code == 404


@pytest.mark.parametrize(
    "rank", ["other.GlueHostBenchmarkSI00 - MY.CPUTime", 'other.GlueCEUniqueID == "ce/slow" ? 7 : 3']
)
def test_directors_get_the_ranks_by_job_and_queue(service: Service, rank: str):
    def demand() -> dict[str, list[float | None]]:
        queues = {each["queue"]: each["queue"].split("/") for each in listed}
        resources = [
            {"Site": site, "GridCE": ce, "Queue": queue, "CPUTime": 100_000}
            for site, ce, queue in queues.values()
        ]
        answer = service.operator().post("/api/v1/matcher/getDemand", json={"resources": resources})
        assert answer.status_code == 200, answer.text
        return dict(zip(queues, answer.json()["ranks"], strict=True))

    first = submit(service, CPUTime=500, Rank=rank)
    submit(service, CPUTime=500)  # of the same task queue, where the first counts
    listed = service.user().get(f"/api/v1/jobs/{first}/queues").json()["queues"]
    assert demand() == {each["queue"]: [each["rank"]] if each["rank"] is not None else [] for each in listed}
    service.user().post(f"/api/v1/jobs/{first}/kill")
    assert {queue.rpartition("/")[2]: ranks for queue, ranks in demand().items()} == {
        "slow": [1000],
        "open": [5],
        "checked": [],
    }


def test_a_hostile_rank_is_refused_with_its_place(service: Service):
    text = f'Executable = "x"; Rank = {"(" * 5000}1{")" * 5000};'
    answer = service.user().post("/api/v1/jobs", json={"jdl": text})
    assert answer.status_code == 400
    [problem] = answer.json()["error"]["details"]["problems"]
    assert (problem["line"], "nested deeper" in problem["message"]) == (1, True)
