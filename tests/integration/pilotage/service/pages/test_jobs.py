"""The pages of jobs in a browser, as each role."""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from agents import lost_jobs
from cs_config.versions import store
from pilotage.service.pages import jobs as pages_jobs
from taskqueue.db import database
from taskqueue.jobs import jobs
from tests.support.factories import archives, stored_rows
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")

HOSTILE = '<img src=x onerror="document.title=1">'
LONG = {"Site": "LCG.A.org", "GridCE": "ce1", "Queue": "long", "CPUTime": 100_000}


def _submit(service: Service, *jobs: Mapping[str, Any], user: str = "ada", vo: str = "cms") -> list[int]:
    return service.submit(*({"Executable": "/bin/true", **job} for job in jobs), user=user, vo=vo)


def _shown(page: Page) -> list[int]:
    ids = page.locator("#jobs tbody th").all_text_contents()
    return [int(each) for each in ids]


def _expect_jobs(page: Page, ids: Sequence[int]) -> None:
    """Wait until these are shown, in this order."""
    expect(page.locator("#jobs tbody th")).to_have_text([str(each) for each in ids])


DETAILS = {"Run": 17, "Book": "https://book.example.org/7", "Bad": "javascript:alert(1)"}


def _take(service: Service, job_id: int) -> tuple[httpx.Client, str]:
    """A pilot that gets this job, and the address of its lease."""
    pilot = service.pilot("LCG.A.org/ce1/long")
    wanted = {**LONG, "JobID": job_id}
    [match] = pilot.post("/api/v1/matcher/requestJob", json=wanted).raise_for_status().json()["matches"]
    return pilot, f"/api/v1/leases/{match['lease']}"


def _run(service: Service, job_id: int, *, output: bytes | None = None, **progress: Any) -> None:
    """This job, from start to end."""
    pilot, lease = _take(service, job_id)
    pilot.post(f"{lease}/start", json={}).raise_for_status()
    pilot.post(f"{lease}/heartbeat", json=progress).raise_for_status()
    noted = {"application_status": "Event 7", "parameters": {"Local batch id": HOSTILE}}
    pilot.post(f"{lease}/note", json=noted).raise_for_status()
    about = {
        "tries": 2,
        "reference": "4711",
        "message": HOSTILE,
        "details": DETAILS,
        "started_at": "2026-03-28T12:00:00Z",
    }
    states = [state for state, number in progress.get("local_jobs", {}).items() for _ in range(number)]
    local_jobs = [{"number": n, "state": state, **about} for n, state in enumerate(states, 1)]
    service.operator().put(f"{lease}/local-jobs", json={"local_jobs": local_jobs}).raise_for_status()
    if output is not None:
        pilot.put(f"{lease}/output", content=output).raise_for_status()
        pilot.post(f"{lease}/finish", json={"status": "Done", "exit_code": 0}).raise_for_status()


def test_each_retry_by_a_rule_stands_on_the_page(service: Service, signed_in: SignedIn) -> None:
    [job_id] = _submit(service, {"MinRAM": 1000, "Retry": "137: Memory x 1.5, twice; any failure: never"})
    for exit_code in (137, 137, 2):
        pilot, lease = _take(service, job_id)
        pilot.post(f"{lease}/start", json={}).raise_for_status()
        end = {"status": "Failed", "exit_code": exit_code}
        pilot.post(f"{lease}/finish", json=end).raise_for_status()
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{job_id}")
    lines = page.get_by_role("region", name="Retries by rules").get_by_role("listitem")
    expect(lines).to_have_count(2)
    expect(lines.first).to_contain_text("exit code 137; MinRAM 1000 → 1500; retry 1 of 2")
    expect(lines.last).to_contain_text("MinRAM 1500 → 2250; retry 2 of 2")
    picture(page, "jobs/retries")


