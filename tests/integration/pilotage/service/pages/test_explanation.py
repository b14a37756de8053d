"""Why is it waiting: the picture is what the explanation says."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")


def _submit(service: Service, **job: Any) -> int:
    return service.submit({"Executable": "/bin/true", **job})[0]


def _edit(service: Service, edits: dict[str, Any]) -> None:
    headers = {"If-Match": str(service.parts.live.current.version)}
    service.operator().patch("/api/v1/config", json=edits, headers=headers).raise_for_status()


def test_a_job_that_no_queue_fits_shows_what_excludes_them_and_what_helps(
    service: Service, signed_in: SignedIn
) -> None:
    job_id = _submit(service, Requirements={"Memory": 20_000}, CPUTime=50_000)
    told = service.user().get(f"/api/v1/jobs/{job_id}/explain").json()
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{job_id}")
    page.get_by_role("link", name="Why is it waiting?").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Why is job {job_id} waiting?")
    expect(
        page.get_by_text("No queue fits: each of the 3 that its VO may use fails a requirement.")
    ).to_be_visible()
    rows = page.get_by_role("region", name="Requirements").locator("tbody tr")
    expect(rows).to_have_count(len(told["reasons"]))
    for row, reason in zip(rows.all(), told["reasons"], strict=True):
        cells = [cell.strip() for cell in row.locator("th, td").all_text_contents()]
        assert cells[0] == reason["requirement"]
        assert cells[1] == reason["wanted"]
        assert [int(each) for each in cells[3:6]] == [
            reason["excluded"],
            reason["only_this"],
            told["candidate_queues"] - reason["excluded"],
        ]
        assert reason["example"]["queue"] in cells[6]
        width = row.locator("rect").first.get_attribute("width")
        assert width is not None
        assert float(width.rstrip("%")) == pytest.approx(100 * reason["only_this"] / 3, abs=0.01)
    helps = page.get_by_role("region", name="Changes").locator("tbody tr")
    assert helps.locator("th").all_text_contents() == [each["change"] for each in told["changes"]]
    expect(page.get_by_text(f"What would help: {told['changes'][0]['change']}")).to_be_visible()
    picture(page, "why/none")


def test_a_job_that_a_queue_fits_shows_when_it_will_start(service: Service, signed_in: SignedIn) -> None:
    job_id = _submit(service)
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{job_id}/why")
    told = page.get_by_role("region", name="In short")
    expect(told.get_by_text(re.compile("Starts probably|No forecast of its start: "))).to_be_visible()
    picture(page, "why/start")


@pytest.mark.parametrize("name", ["Memory", "MaxRAM"])  # MaxRAM is a keyword of its own, too
def test_one_click_on_what_would_help_edits_the_job(service: Service, signed_in: SignedIn, name: str) -> None:
    job_id = _submit(service, MaxRAM=30_000, Requirements={name: 20_000})
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{job_id}/why")
    page.get_by_role("button", name="Do it").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(f"Job {job_id}")
    [edited] = [
        each
        for each in service.user().get(f"/api/v1/jobs/{job_id}/log").json()["log"]
        if each["minor"] == "Edited"
    ]
    assert edited["application"].startswith(f"{name} 20000 → ")
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["minor_status"] != "No eligible queue"


def test_a_click_that_leaves_no_queue_is_asked_about_before(service: Service, signed_in: SignedIn) -> None:
    job_id = _submit(service, Requirements={"Memory": 20_000})
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{job_id}/why")
    values = page.locator("input[name=set]").first
    values.evaluate("field => { field.value = JSON.stringify({Memory: 64000}); }")  # as it helped a while ago
    page.get_by_role("button", name="Do it").first.click()
    expect(page.get_by_text(f"job {job_id}: with these values no queue is eligible")).to_be_visible()
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["description"]["Requirements"] == {
        "Memory": 20_000
    }
    page.get_by_role("button", name="Edit 1 job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job was edited")
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["description"]["Requirements"] == {
        "Memory": 64_000
    }


def test_a_held_job_is_released_from_the_page_that_names_the_hold(
    service: Service, signed_in: SignedIn
) -> None:
    job_id = _submit(service)
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{job_id}/why")
    release = page.get_by_role("link", name="Release…")
    expect(release).to_have_count(0)
    service.user().post(f"/api/v1/jobs/{job_id}/hold").raise_for_status()
    page.reload()
    release.click()
    page.get_by_role("button", name="Release 1 job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job was released")
    assert service.user().get(f"/api/v1/jobs/{job_id}").json()["status"] == "Waiting"


def test_a_long_address_breaks_within_its_cell(service: Service, signed_in: SignedIn) -> None:
    job_id = _submit(service, Requirements={"Memory": 20_000})
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.set_viewport_size({"width": 1180, "height": 900})
    page.goto(f"/jobs/{job_id}/why")
    region = page.get_by_role("region", name="Requirements", exact=True)
    region.locator("a.address").evaluate_all(
        "links => links.forEach(link => { link.textContent = 'OSG.Example.us/' + 'long_name_'.repeat(8); })"
    )
    assert region.evaluate("region => region.scrollWidth <= region.clientWidth")


def test_a_job_that_fits_says_where_and_what_holds_it_now(service: Service, signed_in: SignedIn) -> None:
    site_admin = service.as_role("site_admin", vo="cms", site="LCG.B.org")
    hostile = "<img src=x onerror=alert(1)>"
    site_admin.post("/api/v1/sites/LCG.B.org/ban", json={"reason": hostile}).raise_for_status()
    job_id = _submit(service, Site="LCG.B.org", Requirements={"Memory": 8000})
    page = signed_in(service, role="vo_admin", vo="cms", user="eve")
    page.goto(f"/jobs/{job_id}/why")
    headline = page.get_by_role("region", name="In short")
    expect(headline).to_contain_text("1 of the 3 queues that its VO may use fits, but LCG.B.org is banned")
    expect(page.get_by_role("listitem").filter(has_text=hostile)).to_be_visible()
    expect(page.get_by_role("region", name="Eligible queues")).to_contain_text("LCG.B.org/ce2/all")
    page.get_by_text("Who decides what").click()
    expect(page.get_by_role("region", name="Decisions")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    picture(page, "why/banned")
    site_admin.post("/api/v1/sites/LCG.B.org/allow").raise_for_status()


def test_the_headline_names_all_places_that_hold_a_job_only_together(service: Service) -> None:
    site_admins = {
        site: service.as_role("site_admin", vo="cms", site=site, user="eva")
        for site in ("LCG.A.org", "LCG.B.org")
    }
    for site, admin in site_admins.items():
        admin.post(f"/api/v1/sites/{site}/ban", json={"reason": "flood"}).raise_for_status()
    found = service.user().get(f"/api/v1/jobs/{_submit(service)}/explain").json()
    banned = "; ".join(
        f"{site} is banned: flood (by eva); only jobs of type Test run there" for site in site_admins
    )
    assert found["headline"] == f"2 of the 3 queues that its VO may use fit, but {banned}."
    assert found["is_held"]
    for site, admin in site_admins.items():
        admin.post(f"/api/v1/sites/{site}/allow").raise_for_status()


def test_the_sites_that_fit_are_named_where_the_vo_wants_it(service: Service, signed_in: SignedIn) -> None:
    job_id = _submit(service, Requirements={"Memory": 8000})
    page = signed_in(service, role="vo_admin", vo="cms", user="eve")
    page.goto(f"/jobs/{job_id}/why")
    named = page.get_by_text("Sites with a queue that fits: LCG.B.org")
    expect(page.get_by_text("1 of the 3 queues that its VO may use fits")).to_be_visible()
    expect(named).to_have_count(0)
    option = "Operations/cms/JobScheduling/NarrowSites"
    _edit(service, {"set": {option: True}})
    try:
        page.reload()
        expect(named).to_be_visible()
        picture(page, "why/sites")
    finally:
        _edit(service, {"remove": [option]})


def test_who_may_read_of_the_vo_sees_why_and_nobody_else_that_there_is_a_job(
    service: Service, signed_in: SignedIn
) -> None:
    job_id = _submit(service, JobName="secret")
    page = signed_in(service, role="site_admin", vo="cms", site="LCG.A.org")
    page.goto(f"/jobs/{job_id}/why")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.get_by_role("link", name=f"Job {job_id}").count() == 0, "it may not see the job itself"
    for who in (
        {"role": "vo_admin", "vo": "dune", "user": "kim"},
        {"role": "user", "vo": "dune", "user": "ada"},
    ):
        answer = signed_in(service, **who).goto(f"/jobs/{job_id}/why")
        assert answer is not None
        assert answer.status == 404


def test_a_job_that_has_ended_waits_no_more(service: Service, signed_in: SignedIn) -> None:
    job_id = _submit(service)
    service.user().post(f"/api/v1/jobs/{job_id}/kill").raise_for_status()
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{job_id}/why")
    headline = page.get_by_role("region", name="In short")
    would = r"It is Killed: it no longer waits\. Submitted now, \d of the \d queues that .* would fit\."
    expect(headline).to_contain_text(re.compile(would))
