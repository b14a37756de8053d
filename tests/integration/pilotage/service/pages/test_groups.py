"""Failures, campaigns, search; the list of jobs with columns, orders and downloads; pilots and their jobs."""

import csv
import io

import pytest
from playwright.sync_api import expect

from taskqueue.jobs import groups, search
from tests.support.factories import archives
from tests.support.servers.chromium import SignedIn, Windows, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")

QUEUE = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000, "PilotStamp": "walker"}
HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture(scope="module")
def failed(service: Service) -> int:
    """A job of ada's that failed with exit code 17, beside two of her campaign that wait."""
    user = service.user("ada", vo="cms")
    jobs = [{"Executable": "x", "JobName": f"b{HOSTILE}", "JobGroup": "calibration", "Site": "LCG.A.org"}]
    [job_id] = user.post("/api/v1/jobs", json={"jobs": jobs}).raise_for_status().json()["job_ids"]
    pilot = service.as_role("pilot", vo="cms", queue="LCG.A.org/ce1/long", stamp="walker")
    [match] = pilot.post("/api/v1/matcher/requestJob", json=QUEUE).raise_for_status().json()["matches"]
    lease = f"/api/v1/leases/{match['lease']}"
    pilot.post(f"{lease}/start", json={}).raise_for_status()
    wrote = archives.tar({"std.err": b"begin\nno such calibration file\n"})
    pilot.put(f"{lease}/output", content=wrote).raise_for_status()
    done = {"status": "Failed", "exit_code": 17, "minor_status": "Application Finished With Errors"}
    pilot.post(f"{lease}/finish", json=done).raise_for_status()
    more = [{"Executable": "x", "JobName": name, "JobGroup": "calibration"} for name in ("a", "c")]
    user.post("/api/v1/jobs", json={"jobs": more}).raise_for_status()
    service.user("ida", vo="dune").post(
        "/api/v1/jobs", json={"jobs": [{"Executable": "x"}]}
    ).raise_for_status()
    return job_id


def test_failures_are_grouped_by_site_and_exit_code_and_lead_to_the_jobs(
    service: Service, signed_in: SignedIn, failed: int
) -> None:
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/failures")
    row = page.get_by_role("row").filter(has_text="LCG.A.org")
    assert row.get_by_role("cell", name="17", exact=True).is_visible()
    picture(page, "groups/failures")
    bar = row.get_by_role("progressbar")
    expect(bar).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 900})
    expect(bar).to_be_hidden()
    page.set_viewport_size({"width": 1280, "height": 900})
    row.get_by_role("rowheader").get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("link", name=str(failed), exact=True)).to_be_visible()
    other = signed_in(service, role="vo_admin", vo="dune", user="kim")
    other.goto("/failures")
    assert other.get_by_text("No job failed").is_visible()