def test_what_a_job_that_waited_long_gave_up_stands_on_the_page(
    service: Service, signed_in: SignedIn
) -> None:
    rules = ["after 2 h: Memory x 0.5", "after 3 h: without Memory"]
    [job_id] = _submit(service, {"Requirements": {"Memory": 16_000}, "Relax": rules})
    with database.reading(service.engine) as conn:
        config = store.load_version(conn)
        submitted_at = jobs.get_job(conn, job_id).submitted_at
    later = submitted_at + timedelta(hours=2.5)
    stored_rows.service_up(service.engine, submitted_at, later, process="another")
    stored_rows.watched(service.engine, submitted_at, later, vo="cms")
    result = lost_jobs.cycle(service.engine, config, now=later, holder="test")
    assert result is not None
    assert result.relaxed == 1
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{job_id}")
    lines = page.get_by_role("region", name="Given up by rules").get_by_role("listitem")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("after 2 h: Memory 16000 → 8000")
    picture(page, "jobs/relaxed")


def test_the_list_is_filtered_sorted_and_paged_by_its_address(service: Service, signed_in: SignedIn) -> None:
    ids = _submit(service, *[{"JobName": f"list{n % 2}", "JobGroup": "listed"} for n in range(7)])
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/jobs?job_group=listed&limit=3")
    _expect_jobs(page, ids[:-4:-1])
    page.get_by_role("link", name="Next page").click()
    _expect_jobs(page, ids[3:0:-1])
    page.get_by_role("link", name="First page").click()
    page.get_by_role("link", name="Job ▾").click()
    _expect_jobs(page, ids[:3])
    page.get_by_role("textbox", name="Name").fill(" list1 ")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**job_name=+list1+**")
    _expect_jobs(page, ids[1::2])
    page.get_by_label("Job ids").fill(f"{ids[0]}, {ids[1]} {ids[2]}")
    page.get_by_role("button", name="Filter").click()
    _expect_jobs(page, [ids[1]])
    page.get_by_role("link", name="Clear").click()
    page.wait_for_url(f"{service.url}/jobs")


def test_the_numbers_of_each_status_lead_to_these_jobs(service: Service, signed_in: SignedIn) -> None:
    ids = _submit(service, *[{"JobGroup": "counted"}] * 3)
    service.user().post(f"/api/v1/jobs/{ids[0]}/kill").raise_for_status()
    page = signed_in(service, role="vo_admin", vo="cms", user="eve")
    page.goto("/jobs?job_group=counted")
    chips = page.get_by_role("navigation", name="By status").get_by_role("link")
    expect(chips).to_have_text(["All 3", "Waiting 2", "Killed 1"])
    chips.nth(2).click()
    _expect_jobs(page, [ids[0]])
    expect(chips).to_have_text(["All 3", "Waiting 2", "Killed 1"])
    picture(page, "jobs/list")


def test_ticked_jobs_are_killed_after_the_page_has_said_how_many(
    service: Service, signed_in: SignedIn
) -> None:
    ids = _submit(service, *[{"JobGroup": "doomed"}] * 3)
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/jobs?job_group=doomed")
    for job_id in ids[:2]:
        page.get_by_label(f"Job {job_id}").check()
    page.get_by_role("button", name="Kill…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Kill 2 jobs?")
    picture(page, "jobs/change")
    page.get_by_role("button", name="Kill 2 jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 jobs were killed")
    page.get_by_role("link", name="Back to the list").click()
    expect(page.locator("#jobs .status[data-status=killed]").nth(1)).to_be_visible()
    page.goto("/jobs?job_group=doomed&status=Waiting")
    _expect_jobs(page, ids[2:])


def test_all_that_match_are_rescheduled_and_what_cannot_be_is_said(
    service: Service, signed_in: SignedIn
) -> None:
    ids = _submit(service, *[{"JobGroup": "again"}] * 3)
    service.user().post(f"/api/v1/jobs/{ids[0]}/kill").raise_for_status()
    page = signed_in(service, role="vo_admin", vo="cms", user="eve")
    page.goto("/jobs?job_group=again")
    page.get_by_role("link", name="Reschedule all…").click()
    page.get_by_role("button", name="Reschedule 2 jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 jobs were rescheduled")
    page.goto(f"/jobs/change?do=reschedule&ids={ids[0]}")
    expect(page.get_by_text("None of these jobs can be rescheduled")).to_be_visible()


