import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from pilotage.cli.commands import pilots
from tests.integration.pilotage.service.pages.test_access import session
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service, running_on_sqlite

pytestmark = pytest.mark.debian("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"
SITE, QUEUE, OTHER = "LCG.A.org", "LCG.A.org/ce1/long", "LCG.B.org/ce2/all"


@pytest.fixture(scope="module")
def field(service: Service) -> Service:
    """Pilots of two VOs at two sites, of which some got nothing, one broke; a grid job under way."""
    _pilot(service, "cms", "runs", QUEUE, status="Running")
    _pilot(
        service,
        "cms",
        "empty1",
        QUEUE,
        status="Done",
        empty_reason="no_task_queue",
        reason="no work in the last 3 answers: no_task_queue",
    )
    _pilot(service, "cms", "empty2", OTHER, status="Done", empty_reason="limits")
    _pilot(service, "cms", "broke", OTHER, status="Failed", reason=f"exit 1 {HOSTILE}")
    _pilot(service, "dune", "dunes", QUEUE, status="Running")
    wrote = {"stdout": f"Hello {HOSTILE}", "stderr": "No module named pilot"}
    _director(service, "cms").post("/api/v1/pilots/broke/output", json=wrote).raise_for_status()
    job = {"Executable": "x", "JobName": HOSTILE, "CPUTime": 1000}
    service.user("ada", "cms").post("/api/v1/jobs", json={"jobs": [job]}).raise_for_status()
    _take(service)
    return service


def _director(service: Service, vo: str) -> Any:
    return service.as_role("director", vo=vo, user="dora")


def _pilot(service: Service, vo: str, stamp: str, queue: str, **news: str) -> None:
    director = _director(service, vo)
    director.post("/api/v1/pilots", json={"stamp": stamp, "queue": queue}).raise_for_status()
    told = {"reference": f"{stamp}.batch", **news}
    director.post(f"/api/v1/pilots/{stamp}/status", json=told).raise_for_status()


def _take(service: Service) -> None:
    """Let a gateway take the job and tell how its local jobs are."""
    gateway = service.as_role("gateway", vo="cms", site=SITE, user="gate")
    asked = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 100000, "VO": "cms"}
    lease = gateway.post("/api/v1/matcher/requestJob", json=asked).json()["matches"][0]["lease"]
    gateway.post(f"/api/v1/leases/{lease}/start").raise_for_status()
    told = {
        "progress": f"generating {HOSTILE}",
        "phases": [{"name": "generate", "done": 117, "of": 250, "unit": "events"}],
        "local_jobs": {"active": 3, "done": 4, "error": 1},
    }
    gateway.post(f"/api/v1/leases/{lease}/heartbeat", json=told).raise_for_status()


def test_pilots_are_counted_by_queue_and_empty_ones_by_reason(field: Service, signed_in: SignedIn):
    page = signed_in(field, role="vo_admin", vo="cms", user="eve")
    page.goto("/pilots")
    assert page.title() == "Pilots – Pilotage"
    by_queue = page.get_by_role("table").filter(has_text="Quality")
    expect(by_queue.get_by_role("row").filter(has_text="LCG.B.org / ce2")).to_contain_text("0.0")
    assert (
        by_queue.get_by_role("row").filter(has_text="LCG.B.org").get_by_role("cell").nth(0).text_content()
        == "2"
    )
    reasons = page.get_by_role("table").filter(has_text="Last reason received")
    expect(reasons).to_contain_text("no waiting job that it could run")
    expect(reasons).to_contain_text("running limits were full")
    words = page.get_by_text("no work in the last 3 answers: no waiting job that it could run")
    assert words.get_attribute("title") == "no work in the last 3 answers: no_task_queue"
    picture(page, "sites/pilots")