def test_an_empty_page_states_that_only_the_newest_jobs_were_looked_at(
    service: Service, signed_in: SignedIn, failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_FAILED", 1)
    monkeypatch.setattr(groups, "MAX_OF_STATUS", 1)
    page = signed_in(service, role="vo_admin", vo="dune", user="kim")
    page.goto("/failures")
    assert page.get_by_text("among the newest 1 failed ones").is_visible()
    page.goto("/campaigns")
    assert page.get_by_text("None among the newest 1 jobs of each status.").is_visible()
    monkeypatch.setattr(search, "MAX_SCANNED_ROWS", 1)
    page.goto(f"/jobs?ids={failed},{failed + 1}&sort=status")
    assert page.get_by_text("Only part of the jobs is sorted").is_visible()
    assert not page.get_by_text("No such jobs").count()


def test_site_admins_see_what_fails_at_their_site_without_names(
    service: Service, signed_in: SignedIn, failed: int
) -> None:
    page = signed_in(service, role="site_admin", site="LCG.A.org", user="maria")
    page.goto("/failures")
    assert page.get_by_role("row").filter(has_text="17").count() == 1
    assert not page.get_by_role("link", name=str(failed), exact=True).count()
    assert "ada" not in (page.locator("main").text_content() or "")
    page.goto("/")
    assert page.get_by_text("Nothing to report at LCG.A.org").is_visible()
    page = signed_in(service, role="site_admin", site="LCG.B.org", user="otto")
    page.goto("/failures")
    assert page.get_by_text("No job failed").is_visible()


def test_a_campaign_is_one_line(service: Service, signed_in: SignedIn, failed: int) -> None:
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/campaigns")
    row = page.get_by_role("row").filter(has_text="calibration")
    assert row.get_by_role("img").get_attribute("aria-label") == "1 failed, 2 waiting"
    cells = [cell.split()[0] for cell in row.get_by_role("cell").all_text_contents() if cell.split()]
    assert cells[:6] == ["3", "2", "0", "0", "1", "0"]
    picture(page, "groups/campaigns")
    row.get_by_role("link", name="2", exact=True).click()
    expect(page.locator("#jobs tbody tr")).to_have_count(2)


def test_a_campaign_leads_to_the_forecast_of_its_end(
    service: Service, signed_in: SignedIn, failed: int
) -> None:
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/campaigns")
    page.get_by_role("row").filter(has_text="calibration").get_by_role("link", name="Forecast").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("When is calibration done?")
    expect(page.get_by_text("The last of 2 waiting jobs: No forecast of its start")).to_be_visible()
    picture(page, "groups/end")


def test_a_failed_job_shows_its_standard_error_and_leads_to_its_pilot_and_back(
    service: Service, signed_in: SignedIn, failed: int
) -> None:
    for role in ({"role": "user", "user": "ada"}, {"role": "vo_admin", "user": "eve"}):
        page = signed_in(service, vo="cms", **role)
        page.goto(f"/jobs/{failed}")
        expect(page.get_by_text("no such calibration file")).to_be_visible()
        page.get_by_role("link", name="walker").click()
        page.get_by_role("link", name=str(failed), exact=True).click()
        page.wait_for_url(f"**/jobs/{failed}")
    other = signed_in(service, role="user", vo="cms", user="bob")
    other.goto("/pilots/walker")
    assert other.get_by_role("heading", level=1).text_content() == "Not found"
    assert other.get_by_role("navigation", name="Pages").is_visible(), "an error keeps the frame"


def test_the_search_box_finds_jobs_people_places_and_pilots(
    service: Service, signed_in: SignedIn, failed: int
) -> None:
    page = signed_in(service, role="operator", user="root")
    for word, end in (
        (str(failed), f"/jobs/{failed}"),
        ("walker", "/pilots/walker"),
        ("ada", "/jobs?owner=ada"),
        ("calibration", "/jobs?job_group=calibration"),
        ("alibr", "/jobs?job_group=calibration"),
        ("lcg.b", "/sites/LCG.B.org"),
    ):
        page.goto("/")
        page.get_by_role("searchbox", name="Search").fill(word)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{end}")
    page.goto(f"/search?q={HOSTILE}")
    assert page.get_by_text("Nothing has this name").is_visible()
    user = signed_in(service, role="user", vo="dune", user="ida")
    user.goto(f"/search?q={failed}")
    assert user.get_by_role("heading", name="Search").is_visible()
    assert not user.locator(f"a[href='/jobs/{failed}']").count()
    for wanted in ("walk", "walker"):  # users find no pilots but those that ran only their own jobs
        user = signed_in(service, role="user", vo="cms", user="bob")
        user.goto(f"/search?q={wanted}")
        assert user.get_by_text("Nothing has this name").is_visible()
    user = signed_in(service, role="user", vo="cms", user="ada")
    user.goto("/search?q=walker")
    assert user.url.endswith("/pilots/walker")


def test_the_list_of_jobs_has_the_columns_and_the_order_that_are_chosen(
    service: Service, signed_in: SignedIn, failed: int
) -> None:
    page = signed_in(service, role="operator", user="root")
    page.goto("/jobs")
    assert page.get_by_role("columnheader", name="VO").is_visible()
    page.goto("/jobs?columns=job_name&columns=job_group&vo=cms")
    assert page.get_by_role("columnheader", name="Site").count() == 0
    names = page.locator("#jobs tbody td:nth-child(3)")
    for _ in range(2):
        page.get_by_role("columnheader", name="Name").get_by_role("link").click()
        expect(page.get_by_role("columnheader", name="Name")).to_have_attribute(
            "aria-sort", "ascending" if not _ else "descending"
        )
        shown = [text[0] for text in names.all_text_contents()]
        assert shown == sorted("abc", reverse=bool(_))
    page.goto("/jobs?vo=cms&sort=-job_name&limit=2")
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("#jobs tbody tr")).to_have_count(1)
    page.get_by_label("All on this page").check()
    expect(page.get_by_text("1 ticked.")).to_be_visible()


def test_the_jobs_of_a_filter_are_downloaded(service: Service, signed_in: SignedIn, failed: int) -> None:
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/jobs?job_group=calibration")
    with page.expect_download() as started:
        page.get_by_role("link", name="CSV").click()
    text = started.value.path().read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [int(row["job_id"]) for row in rows][-1] == failed
    assert {row["owner"] for row in rows} == {"ada"}
    answer = page.request.get("/jobs/download?format=json&job_group=calibration")
    assert [each["job_id"] for each in answer.json()] == [int(row["job_id"]) for row in rows]


