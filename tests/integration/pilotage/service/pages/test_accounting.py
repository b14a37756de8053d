"""The page of the accounts in a browser, as each role; and its plots as pictures of the right sums."""

import csv
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import expect

from pilotage.service.services import utc_now
from taskqueue.db import database
from tests.support.factories import accounted_jobs
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def used(service: Service) -> Service:
    """What several people did in the last days, one of them with a name that wants to be more."""
    engine, now = service.parts.engine, utc_now()
    for days in (0, 1, 3):
        accounted_jobs.a_day(engine, now - timedelta(days=days))
    begun = now - timedelta(hours=5)
    with database.writing(engine) as conn:
        job_ids = accounted_jobs.put(conn, begun, owner=HOSTILE, vo="cms")
        accounted_jobs.finish(conn, accounted_jobs.begin(conn, job_ids, begun), now - timedelta(hours=3))
    accounted_jobs.count(engine, now)
    return service


def test_the_operator_sees_all_and_looks_deeper(used: Service, signed_in: SignedIn):
    page = signed_in(used, role="operator", user="root")
    page.goto("/")
    page.get_by_role("link", name="Accounting").click()
    expect(page).to_have_title("Accounting – Pilotage")
    row = page.get_by_role("row", name="dune")
    expect(row).to_contain_text("100.0")
    assert row.get_by_role("cell").all_text_contents()[:3] == ["3", "6.0\xa0h", "6.0\xa0h"]
    picture(page, "accounting/jobs")
    page.get_by_role("link", name="cms", exact=True).click()
    expect(page.get_by_role("row", name="LCG.B.org").get_by_role("cell").first).to_have_text("3")
    expect(page.get_by_role("row", name="(none)")).to_have_count(1)  # of jobs that never ran
    assert "vo=cms" in page.url
    assert "by=site" in page.url


@pytest.mark.parametrize("quantity", ["core", "efficiency", "waited"])
def test_every_quantity_is_plotted_with_a_legend(used: Service, signed_in: SignedIn, quantity: str):
    page = signed_in(used, role="operator", user="root")
    page.goto(f"/accounting?by=owner&quantity={quantity}&from=7d")
    plot = page.get_by_role("figure")
    expected = "a pilot" if quantity == "waited" else "ada"
    plot.locator("canvas").wait_for()
    expect(plot.locator(".u-legend").get_by_text(expected)).to_be_visible()
    plot.get_by_text("Numbers").click()
    expect(plot.get_by_role("columnheader", name=expected)).to_be_visible()
    expect(plot.get_by_role("rowheader")).to_have_count(8)
    picture(page, f"accounting/{quantity}")


def test_the_form_leads_to_an_address_that_says_the_same_to_a_colleague(used: Service, signed_in: SignedIn):
    page = signed_in(used, role="operator", user="root")
    page.goto("/accounting")
    page.get_by_label("Quantity").select_option("CPU time")
    page.get_by_label("By", exact=True).select_option("Site")
    page.get_by_label("Step").select_option("hour")
    page.get_by_role("textbox", name="VO").fill("dune")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**vo=dune**")
    other = signed_in(used, role="operator", user="someone")
    other.goto(page.url)
    assert other.get_by_role("figure").get_by_text("CPU time hours by hour, UTC").is_visible()
    assert other.get_by_role("rowheader").all_text_contents() == ["LCG.A.org"]
    picture(page, "accounting/filtered")


def test_names_are_shown_as_they_are_and_the_table_can_be_had_for_spreadsheets(
    used: Service, signed_in: SignedIn, tmp_path: Path
):
    page = signed_in(used, role="vo_admin", vo="cms", user="eve")
    page.goto("/accounting?by=owner&from=7d")
    assert page.get_by_role("rowheader", name=HOSTILE).is_visible()
    assert page.locator("img[src=x]").count() == 0
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "accounting.csv")
    rows = list(csv.DictReader((tmp_path / "accounting.csv").read_text().splitlines()))
    assert {row["owner"]: row["jobs"] for row in rows} == {"ada": "9", "bob": "3", HOSTILE: "1"}


def test_each_role_sees_what_concerns_it(used: Service, signed_in: SignedIn):
    user = signed_in(used, role="user", vo="cms", user="ada")
    user.goto("/accounting?by=owner&vo=dune")
    assert user.get_by_text("Nothing was used in this time").is_visible()
    user.goto("/accounting?by=owner")
    assert user.get_by_role("rowheader").all_text_contents() == ["ada"]
    site = signed_in(used, role="site_admin", site="LCG.B.org")
    site.goto("/accounting")
    assert site.get_by_role("rowheader").all_text_contents() == ["cms"]
    assert site.get_by_label("By", exact=True).get_by_role("option").all_text_contents() == [
        "VO",
        "Site",
        "CE",
        "Queue",
        "Status",
    ]
    site.goto("/accounting?by=owner")
    assert "Not allowed" in (site.get_by_role("heading", level=1).text_content() or "")


def test_what_cannot_be_asked_is_said_on_a_page(used: Service, signed_in: SignedIn):
    page = signed_in(used, role="operator", user="root")
    page.goto("/accounting?from=yesterday")
    assert page.get_by_text("is not a time").is_visible()
    page.goto("/accounting?from=99999w&to=9999-12-31&bucket=hour")
    assert page.get_by_role("figure").is_visible()


def test_a_site_admin_sees_on_the_overview_what_ended_over_time(used: Service, signed_in: SignedIn):
    page = signed_in(used, role="site_admin", site="LCG.B.org", user="eva")
    page.goto("/?hours=24")
    for title in ("Jobs that ended, by VO", "Jobs that ended, by status"):
        expect(page.get_by_role("figure", name=title)).to_be_visible()
    page.goto("/?hours=1")
    assert page.locator("main").count() == 1, "also where nothing ended"
