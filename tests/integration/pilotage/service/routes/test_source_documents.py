"""The literal examples of the source documents, verbatim, through the interface that people use.

The CE ad of EGEE's is in `tests/data/glue_ce.ad`; `test_config_ads.py` imports it and exports it again.
"""

import pytest

from pilotage.fabric.manager.grid_job import PulledGridJob
from pilotage.fabric.manager.job_types import SiteLimits, installed_handlers
from tests.support.service import Service

SITE = "LCG.A.org"
AT = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 10**6}

#: What a site advertises with the Requirements of the document, and how many of six jobs then match.
ADVERTISED = {
    "SAM-Grid, 2": ({"MaxMatches": 3, "CurMatches": 0, "Requirements": "(CurMatches < MaxMatches)"}, 3),
    "SAM-Grid, 3.1": (
        {
            "MaxSubmittingJobs": 3,
            "CurrentSubmittingJobs": 1,
            "CurMatches": "CurrentSubmittingJobs",
            "Requirements": "( CurMatches < MaxSubmittingJobs )",
        },
        2,
    ),
    "SAM-Grid, 3.2": (
        {
            "MaxSubmittingAndOutputGatheringJobs": 5,
            "CurrentSubmittingJobs": 1,
            "CurrentGatheringOutputJobs": 1,
            "CurMatches": "CurrentSubmittingJobs + CurrentGatheringOutputJobs",
            "Requirements": "( CurMatches < MaxSubmittingAndOutputGatheringJobs )",
        },
        3,
    ),
    "SAM-Grid, 3.3": (
        {
            "MaxJobs": 10,
            "MaxSubmittingAndOutputGatheringJobs": 4,
            "CurrentJobs": 4,
            "CurrentSubmittingJobs": 1,
            "CurrentGatheringOutputJobs": 1,
            "CurMatches": "CurrentJobs",
            "Requirements": "( CurMatches < MaxJobs ) && (JobsMatchedSinceLastAdvertisement + "
            "CurrentSubmittingJobs + CurrentGatheringOutputJobs) < MaxSubmittingAndOutputGatheringJobs",
        },
        2,
    ),
    "DZero, simplest": ({"CurrentJobs": 4, "MaxJobs": 5, "Requirements": "( CurrentJobs < MaxJobs )"}, 6),
    "DZero, simplest, closed": (
        {"CurrentJobs": 5, "MaxJobs": 5, "Requirements": "( CurrentJobs < MaxJobs )"},
        0,
    ),
    "DZero, circumstance 1": (
        {
            "MaxJobs": 10,
            "MaxSubmittingJobs": 4,
            "CurrentJobs": 8,
            "CurrentSubmittingJobs": 1,
            "CurMatches": "CurrentJobs",
            "Requirements": "( CurMatches < MaxJobs ) && (JobsMatchedSinceLastAdvertisement + "
            "CurrentSubmittingJobs) < MaxSubmittingJobs",
        },
        2,
    ),
    "DZero, circumstance 2": (
        {
            "MaxJobs": 100,
            "MaxSubmittingJobs": 4,
            "CurrentJobs": 8,
            "CurrentSubmittingJobs": 3,
            "CurMatches": "CurrentJobs",
            "Requirements": "( CurMatches < MaxJobs ) && (JobsMatchedSinceLastAdvertisement + "
            "CurrentSubmittingJobs) < MaxSubmittingJobs",
        },
        1,
    ),
}


@pytest.mark.parametrize("example", ADVERTISED)
def test_a_site_that_advertises_the_requirements_gets_as_many_jobs_as_they_allow(
    service: Service, config_text: str, example: str
) -> None:
    said, expected = ADVERTISED[example]
    throttle = "VO: [cms, dune]\n      Throttle: {Policy: expression}"
    service.configure(config_text.replace("VO: [cms, dune]", throttle))
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}] * 6}).raise_for_status()
    # Reservations that an earlier throttle left are gone with two advertisements.
    site = service.as_role("site_admin", site=SITE)
    for _ in range(2):
        site.post(f"/api/v1/sites/{SITE}/advertisement", json=said).raise_for_status()
    answer = service.as_role("gateway", vo="cms", site=SITE).post(
        "/api/v1/matcher/requestJob", json={**AT, "count": 6}
    )
    assert len(answer.json()["matches"]) == expected


