"""What sites advertise is listed with what reads it, orders queues by Rank, and is warned of if unread."""

import re
from datetime import timedelta

import pytest
from sqlalchemy import update

from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.schema.tables import scopes
from tests.integration.pilotage.service.pages.test_access import session
from tests.support.service import Service

SITE = "LCG.A.org"
FIRST, SECOND, PLAIN = (f"{SITE}/ce{name}/long" for name in "123")
RANK = "other.GlueCEStateFreeCPUs"
CONFIG = """
Resources:
  Sites:
    LCG.A.org:
      CEs:
        ce1:
          NodeAttributes: {GlueCEStateFreeCPUs: advertised}
          Queues: {long: {CPUTime: 100000}}
        ce2:
          NodeAttributes: {GlueCEStateFreeCPUs: advertised}
          Throttle: {Policy: expression, Requirements: 'Load < 5 && CurMatches < 10'}
          Queues: {long: {CPUTime: 100000}}
        ce3:
          Queues: {long: {CPUTime: 100000, GlueCEStateFreeCPUs: 3}}
Registry:
  VO: {cms: {}}
"""
pytestmark = pytest.mark.config(CONFIG)


def advertise(service: Service, scope: str, **values: object) -> list[str]:
    site, ce, *queue = scope.split("/")
    path = f"/api/v1/sites/{site}/ces/{ce}" + "".join(f"/queues/{each}" for each in queue)
    answer = service.operator().post(f"{path}/advertisement", json=values)
    assert answer.status_code == 200, answer.text
    warnings: list[str] = answer.json()["warnings"]
    return warnings


def rank(service: Service, job: int) -> dict[str, float | None]:
    found = service.user().get(f"/api/v1/jobs/{job}/queues").json()["queues"]
    return {each["queue"]: each["rank"] for each in found}


def test_rank_reads_advertised_values_while_they_are_valid(service: Service) -> None:
    [job] = service.submit({"Executable": "x", "Rank": RANK})
    assert rank(service, job) == {PLAIN: 3, FIRST: None, SECOND: None}
    advertise(service, f"{SITE}/ce1", GlueCEStateFreeCPUs=7)
    advertise(service, SECOND, GlueCEStateFreeCPUs=9)
    assert list(rank(service, job).items()) == [(SECOND, 9), (FIRST, 7), (PLAIN, 3)]
    with database.writing(service.engine) as conn:
        conn.execute(update(scopes).values(advertised_at=utc_now() - timedelta(hours=1)))
    assert rank(service, job) == {PLAIN: 3, FIRST: None, SECOND: None}


def test_directors_get_the_ranks_that_sites_advertise(service: Service) -> None:
    service.submit({"Executable": "x", "Rank": RANK})
    advertise(service, f"{SITE}/ce1", GlueCEStateFreeCPUs=7)
    director = service.as_role("director", vo="cms", site=SITE)
    resources = [
        {"Site": SITE, "GridCE": f"ce{name}", "Queue": "long", "CPUTime": 100_000} for name in (1, 3)
    ]
    answer = director.post("/api/v1/matcher/getDemand", json={"resources": resources})
    assert answer.status_code == 200, answer.text
    assert answer.json()["ranks"] == [[7], [3]]


def test_each_value_is_listed_with_what_reads_it(service: Service) -> None:
    advertise(service, f"{SITE}/ce1", GlueCEStateFreeCPUs=7, FreeDisk=[1, 2])
    advertise(service, f"{SITE}/ce2", Load=2, CurrentJobs=4, CurrentPendingJobs=1)
    found = service.user().get(f"/api/v1/sites/{SITE}").json()["advertised"]
    jobs, throttle = "Requirements and Rank of jobs", f"throttle of {SITE}/ce2"
    assert {(each["scope"], each["name"]): each["readers"] for each in found} == {
        (f"{SITE}/ce1", "FreeDisk"): [],
        (f"{SITE}/ce1", "GlueCEStateFreeCPUs"): [jobs],
        (f"{SITE}/ce2", "CurrentJobs"): [throttle],
        (f"{SITE}/ce2", "CurrentPendingJobs"): [],
        (f"{SITE}/ce2", "Load"): [throttle],
    }
    assert [each["name"] for each in found if each["declared"]] == ["GlueCEStateFreeCPUs"]
    assert [each["value"] for each in found[:2]] == [[1, 2], 7]
    assert {each["stale"] for each in found} == {False}
    assert service.user().get("/api/v1/sites").json()["sites"][0]["advertised"] is None


def test_the_page_of_a_site_shows_them(service: Service) -> None:
    advertise(service, f"{SITE}/ce1", GlueCEStateFreeCPUs=7, FreeDisk=[1, 2])
    with session(service, "site_admin", site=SITE) as browser:
        page = re.sub(r"\s+", " ", browser.get(f"/sites/{SITE}").text)
    assert '<td>FreeDisk</td><td class="said">1, 2</td>' in page
    assert "<td>no</td><td>nothing</td>" in page


def test_a_name_that_nothing_reads_is_warned_of(service: Service) -> None:
    [warning] = advertise(service, f"{SITE}/ce1", GlueCEStateFreeCPUs=7, FreeDisk=5, CurrentJobs=1)
    assert warning.startswith(f"FreeDisk: nothing reads it, no job can require it: no queue in {SITE}/ce1")
    assert "NodeAttributes: {FreeDisk: advertised}" in warning
    assert advertise(service, f"{SITE}/ce2", Load=2, gluecestatefreecpus=1) == []
