from datetime import datetime, timedelta

import pytest
from playwright.sync_api import expect
from sqlalchemy import insert

from agents import accounting
from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.schema.tables import job_flows
from taskqueue.sites import closures
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")
HOSTILE = "<img src=x onerror=document.title='taken'>"


def _count(service: Service) -> None:
    """What the agent does, some time after everything was written."""
    accounting.cycle(service.engine, now=utc_now() + timedelta(minutes=1), holder="test")


def _hour_before(service: Service, begun: datetime) -> None:
    """An hour before that time in which jobs came, ran and ended, as the agent would have counted them."""
    this_minute = begun.replace(second=0, microsecond=0)
    rows = [
        {
            "minute": this_minute - timedelta(minutes=ago),
            "vo": vo,
            "status": status,
            "came": jobs,
            "went": went,
        }
        for ago in range(2, 58)
        for vo, size in (("cms", 60), ("dune", 20))
        for jobs in [size + ago * 7 % 40]
        for status, went in (
            ("Waiting", jobs - ago % 9 + 5),
            ("Matched", jobs),
            ("Running", jobs),
            ("Done", 0),
        )
    ]
    with database.writing(service.engine) as conn:
        conn.execute(insert(job_flows), rows)


@pytest.fixture(scope="module")
def busy(service: Service) -> Service:
    begun = utc_now()
    service.user().post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}] * 3}).raise_for_status()
    stuck = {"Executable": "x", "Requirements": {"Memory": 900000}}
    service.user(vo="dune", user="dan").post("/api/v1/jobs", json={"jobs": [stuck] * 2}).raise_for_status()
    # A pool whose job was killed is no problem.
    killed = {"Executable": "x", "Requirements": {"Memory": 800000}}
    dan = service.user(vo="dune", user="dan")
    [job_id] = dan.post("/api/v1/jobs", json={"jobs": [killed]}).json()["job_ids"]
    dan.post(f"/api/v1/jobs/{job_id}/kill").raise_for_status()
    resource = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100000}
    answer = service.pilot("LCG.A.org/ce1/long").post("/api/v1/matcher/requestJob", json=resource)
    assert answer.json()["matches"]
    service.user(user="bob").post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
    ban = closures.Ban(site="LCG.B.org", reason=HOSTILE, author=HOSTILE, at=utc_now(), until=None)
    with database.writing(service.engine) as conn:
        closures.set_ban(conn, ban)
    _count(service)
    _hour_before(service, begun)
    return service


def test_an_operator_sees_all_vos_and_what_needs_a_look(busy: Service, signed_in: SignedIn):
    page = signed_in(busy, role="operator", user="root")
    page.goto("/")
    rows = page.get_by_role("table", name="Jobs that have not ended").get_by_role("row").all_text_contents()
    assert [row.split()[0] for row in rows[1:]] == ["cms", "dune"]
    assert page.locator("dl a[href='/pools']").inner_text() == "2"
    alarms = page.get_by_role("region", name="Problems")
    assert "2 jobs wait in 1 SubmitPool" in alarms.inner_text()
    assert "LCG.B.org" in alarms.inner_text()
    assert "nobody runs pools" in alarms.inner_text()
    assert page.locator("figure").count() == 2
    plots = page.locator("figure").first.locator(".multiple")
    assert plots.locator("canvas").count() == plots.count() > 1, "one plot for each status"
    page.set_viewport_size({"width": 700, "height": 900})
    expect(page.locator("html")).to_have_js_property("scrollWidth", 700)
    page.set_viewport_size({"width": 1280, "height": 900})
    picture(page, "overview/operator")
    page.get_by_role("link", name="24 h").click()
    page.wait_for_url("**/?hours=24")
    expect(page.get_by_role("figure").get_by_text("every 10 minutes").first).not_to_be_empty()


def test_a_user_sees_his_own_jobs_and_the_numbers_of_his_vo(busy: Service, signed_in: SignedIn):
    page = signed_in(busy, role="user", vo="cms", user="bob")
    page.goto("/")
    own = page.get_by_role("region", name="Your jobs").inner_text()
    assert own.split()[2:4] == ["Waiting", "1"]
    whole = page.get_by_role("region", name="All jobs of cms").inner_text()
    assert whole.split()[4:6] == ["Waiting", "3"]
    picture(page, "overview/user")


@pytest.mark.parametrize(
    ("role", "wishes"),
    [
        ("user", {"vo": "cms", "user": "ada"}),
        ("vo_admin", {"vo": "cms", "user": "eve"}),
        ("site_admin", {"vo": "cms", "site": "LCG.A.org"}),
        ("site_admin", {"site": "LCG.B.org"}),
    ],
)
def test_nobody_else_sees_anything_of_another_vo(busy: Service, signed_in: SignedIn, role, wishes):
    page = signed_in(busy, role=role, **wishes)
    page.goto("/")
    assert page.get_by_role("heading", level=1).inner_text() == "Overview"
    text = page.locator("body").inner_text()
    assert "dune" not in text
    assert "without an eligible queue" not in text
    assert "nobody runs" not in text
    picture(page, f"overview/{role}-{'-'.join(sorted(wishes))}")


def test_the_numbers_refresh_themselves(busy: Service, signed_in: SignedIn):
    page = signed_in(busy, role="user", vo="cms", user="cleo")
    page.goto("/")
    busy.user(user="cleo").post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).raise_for_status()
    page.evaluate("htmx.config.timeout = 0; htmx.ajax('GET', '/?part=numbers', '[data-live]')")
    tile = page.get_by_role("region", name="Your jobs").get_by_role("definition").first
    tile.get_by_text("1").wait_for()


def test_a_part_of_the_page_by_its_address_is_the_page(busy: Service, signed_in: SignedIn):
    page = signed_in(busy, role="vo_admin", vo="cms", user="eve")
    page.goto("/?part=numbers")
    assert page.get_by_role("heading", level=1).inner_text() == "Overview"


def test_jobs_that_do_not_wait_yet_have_a_tile_beside_those_that_do(service: Service, signed_in: SignedIn):
    eve = service.user(user="eve")
    [job_id] = eve.post("/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}).json()["job_ids"]
    eve.post(f"/api/v1/jobs/{job_id}/hold").raise_for_status()
    page = signed_in(service, role="user", user="eve", vo="cms")
    page.goto("/")
    own = page.get_by_role("region", name="Your jobs")
    assert own.get_by_role("term").all_text_contents() == [
        "Checking",
        *("Waiting", "Matched", "Running", "Stalled"),
    ]
    own.get_by_role("link").first.click()
    expect(page.get_by_role("link", name=str(job_id), exact=True)).to_be_visible()
