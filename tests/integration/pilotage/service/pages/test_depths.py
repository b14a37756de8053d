"""Waiting jobs by site and queue in charts, by HTTP and as metrics, and the state of agents."""

from datetime import timedelta

import pytest

from agents import accounting
from cs_config.cache import Cache
from pilotage.service.queries import overview
from pilotage.service.queries.overview import SampledJobs
from pilotage.service.services import utc_now
from taskqueue.accounting import depths
from tests.integration.pilotage.service.pages.test_access import session
from tests.support.service import Service

SITE = "LCG.A.org"


@pytest.fixture(scope="module")
def sampled(service: Service) -> Service:
    service.user(vo="cms").post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}] * 3}).raise_for_status()
    dune = service.user(vo="dune", user="dan")
    dune.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}] * 40}).raise_for_status()
    accounting.sample_depths(service.engine, service.parts.live.current, now=utc_now(), holder="test")
    return service


@pytest.mark.parametrize(
    ("role", "number"), [("operator", 43), ("site_admin", 43), ("vo_admin", 3), ("user", 3)]
)
def test_people_see_the_depth_of_the_vos_that_they_may_count(
    sampled: Service, role: str, number: int
) -> None:
    about = {"site": SITE} if role == "site_admin" else {} if role == "operator" else {"vo": "cms"}
    with session(sampled, role, user="eva", **about) as browser:
        overview, site = browser.get("/").text, browser.get(f"/sites/{SITE}").text
    assert "Waiting jobs that sites could run" in overview
    assert f'"label": "{SITE}"' in overview
    for period in ("24 h", "7 d"):
        assert f"Waiting jobs that its queues could run, {period}" in site
    for label in ("the site", "ce1/long"):
        values = site.partition(f'"label": "{label}"')[2].partition("]")[0]
        assert f" {number}" in values


@pytest.mark.parametrize(("role", "number"), [("operator", 43), ("site_admin", 43), ("user", 3)])
def test_the_same_depths_are_answered_by_http(sampled: Service, role: str, number: int) -> None:
    about = {"site": SITE} if role == "site_admin" else {} if role == "operator" else {"vo": "cms"}
    client = sampled.as_role(role, user="eva", **about)

    def read(query: str) -> dict[str, list[int | None]]:
        answer = client.get(f"/api/v1/accounting/depths?{query}").raise_for_status().json()
        assert all(len(each["jobs"]) == len(answer["begins"]) for each in answer["depths"])
        return {each["scope"]: each["jobs"] for each in answer["depths"]}

    assert number in read("hours=1")[SITE]
    at_site = read(f"site={SITE}")
    assert number in at_site[SITE]
    assert number in at_site[f"{SITE}/ce1/long"]
    assert client.get("/api/v1/accounting/depths?site=LCG.A.ogr").status_code == 404


def test_the_depth_of_each_site_is_a_metric_up_to_a_number_of_series(
    sampled: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, name = sampled.as_role("monitor"), "pilotage_site_runnable_jobs{"
    text = monitor.get("/metrics").text
    assert f'{name}site="{SITE}",vo="dune"}} 40.0' in text
    assert f'{name}site="{SITE}",vo="cms"}} 3.0' in text
    monkeypatch.setattr("pilotage.service.routes.health._MOST_DEPTHS", 1)
    assert monitor.get("/metrics").text.count(name) == 1


def test_pages_count_what_sites_could_run_if_that_is_little_or_the_sample_is_old(
    sampled: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_sampled() -> bool:
        monkeypatch.setattr(overview, "_RUNNABLE", Cache(1))
        found = overview._count_runnable(sampled.parts, None)
        assert found.by_site[SITE] == 43
        return isinstance(found, SampledJobs)

    assert not is_sampled()
    monkeypatch.setattr(overview, "_COUNTED", 0)
    assert is_sampled()
    monkeypatch.setattr(depths, "INTERVAL", timedelta(0))
    assert not is_sampled()


def test_an_optional_agent_is_not_configured_and_not_running(sampled: Service) -> None:
    with session(sampled, "operator", user="root") as browser:
        text = browser.get("/services").text
    row = text.partition('<th scope="row">traces</th>')[2].partition("</tr>")[0]
    assert "not configured" in row
    assert "running" not in row