def test_jobs_are_deleted_from_the_list(service: Service, signed_in: SignedIn) -> None:
    ids = _submit(service, *[{"JobGroup": "unwanted"}] * 2)
    service.user().post(f"/api/v1/jobs/{ids[0]}/kill").raise_for_status()
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/jobs/{ids[0]}")
    expect(page.get_by_role("link", name="Delete…")).to_be_visible()
    page.goto("/jobs?job_group=unwanted")
    page.get_by_role("link", name="Delete all…").click()
    expect(page.get_by_text("disappear, with their log and output")).to_be_visible()
    page.get_by_role("button", name="Delete 2 jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 jobs were deleted")
    page.goto("/jobs?job_group=unwanted&status=Deleted")
    assert sorted(_shown(page)) == ids


def test_a_list_without_ticks_comes_back_as_it_was(service: Service, signed_in: SignedIn) -> None:
    ids = _submit(service, {"JobGroup": "scan"}, {"JobGroup": "scan"}, {})
    page = signed_in(service, role="user", vo="cms", user="ada")
    several = "status=Received&status=Waiting&status=Done"
    page.goto(f"/jobs?job_group=scan&{several}&sort=job&columns=owner&columns=status")
    for button in ("Kill…", "Resubmit…"):
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("alert")).to_have_text(
            "jobs: none is selected: tick some, or filter the list first"
        )
        _expect_jobs(page, sorted(ids[:2]))
        expect(page.locator("#jobs thead th")).to_have_text(["All on this page", "Job ▴", "Owner", "Status"])
    picture(page, "jobs/none-ticked")
    page.get_by_label(f"Job {ids[1]}").check()
    page.get_by_role("button", name="Kill…").click()
    page.get_by_role("button", name="Kill 1 job").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job was killed")
    page.goto("/jobs/change?do=kill&from_list=limit%3Dmany%26nothing%3D1")
    expect(page.get_by_role("heading", level=1)).to_have_text("Invalid request")


def test_nothing_is_changed_without_a_selection_or_for_others(service: Service, signed_in: SignedIn) -> None:
    [of_bob] = _submit(service, {"JobName": "untouched"}, user="bob")
    page = signed_in(service, role="user", vo="cms", user="ada")
    answer = page.goto("/jobs/change?do=kill")
    assert answer is not None
    assert answer.status == 400
    page.goto(f"/jobs/change?do=kill&ids={of_bob}")
    expect(page.get_by_text("None of these jobs can be killed")).to_be_visible()
    own = {"Origin": service.url, "Sec-Fetch-Site": "same-origin"}
    body = {"do": "kill", "ids": str(of_bob), "csrf": "guessed"}
    assert page.request.post("/jobs/change", form=body, headers=own).status == 403
    assert service.user("bob").get(f"/api/v1/jobs/{of_bob}").json()["status"] == "Waiting"