def test_views_are_kept_and_the_page_tells_when_it_is_not_live(
    service: Service, signed_in: SignedIn, windows: Windows, failed: int
) -> None:
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/jobs?job_group=calibration&submitted_since=2026-01-01")
    page.on("dialog", lambda dialog: dialog.accept("mine"))
    page.get_by_role("button", name="Save this view…").click()
    page.goto("/jobs")
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="mine", exact=True).click()
    page.wait_for_url("**job_group=calibration**")
    page.route("**/jobs?*", lambda route: route.abort())
    page.evaluate("htmx.ajax('GET', '/jobs?x=1', '#jobs').catch(() => {})")
    expect(page.get_by_text("Not live since")).to_be_visible()
    windows.wrong.clear()  # the request that failed


def test_operators_see_which_agents_run_and_what_the_service_lacks(
    service: Service, signed_in: SignedIn
) -> None:
    page = signed_in(service, role="operator", user="root")
    page.goto("/services")
    assert page.get_by_role("row").filter(has_text="lost-jobs").get_by_text("not running").is_visible()
    assert page.get_by_text("Claimer").is_visible()
    picture(page, "overview/services")


def test_a_campaign_is_found_by_a_part_of_its_name_and_says_what_is_stuck(
    service: Service, signed_in: SignedIn
) -> None:
    big = {"Executable": "x", "Requirements": {"Memory": 900000}}
    service.submit(*[{**big, "JobGroup": "Run3_MC_100%"}] * 2, {**big, "JobGroup": "Run3xMC"}, user="sue")
    page = signed_in(service, role="user", vo="cms", user="sue")
    for part, names in (("run3", 2), ("3_mc", 1), ("0%", 1), ("run4", 0)):
        page.goto("/campaigns")
        page.get_by_label("Part of the name").fill(part)
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_role("row").filter(has_text="sue")).to_have_count(names)
    page.goto("/search?q=3_mc")
    expect(page.locator("#jobs tbody tr")).to_have_count(2)
    page.goto("/campaigns?q=3_mc")
    page.get_by_role("link", name="2 stuck: no eligible queue").click()
    expect(page.locator("#jobs tbody tr")).to_have_count(2)
    page.goto("/campaigns?q=3_MC")
    page.get_by_role("link", name="Kill…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Kill 2 jobs?")


def test_copies_with_values_that_leave_no_queue_are_asked_about_before(
    service: Service, signed_in: SignedIn, failed: int
) -> None:
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/resubmit?ids={failed}")
    page.get_by_label("What differs").fill("Memory=64000\nCPUTime=500\n")
    page.get_by_role("button", name="Resubmit 1 job").click()
    expect(page.get_by_text(f"job {failed}: with these values no queue is eligible")).to_be_visible()
    newest = service.user().get("/api/v1/jobs").json()["jobs"][0]["job_id"]
    assert newest == failed + 2, "nothing is copied yet"
    picture(page, "jobs/resubmit-warned")
    page.get_by_role("button", name="Resubmit 1 job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job was submitted again")
    expect(page.get_by_text("no queue is eligible: 3 of 3 fail Memory, at least 64000")).to_be_visible()
    picture(page, "jobs/resubmit-done")
    copy = int(page.locator("main p a").first.text_content() or 0)
    described = service.user().get(f"/api/v1/jobs/{copy}").json()["description"]
    assert (described["CPUTime"], described["Requirements"]["Memory"]) == (500, 64_000)


def test_the_failed_jobs_of_a_campaign_are_submitted_again_with_other_values(
    service: Service, signed_in: SignedIn, failed: int
) -> None:
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/campaigns")
    page.get_by_role("link", name="Resubmit failed…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Resubmit 1 job?")
    picture(page, "jobs/resubmit")
    fields = "input[type=hidden]"
    sent = {
        each.get_attribute("name"): each.input_value() for each in page.locator(f"form.stack {fields}").all()
    }
    page.get_by_label("What differs").fill("Memory=1500\nCPUTime=500\n")
    page.get_by_role("button", name="Resubmit 1 job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job was submitted again")
    copy = int(page.locator("main p a").first.text_content() or 0)
    assert copy > failed
    described = service.user().get(f"/api/v1/jobs/{copy}").json()["description"]
    assert (described["CPUTime"], described["Requirements"]["Memory"]) == (500, 1500)
    own = {"origin": service.url}
    twice = {**sent, "set": "Memory=1500\nCPUTime=500\n"}
    again = page.request.post("/jobs/resubmit", form=twice, headers=own)
    assert f'href="/jobs/{copy}"' in again.text(), "the form was sent twice"
    wrong = page.request.post("/jobs/resubmit", form={**sent, "set": "Memory"}, headers=own)
    assert wrong.status == 400
    assert "write NAME=VALUE, such as Memory=6000" in wrong.text()