@pytest.fixture
def with_failed_jobs(sqlite_template: Path, tmp_path: Path) -> Iterator[Service]:
    """A pilot at which two jobs failed."""
    with running_on_sqlite(sqlite_template, tmp_path) as service:
        pilot = service.pilot(QUEUE)
        asked = {"Site": SITE, "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
        for _ in service.submit({"Executable": "x"}, {"Executable": "x"}):
            [match] = pilot.post("/api/v1/matcher/requestJob", json=asked).json()["matches"]
            pilot.post(f"/api/v1/leases/{match['lease']}/start", json={}).raise_for_status()
            end = {"status": "Failed", "exit_code": 1}
            pilot.post(f"/api/v1/leases/{match['lease']}/finish", json=end).raise_for_status()
        yield service


def test_failed_jobs_are_told_beside_the_quality_of_a_queue(with_failed_jobs: Service, signed_in: SignedIn):
    """As by command and HTTP: its pilots did their work, whose jobs all failed."""
    page = signed_in(with_failed_jobs, role="operator", user="root")
    page.goto("/pilots")
    row = page.get_by_role("table").filter(has_text="Quality").get_by_role("row").filter(has_text=SITE)
    titles = page.get_by_role("table").filter(has_text="Quality").get_by_role("columnheader")
    shown = dict(zip(titles.all_inner_texts()[1:], row.get_by_role("cell").all_inner_texts(), strict=True))
    [counted] = with_failed_jobs.operator().get("/api/v1/pilots/summary?by=queue").json()["summary"]
    assert (counted["with_jobs"], counted["jobs"], counted["failed_jobs"], counted["quality"]) == (1, 2, 2, 1)
    assert (shown["With jobs"], shown["Jobs"], shown["Failed jobs"]) == ("1", "2", "2")
    assert "100" in shown["Quality"]
    assert {*titles.all_inner_texts()} == {"Queue", *(name.removeprefix("#") for name in pilots.OUTCOMES)}
    picture(page, "sites/pilots-of-failed-jobs")
    page.goto(f"/sites/{QUEUE}")
    told = "Quality: at 100.0 % of them a job ended, well or not. Failed jobs: 2 of 2."
    expect(page.get_by_text("Failed jobs:")).to_have_text(told)
    picture(page, "sites/queue-of-failed-jobs")


def test_failed_pilots_lead_to_what_they_wrote(field: Service, signed_in: SignedIn):
    page = signed_in(field, role="vo_admin", vo="cms", user="eve")
    page.goto("/pilots")
    page.get_by_role("link", name="Only those that failed").click()
    listed = page.get_by_role("table", name="Pilots, the latest change first")
    expect(listed.get_by_role("rowheader")).to_have_text(["broke"])
    expect(listed).to_contain_text(f"exit 1 {HOSTILE}")
    listed.get_by_role("link", name="output").click()
    expect(page.get_by_text(f"Hello {HOSTILE}")).to_be_visible()
    expect(page.get_by_text("No module named pilot")).to_be_visible()
    expect(page.get_by_role("link", name=OTHER)).to_be_visible()
    picture(page, "sites/pilot")


def test_pilots_are_listed_in_pages_the_last_news_first(field: Service, signed_in: SignedIn):
    page = signed_in(field, role="vo_admin", vo="cms", user="eve")
    page.goto("/pilots?limit=2")
    listed = page.get_by_role("table", name="Pilots, the latest change first").get_by_role("rowheader")
    expect(listed).to_have_text(["broke", "empty2"])
    page.get_by_role("link", name="Next page").click()
    expect(listed).to_have_text(["empty1", "runs"])


@pytest.mark.parametrize(
    ("who", "stamps"),
    [
        ({"role": "vo_admin", "vo": "dune"}, {"dunes"}),
        ({"role": "site_admin", "site": SITE}, {"runs", "empty1", "dunes"}),
        ({"role": "operator"}, {"runs", "empty1", "empty2", "broke", "dunes"}),
    ],
    ids=lambda each: each["role"] if isinstance(each, dict) else "",
)
def test_each_sees_the_pilots_of_its_vo_or_site(field: Service, who: dict[str, str], stamps: set[str]):
    with session(field, user="eve", **who) as browser:
        assert (
            set(re.findall(r'<th [^>]*><a [^>]*href="/pilots/([^"]*)"', browser.get("/pilots").text))
            == stamps
        )
        for stamp in ("runs", "empty2", "dunes"):
            assert browser.get(f"/pilots/{stamp}").status_code == (200 if stamp in stamps else 404), stamp


def test_pilots_at_a_queue_are_nothing_for_users(field: Service, signed_in: SignedIn):
    page = signed_in(field, role="user", vo="cms", user="ada")
    page.goto(f"/sites/{QUEUE}")
    assert not page.get_by_role("heading", name="Pilots").count()


def test_a_grid_job_shows_its_phases_and_local_jobs_as_bars(field: Service, signed_in: SignedIn):
    page = signed_in(field, role="user", vo="cms", user="ada")
    page.goto("/managers")
    job = page.get_by_role("article")
    expect(job).to_contain_text(HOSTILE)
    expect(job).to_contain_text("117 of 250 events")
    expect(job.get_by_role("progressbar", name="generate")).to_have_attribute("value", "117")
    expect(job.get_by_role("progressbar", name="local jobs done")).to_have_attribute("max", "8")
    row = page.get_by_role("row").filter(has_text=SITE)
    expect(row).to_contain_text("gateway:")
    picture(page, "sites/managers")


@pytest.mark.parametrize(
    ("who", "jobs"),
    [
        ({"role": "user", "vo": "cms", "user": "bob"}, 0),
        ({"role": "vo_admin", "vo": "dune", "user": "eve"}, 0),
        ({"role": "site_admin", "site": "LCG.B.org", "user": "eva"}, 0),
        ({"role": "site_admin", "site": SITE, "user": "eva"}, 1),
        ({"role": "vo_admin", "vo": "cms", "user": "eve"}, 1),
        ({"role": "operator", "user": "root"}, 1),
    ],
    ids=lambda each: "-".join(each.values()) if isinstance(each, dict) else "",
)
def test_each_sees_the_grid_jobs_that_concern_it(field: Service, who: dict[str, str], jobs: int):
    with session(field, **who) as browser:
        assert browser.get("/managers").text.count("<article") == jobs


@pytest.mark.parametrize("vo", [None, "cms"])
def test_a_site_admin_is_told_how_far_grid_jobs_are_but_whose_they_are_only_in_his_vo(
    field: Service, signed_in: SignedIn, vo: str | None
):
    page = signed_in(field, role="site_admin", site=SITE, user="eva", vo=vo)
    page.goto("/managers")
    job = page.get_by_role("article")
    expect(job).to_contain_text("117 of 250 events")
    heading = job.get_by_role("heading")
    is_told = (HOSTILE in heading.inner_text(), "· ada ·" in job.inner_text())
    assert is_told == ((True, True) if vo else (False, False))
    assert not heading.get_by_role("link").count()
    for address in ("/", f"/sites/{SITE}"):
        page.goto(address)
        there = page.get_by_role("table", name="Jobs held by pilots")
        expect(there.get_by_role("row").filter(has_text="cms")).to_contain_text("1")
        picture(page, f"sites/there-{vo}{'-overview' if address == '/' else ''}")


def test_what_is_live_comes_anew_without_the_rest_of_the_page(field: Service, signed_in: SignedIn):
    page = signed_in(field, role="operator", user="root")
    for address in ("/managers", "/pilots", "/sites", f"/sites/{SITE}", f"/sites/{QUEUE}"):
        page.goto(address)
        part = page.request.get(address, headers={"HX-Request": "true"})
        assert part.ok, address
        assert "data-live" in part.text()
        assert "<nav aria-label" not in part.text()
        assert page.locator("[data-live]").get_attribute("hx-get") == address