def test_more_than_a_page_may_change_are_left_to_the_command_line(
    service: Service, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = _submit(service, *[{"JobGroup": "masses"}] * 3)
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/jobs/change?do=kill&job_group=masses")
    expect(page.get_by_role("button", name="Kill 3 jobs")).to_be_visible()
    monkeypatch.setattr(pages_jobs, "_MOST", 2)
    page.get_by_role("button", name="Kill 3 jobs").click()
    expect(page.get_by_role("main")).to_contain_text("pilotage job kill")
    page.goto("/jobs/change?do=kill&job_group=masses")
    expect(page.get_by_text("These are more than a page can change at once.")).to_be_visible()
    assert page.get_by_role("button", name="Kill 3 jobs").count() == 0
    assert service.user().get(f"/api/v1/jobs/{ids[0]}").json()["status"] == "Waiting"


def test_ticks_stay_when_the_list_is_loaded_anew(service: Service, signed_in: SignedIn) -> None:
    ids = _submit(service, *[{"JobGroup": "live"}] * 2)
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/jobs?job_group=live")
    page.get_by_label(f"Job {ids[0]}").check()
    [newer] = _submit(service, {"JobGroup": "live"})
    page.evaluate("htmx.ajax('GET', location.href, {target: '#jobs', swap: 'outerHTML'})")
    expect(page.get_by_label(f"Job {newer}")).to_be_visible()
    expect(page.get_by_label(f"Job {ids[0]}")).to_be_checked()
    page.get_by_label("All on this page").check()
    expect(page.get_by_label(f"Job {newer}")).to_be_checked()


def test_a_job_shows_its_way_attempts_progress_and_output(service: Service, signed_in: SignedIn) -> None:
    owner = {"user": "fay"}
    [job_id] = _submit(service, {"JobName": HOSTILE, "JobGroup": "way", "MinRAM": 2000}, **owner)
    page = signed_in(service, role="user", vo="cms", **owner)
    page.goto(f"/jobs/{job_id}")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Job {job_id} · {HOSTILE}")
    expect(page.get_by_text("No pilot has taken the job yet.")).to_be_visible()
    submitted = datetime.fromisoformat(
        service.operator().get(f"/api/v1/jobs/{job_id}").json()["submitted_at"]
    )
    expect(page.locator("dl.facts").first).to_contain_text(f"{submitted:%Y-%m-%d %H:%M:%S} UTC")
    files = {"std.out": f"{HOSTILE}\nall well\n".encode(), "../../etc/passwd": b"x", "hits.root": b"\0\1"}
    progress = {
        "progress": HOSTILE,
        "output_tail": f"step 3\n{HOSTILE}",
        "phases": [{"name": "simulate", "done": 30, "of": 100, "unit": "events"}],
        "local_jobs": {"running": 3, "done": 7},
        "memory_mb": 1130,
        "cpu_seconds": 12.5,
    }
    _run(service, job_id, output=gzip.compress(archives.tar(files)), **progress)
    page.evaluate("htmx.ajax('GET', location.href, {target: '#job', swap: 'outerHTML'})")
    expect(page.locator("#job h1 + div .status")).to_have_text("Done")
    line = page.get_by_role("img").first.get_attribute("aria-label")
    assert line is not None
    assert [each.split()[0] for each in line.split(", ")][-3:] == ["Matched", "Running", "Done"]
    place = page.get_by_role("region", name="Attempts").get_by_role("link").first
    expect(place).to_have_text("LCG.A.org/ce1/long")
    used = page.get_by_role("region", name="Attempts").get_by_role("row").last.get_by_role("cell")
    expect(used.nth(-3)).to_have_text(re.compile(r"^1.130 of 2.000$"))
    expect(used.nth(-2)).to_have_text("–")
    expect(used.nth(-1)).to_have_text("12")
    expect(page.get_by_text("30 / 100 events")).to_be_visible()
    expect(page.get_by_label("Parameters")).to_contain_text(f"Local batch id{HOSTILE}")
    expect(page.get_by_role("region", name="Log")).to_contain_text("Event 7")
    picture(page, "jobs/job")
    table = page.get_by_role("table", name="Local jobs")
    expect(table.get_by_role("row")).to_have_count(11)
    expect(table.get_by_role("row").last).to_contain_text("4711")
    expect(table.get_by_role("link").last).to_have_attribute("href", "https://book.example.org/7")
    page.get_by_role("link", name="running 3").click()
    expect(table.get_by_role("row")).to_have_count(4)
    page.go_back()
    page.get_by_role("link", name="Output").click()
    expect(page.get_by_role("region", name="Files").get_by_role("row")).to_have_count(4)
    expect(page.locator("pre").first).to_contain_text(f"{HOSTILE}\nall well")
    picture(page, "jobs/output")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download all").click()
    with tarfile.open(download.value.path()) as archive:
        assert archive.getnames() == list(files)
    assert page.locator("img[src=x]").count() == 0


def test_a_new_job_is_looked_at_then_submitted_once(service: Service, signed_in: SignedIn) -> None:
    page = signed_in(service, role="user", vo="cms", user="gil")
    page.goto("/jobs")
    page.get_by_role("link", name="Submit the first one").click()
    jdl = 'Executable = "/bin/true"; JobName = "by page"; Requirements = [Memory = 8000];'
    page.get_by_label("Description").fill(jdl)
    page.get_by_role("button", name="Where would it run?").click()
    expect(page.get_by_text("1 of the 3 queues that its VO may use fits, but no pilot")).to_be_visible()
    expect(page.get_by_role("region", name="Eligible queues")).to_contain_text("LCG.B.org/ce2/all")
    picture(page, "jobs/new")
    fields = ("csrf", "key", "jdl")
    form = {name: page.locator(f"form.card [name={name}]").input_value() for name in fields}
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("by page")
    again = page.request.post("/jobs/new", form={**form, "do": "submit"}, headers={"Origin": service.url})
    assert again.url == page.url, "the same form again is the same job"
    page.goto("/jobs")
    assert len(_shown(page)) == 1


def _expect_nothing_beyond_the_edge(page: Page) -> None:
    page.wait_for_load_state()  # with the styles, also after a click
    beyond = "boxes => boxes.map((box) => box.scrollWidth - box.clientWidth)"
    assert set(page.locator("html, .table").evaluate_all(beyond)) == {0}


def test_on_a_phone_the_list_is_cards_that_are_sorted_and_ticked(
    service: Service, signed_in: SignedIn
) -> None:
    names = {"JobName": "a_name_of_many_letters_without_any_place_to_break", "JobGroup": "phone" * 12}
    ids = _submit(service, *({**names, "Requirements": {"Nothing": n}} for n in range(2)), user="pho")
    page = signed_in(service, role="operator", how={"viewport": {"width": 360, "height": 900}})
    page.goto("/jobs?owner=pho")
    _expect_jobs(page, ids[::-1])
    table = page.get_by_role("region", name="Jobs")
    _expect_nothing_beyond_the_edge(page)
    [first, *_] = table.locator("tbody tr").all()
    titles = first.locator("td").evaluate_all("cells => cells.map((cell) => cell.dataset.label)")
    assert {"Status", "Owner"} <= set(titles), titles
    table.locator("thead").get_by_role("link", name="Job ▾").click()
    _expect_jobs(page, ids)
    titles = first.locator("th, td").evaluate_all("cells => cells.map((cell) => cell.dataset.label)")
    assert "Job" in titles, "without the arrow of the order"
    page.get_by_label(f"Job {ids[0]}").check()
    picture(page, "jobs/cards")
    page.get_by_role("button", name="Hold…").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Hold")
    _expect_nothing_beyond_the_edge(page)
    page.goto(f"/jobs/{ids[0]}")
    expect(page.get_by_role("region", name="Log")).to_be_visible()
    _expect_nothing_beyond_the_edge(page)


@pytest.mark.parametrize("path", ["/jobs?owner=kay", "/jobs/{job_id}"])
def test_jobs_that_are_shown_anew_keep_the_focus(service: Service, signed_in: SignedIn, path: str) -> None:
    [job_id] = _submit(service, {"Executable": "x"}, user="kay")
    page = signed_in(service, role="operator")
    page.goto(path.format(job_id=job_id))
    live = page.locator("[data-events]")
    focused = live.get_by_text("Hold…", exact=True)
    live.evaluate("part => part.setAttribute('data-old', '')")
    focused.focus()
    live.evaluate("part => htmx.trigger(part, 'job-changed')")
    expect(page.locator("[data-old]")).to_have_count(0)
    expect(focused).to_be_focused()


def test_a_copy_of_one_of_many_jobs_is_that_job_alone(service: Service, signed_in: SignedIn) -> None:
    many = 'Executable = "x"; Arguments = "%s"; Parameters = {"a", "b"};'
    ids = service.user("ada").post("/api/v1/jobs", json={"jdl": many}).json()["job_ids"]
    page = signed_in(service, role="operator")
    page.goto(f"/jobs/new?from={ids[1]}")
    copy = json.loads(page.get_by_label("Description").input_value())
    assert copy == {"VO": "cms", "Executable": "x", "Arguments": "b"}
    expect(page.get_by_label("VO of the files")).to_have_value("cms")


def test_input_files_are_sent_with_the_form(service: Service, signed_in: SignedIn, tmp_path: Path) -> None:
    files = {"run.sh": b"#!/bin/sh\ncat data\n", "data.txt": b"x" * 512}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/jobs/new")
    page.get_by_label("Description").fill('Executable = "run.sh"; Bad = [')
    page.get_by_label("Input files").set_input_files([tmp_path / name for name in files])
    expect(page.get_by_text("Stored: run.sh, data.txt")).to_be_visible()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Description").fill('Executable = "run.sh"; InputSandbox = {"run.sh", "data.txt"};')
    expect(page.get_by_text("Stored: run.sh, data.txt")).to_be_visible()
    picture(page, "jobs/new-files")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/\d+$"))
    pilot, lease = _take(service, int(page.url.rpartition("/")[2]))
    archive = pilot.get(f"{lease}/sandbox").raise_for_status().content
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {each.name: (tar.extractfile(each), each.mode) for each in tar.getmembers()}
    assert {name: file.read() for name, (file, _) in members.items() if file} == files
    assert {mode for _, mode in members.values()} == {0o755}


def test_an_operator_sends_input_files_for_a_vo_of_choice(
    service: Service, signed_in: SignedIn, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_bytes(b"#!/bin/sh\n")
    page = signed_in(service, role="operator")
    page.goto("/jobs/new")
    choice = page.get_by_label("VO of the files")
    assert choice.locator("option").all_text_contents() == sorted(service.parts.live.current.vos)
    page.get_by_label("Input files").set_input_files([tmp_path / "run.sh"])
    expect(page.get_by_text("Stored: run.sh")).to_be_visible()
    with page.expect_response(lambda answer: "sandbox?vo=cms" in answer.url):
        choice.select_option("cms")
    expect(page.get_by_text("Stored: run.sh")).to_be_visible()
    page.get_by_label("Description").fill(
        'Executable = "run.sh"; InputSandbox = {"run.sh"}; VO = "cms"; OwnerGroup = "cms_user";'
    )
    page.get_by_role("button", name="Where would it run?").click()
    expect(page.get_by_text("Stored: run.sh")).to_be_visible()
    expect(choice).to_have_value("cms")
    choice.select_option(index=0)
    expect(
        page.get_by_text("Choose the input files again, they were stored for another VO: run.sh")
    ).to_be_visible()
    choice.select_option("cms")
    page.get_by_label("Input files").set_input_files([tmp_path / "run.sh"])
    expect(page.get_by_text("Stored: run.sh")).to_be_visible()
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/jobs/\d+$"))


def test_a_description_that_is_refused_says_why_and_stays(service: Service, signed_in: SignedIn) -> None:
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/explain")
    page.get_by_label("Description").fill(
        f'Executible = "{HOSTILE}";'.replace('"document', "'document").replace('1"', "1'")
    )
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("Executible")
    assert "Executible" in page.get_by_label("Description").input_value()


def test_a_list_and_a_job_are_shown_anew_when_the_job_changes(service: Service, signed_in: SignedIn) -> None:
    """By events: the page does not get to the next time at which it would look by itself."""
    [job_id] = _submit(service, {})
    pages = []
    for address in (f"/jobs/{job_id}", "/jobs?status=Waiting"):
        page = signed_in(service, role="user", vo="cms", user="ada")
        page.add_init_script(
            "const set = window.setTimeout, repeat = window.setInterval;"
            "window.setTimeout = (f, ms, ...more) => ms >= 5000 ? 0 : set(f, ms, ...more);"
            "window.setInterval = (f, ms, ...more) => ms >= 5000 ? 0 : repeat(f, ms, ...more);"
        )
        with page.expect_response("**/jobs/events*"):
            page.goto(address)
        pages.append(page)
    row = pages[1].locator("#jobs tbody th").get_by_text(str(job_id), exact=True)
    expect(row).to_have_count(1)
    service.user().post(f"/api/v1/jobs/{job_id}/kill").raise_for_status()
    expect(pages[0].locator("#job .head")).to_contain_text("Killed")
    expect(row).to_have_count(0)