RFC = """
[
Executable = "my_executable";
Requirements = [
SoftwareTag = { "AppVersion1","AppVersion2" };
CPUModel = "Intel Xeon";
Memory = 4000;
]
]
"""
#: The same in the other form that the RFC allows.
RFC_CFG = """
Executable = my_executable
Requirements
{
  SoftwareTag = AppVersion1, AppVersion2
  CPUModel = Intel Xeon
  Memory = 4000
}
"""
TERNARY = """
Executable = "my_executable";
Requirements = other.GlueHostBenchmarkSI00 > 500 ?
               other.GlueCEPolicyMaxCPUTime > 1000:
               other.GlueCEPolicyMaxCPUTime > 2000;
"""
#: A value inside the nested ad of EGEE's CE ad, in both forms of requirements.
STORAGE = """
Executable = "my_executable";
Requirements = member("gridftp05.cern.ch", other.CloseStorageElements_name);
"""
STORAGE_AS_RECORD = """
Executable = "my_executable";
Requirements = [ CloseStorageElements_mount = "/mn/SE2" ];
"""
QUEUES = """
Resources:
  Sites:
    LCG.A.org:
      VO: [cms]
      CEs:
        rfc:
          SoftwareTag: AppVersion2
          CPUModel: Intel Xeon
          Queues:
            enough: {MaxRAM: 4000}
            another_tag: {MaxRAM: 4000, SoftwareTag: AppVersion3}
            absent: {MaxRAM: 8000, CPUModel: AMD}
            little: {MaxRAM: 3999}
        glue:
          Queues:
            fast: {GlueHostBenchmarkSI00: 600, GlueCEPolicyMaxCPUTime: 1200}
            slow: {GlueHostBenchmarkSI00: 400, GlueCEPolicyMaxCPUTime: 1200}
            slow_and_long: {GlueHostBenchmarkSI00: 400, GlueCEPolicyMaxCPUTime: 2880}
        storage:
          Queues:
            near: {CloseStorageElements: '{ [ mount = "/mn/SE2"; name = gridftp05.cern.ch ] }'}
            far: {CloseStorageElements: '{ [ mount = "/mn/SE1"; name = gridftp04.cern.ch ] }'}
Operations:
  Defaults: {JobDescription: {Memory: {type: number, resource: MaxRAM}}}
Registry: {VO: {cms: {}}, Groups: {cms_user: {VO: cms}}}
"""


@pytest.mark.parametrize(
    ("jdl", "queues"),
    [
        (RFC, {"rfc/enough"}),
        (RFC_CFG, {"rfc/enough"}),
        (TERNARY, {"glue/fast", "glue/slow_and_long"}),
        (STORAGE, {"storage/near"}),
        (STORAGE_AS_RECORD, {"storage/near"}),
    ],
)
def test_the_job_of_the_document_is_eligible_by_its_rules(
    service: Service, jdl: str, queues: set[str]
) -> None:
    service.configure(QUEUES)
    user = service.user()
    answer = user.post("/api/v1/jobs", json={"jdl": jdl})
    assert answer.status_code == 201, answer.text
    [job_id] = answer.json()["job_ids"]
    listed = user.get(f"/api/v1/jobs/{job_id}/queues").json()["queues"]
    assert {each["queue"].removeprefix("LCG.A.org/") for each in listed} == queues


def test_both_forms_of_the_job_of_the_rfc_have_one_submit_pool(service: Service) -> None:
    service.configure(QUEUES)
    user = service.user()
    pools = set()
    for text in (RFC, RFC_CFG):
        [job_id] = user.post("/api/v1/jobs", json={"jdl": text}).json()["job_ids"]
        pools.add(user.get(f"/api/v1/jobs/{job_id}").json()["submit_pool"])
    assert len(pools) == 1


def test_the_rule_of_thumb_is_250_events_for_each_local_job() -> None:
    described = {"Executable": "mc_runjob", "JobType": "montecarlo", "Events": 2000}
    job = PulledGridJob(job_id=1, epoch=1, lease="l", description=described, queue="LCG.A.org/ce1/long")
    assert installed_handlers()["montecarlo"].number_of_jobs(job, SiteLimits()) == 8
