"""The page of the configuration in a browser: who sees, changes and takes back what."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from agents import pools as pool_agent
from pilotage.service.services import utc_now
from tests.support import pilot_process
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")

SITE = "Resources/Sites/LCG.A.org"
CE = f"{SITE}/CEs/ce1"
QUEUE = f"{CE}/Queues/long"
HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture(autouse=True)
def started_from(service: Service) -> Iterator[int]:
    """Each test leaves the configuration as it was."""
    source = service.parts.live.current.source
    yield service.parts.live.current.version
    service.configure(source)


@pytest.fixture
def cms(service: Service, signed_in: SignedIn) -> Page:
    return signed_in(service, role="vo_admin", vo="cms", user="eve")


def submit(service: Service, vo: str, memory: int, count: int) -> list[int]:
    job = {**pilot_process.shell("echo done"), "JobName": HOSTILE, "Requirements": {"Memory": memory}}
    return service.submit(*[job] * count, vo=vo)


def fill(page: Page, path: str, value: str) -> None:
    form = page.locator("#draft")
    form.get_by_label("Path").last.fill(path)
    form.get_by_role("textbox", name="Value").last.fill(value)


def in_order(*words: object) -> re.Pattern[str]:
    return re.compile(".*".join(map(str, words)), re.DOTALL)


def total(page: Page, name: str) -> str:
    return page.locator(f"#outcome [data-total={name}] dd").inner_text()


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def edit(service: Service, values: dict[str, Any], role: str = "operator", **wishes: Any) -> int:
    headers = {"If-Match": str(service.parts.live.current.version)}
    client = service.as_role(role, **wishes)
    answer = client.patch("/api/v1/config", json={"set": values}, headers=headers)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def test_a_vo_admin_raises_a_queues_memory_sees_which_jobs_it_frees_applies_and_they_run(
    service: Service, cms: Page, signed_in: SignedIn, tmp_path: Path
):
    stuck = submit(service, "cms", 20_001, 3)
    submit(service, "cms", 60_000, 2)
    before = service.parts.live.current.version

    cms.goto("/")
    cms.get_by_role("link", name="Configuration").click()
    picture(cms, "configuration/top")
    cms.get_by_label("Go to a path").fill("LCG.A.org/ce1/long")
    press(cms, "Go")
    expect(cms.get_by_role("row", name="MaxRAM")).to_contain_text(in_order(4000, "5 by this alone"))
    picture(cms, "configuration/queue")
    cms.get_by_role("link", name="Change MaxRAM for cms").click()
    path = cms.locator("#draft").get_by_label("Path")
    expect(path).to_have_value(f"{QUEUE}/VOs/cms/MaxRAM")
    expect(cms.locator("#draft").get_by_role("textbox", name="Value")).to_have_value("4000")
    fill(cms, f"{QUEUE}/VOs/cms/MaxRAM", "32000")
    press(cms, "Preview")
    expect(cms.get_by_text("3 jobs of cms, such as")).to_contain_text(
        f"such as {stuck[0]}, get LCG.A.org/ce1/long"
    )
    assert (total(cms, "freed_jobs"), total(cms, "stuck_jobs")) == ("3", "0")
    expect(cms.get_by_text("Nothing is changed yet.")).to_contain_text(
        f"pilotage replay --from 1d --set {QUEUE}/VOs/cms/MaxRAM=32000"
    )
    assert service.parts.live.current.version == before
    picture(cms, "configuration/preview")

    cms.get_by_label("Why").fill("they doubled it")
    cms.get_by_label("Only if").fill("stuck_jobs=0")
    press(cms, "Apply")
    expect(cms.get_by_role("status")).to_contain_text(f"Version {before + 1} is in force.")
    picture(cms, "configuration/applied")

    assert pool_agent.cycle(service.engine, service.parts.live.current, now=utc_now(), holder="test")
    token = service.token("pilot", vo="cms")
    ended = pilot_process.run(
        service.url, tmp_path / "work", "--max-jobs", "5", token=token, queue="LCG.A.org/ce1/long"
    )
    user = service.user(vo="cms")
    assert sorted(each["job_id"] for each in ended["jobs"]) == stuck
    assert {user.get(f"/api/v1/jobs/{job}").json()["status"] for job in stuck} == {"Done"}

    the_other_sees_and_does_nothing_of_it(service, signed_in, before)


def the_other_sees_and_does_nothing_of_it(service: Service, signed_in: SignedIn, before: int) -> None:
    dune = signed_in(service, role="vo_admin", vo="dune", user="mallory")
    for address in (
        f"/configuration?path={QUEUE}",
        f"/configuration?path={QUEUE}/VOs",
        f"/configuration?path={QUEUE}/VOs/cms",
        f"/configuration?path={QUEUE}/VOs/cms&as=text",
        f"/configuration?path={QUEUE}&vo=cms",
        f"/configuration/paths?path={QUEUE}/VOs/",
        "/configuration/history",
        f"/configuration/diff?from={before}&to={before + 1}",
    ):
        dune.goto(address)
        text = dune.content().replace("VOs/cms", "").replace("vo=cms", "")  # what was asked for itself
        text = re.sub(r"\b[0-9a-f]{64}\b", "", text)  # the token of its forms may have any digits
        assert "32000" not in text
        assert "doubled" not in text
        assert "eve" not in re.findall(r"\w+", text)
    dune.goto("/configuration")
    fill(dune, f"{QUEUE}/VOs/cms/MaxRAM", "1")
    expect(dune.locator("#findings")).to_contain_text(f"{QUEUE}/VOs/cms/MaxRAM: not yours to change")
    press(dune, "Preview")
    expect(dune.locator("#outcome")).to_contain_text(f"{QUEUE}/VOs/cms/MaxRAM: not yours to change")
    press(dune, "Apply")
    expect(dune.locator("#outcome")).to_contain_text("Not applied")
    dune.goto(f"/configuration/rollback?version={before}")
    expect(dune.get_by_text("Nothing is changed by this.")).to_be_visible()
    assert service.parts.live.current.version == before + 1


def test_what_is_wrong_is_told_while_one_writes(service: Service, cms: Page):
    cms.goto(f"/configuration?path={QUEUE}/VOs/cms&as=text")
    cms.get_by_label("Text of").fill("OS: [el9]\nMaxRamm: 1\n")
    findings = cms.locator("#findings")
    expect(findings).to_contain_text("Error, line 2")
    expect(findings).to_contain_text("did you mean MaxRAM?")
    picture(cms, "configuration/text")
    cms.get_by_label("Text of").fill("OS: [el9]\nMaximumRAM: 1\n")
    expect(findings).to_contain_text("Warning, line 2")
    cms.get_by_label("Text of").fill("OS: [el9\n")
    expect(findings).to_contain_text("not YAML")
    cms.goto("/configuration")
    fill(cms, f"{QUEUE}/VOs/cms/MaxRAM", "[1")
    expect(findings).to_contain_text("is not a valid value")
    press(cms, "Apply")
    expect(cms.locator("#outcome")).to_contain_text("Not applied")
    expect(cms.locator("#draft").get_by_role("textbox", name="Value").first).to_have_value("[1")


def test_paths_are_completed_from_the_tree_and_from_what_is_known(service: Service, cms: Page):
    cms.goto("/configuration")
    cms.locator("#draft").get_by_label("Path").press_sequentially(f"{QUEUE}/VOs/")
    known = cms.locator("#known-paths option")
    expect(known.first).to_have_attribute("value", f"{QUEUE}/VOs/cms/")
    expect(known).to_have_count(1)
    cms.locator("#draft").get_by_label("Path").press_sequentially("cms/maxra")
    expect(known.first).to_have_attribute("value", f"{QUEUE}/VOs/cms/MaxRAM")
    expect(known.first).to_contain_text("memory that a job may use")


def test_a_draft_is_written_looked_at_and_applied_with_the_keyboard_alone(service: Service, cms: Page):
    cms.goto("/configuration?path=Operations")
    before = service.parts.live.current.version
    cms.locator("#draft").get_by_label("Path").focus()
    keys = cms.keyboard
    keys.type("Operations/cms/JobScheduling/MaxRescheduling")
    keys.press("Tab")
    keys.press("Tab")
    keys.type("5")
    keys.press("Enter")
    expect(cms.locator("#outcome")).to_contain_text("Nothing is changed yet.")
    for _ in range(10):
        keys.press("Tab")
        if cms.evaluate("document.activeElement.textContent") == "Apply":
            break
    keys.press("Enter")
    expect(cms.get_by_role("status")).to_contain_text(f"Version {before + 1} is in force.")


def test_of_two_who_change_the_same_the_second_sees_the_others_difference_and_goes_on(
    service: Service, cms: Page
):
    cms.goto(f"/configuration?path={CE}/VOs/cms&as=text")
    edit(service, {f"{CE}/VOs/cms": {"MaxRAM": 6000, "OS": ["el8"]}}, "vo_admin", vo="cms", user="bob")
    cms.get_by_label("Text of").fill("MaxRAM: 9000\n")
    press(cms, "Apply")
    outcome = cms.locator("#outcome")
    expect(outcome).to_contain_text("changed since version")
    expect(outcome.get_by_role("row", name="MaxRAM")).to_contain_text("6000")
    picture(cms, "configuration/conflict")
    cms.get_by_role("button", name="with my draft").click()
    expect(cms.get_by_role("status")).to_contain_text("starts from version")
    press(cms, "Preview")
    expect(outcome.get_by_role("row", name="MaxRAM")).to_contain_text(in_order(6000, 9000))
    press(cms, "Apply")
    expect(cms.get_by_text("is in force.")).to_be_visible()
    assert service.parts.live.current.tree["Resources"]["Sites"]["LCG.A.org"]["CEs"]["ce1"]["VOs"] == {
        "cms": {"MaxRAM": 9000}
    }


def test_a_floor_that_falls_is_told_by_the_preview(service: Service, signed_in: SignedIn) -> None:
    edit(service, {f"{SITE}/Floors/cms": "40%"})
    body = {"set": {f"{SITE}/Floors/cms": "30%"}, "revert_after": 3600}
    version = {"If-Match": str(service.parts.live.current.version)}
    service.operator().patch("/api/v1/config", json=body, headers=version).raise_for_status()
    page = signed_in(service, role="operator", user="root")
    page.goto(f"/configuration?path={SITE}")
    fill(page, f"{SITE}/Floors/cms", "10%")
    press(page, "Preview")
    expect(page.get_by_text("The floor of cms at LCG.A.org becomes 10 % instead of 30 %")).to_be_visible()
    expect(page.get_by_text("is temporary: 40% does not come back")).to_be_visible()
    assert total(page, "lowered_floors") == "1"
    picture(page, "configuration/floor")


def test_versions_are_listed_compared_and_taken_back_with_a_preview(service: Service, cms: Page):
    first = edit(service, {f"{CE}/VOs/cms/MaxRAM": 5000}, "vo_admin", vo="cms", user="eve")
    edit(service, {f"{CE}/VOs/cms/MaxRAM": 30_000}, "vo_admin", vo="cms", user="eve")
    submit(service, "cms", 25_000, 1)
    cms.goto(f"/configuration/history?path={CE}")
    picture(cms, "configuration/history")
    press(cms, "Compare the two")
    expect(cms.get_by_role("row", name=f"{CE}/VOs/cms/MaxRAM")).to_contain_text(in_order(5000, 30000))
    picture(cms, "configuration/diff")
    cms.go_back()
    cms.get_by_role("link", name=f"Go back to {first}", exact=True).click()
    assert total(cms, "stuck_jobs") == "1"
    picture(cms, "configuration/rollback")
    cms.get_by_label("Only if").fill("stuck_jobs=0")
    cms.get_by_role("button", name=f"Go back to version {first}").click()
    expect(cms.locator("#outcome")).to_contain_text("guard stuck_jobs=0: there would be 1")
    cms.get_by_label("Only if").fill("")
    cms.get_by_role("button", name=f"Go back to version {first}").click()
    expect(cms.get_by_role("row", name=f"{CE}/VOs/cms/MaxRAM")).to_contain_text(in_order(30000, 5000))


def test_nothing_that_was_written_is_lost_when_the_session_ends(service: Service, cms: Page):
    cms.goto(f"/configuration?path={CE}")
    fill(cms, f"{CE}/VOs/cms/MaxRAM", "7777")
    press(cms, "Another path")
    fill(cms, f"{CE}/VOs/cms/OS", "[el9]")
    cookies = cms.context.cookies()
    expect(cms.locator("#findings")).to_contain_text("2 paths would be changed")
    cms.context.clear_cookies()
    fill(cms, f"{CE}/VOs/cms/OS", "[el9, el10]")
    cms.wait_for_url("**/login*")
    cms.context.add_cookies(cookies)
    cms.goto("/configuration")
    cms.get_by_text("You have drafts at:").get_by_role("link", name=CE).click()
    values = cms.locator("#draft").get_by_role("textbox", name="Value")
    expect(values.first).to_have_value("7777")
    expect(values.nth(1)).to_have_value("[el9, el10]")
    expect(cms.locator("#findings")).to_contain_text("No errors")
    press(cms, "Discard it")
    expect(values.first).to_have_value("")
    cms.reload()
    expect(values.first).to_have_value("")


def test_a_site_admin_changes_his_site_outside_vos_and_no_other(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="site_admin", site="LCG.A.org", user="sam")
    page.goto(f"/configuration?path={CE}&as=text")
    text = page.get_by_label("Text of")
    text.fill(text.input_value().replace("MaxRAM: 4000", "MaxRAM: 4001"))
    press(page, "Apply")
    expect(page.get_by_role("status")).to_contain_text("is in force.")
    page.goto("/configuration")
    fill(page, f"{QUEUE}/VOs/cms/MaxRAM", "1")
    expect(page.locator("#findings")).to_contain_text(f"{QUEUE}/VOs/cms/MaxRAM: not yours to change")
    fill(page, "Resources/Sites/LCG.B.org/CPUModel", "AMD")
    press(page, "Preview")
    expect(page.locator("#outcome")).to_contain_text("LCG.B.org/CPUModel: not yours to change")
    page.goto(f"/configuration?path={QUEUE}&vo=DUNE")
    expect(page.get_by_role("heading", name="Effective parameters for dune")).to_be_visible()
    expect(page.get_by_role("table", name="Effective parameters")).to_contain_text("4001")
    page.goto("/configuration?path=Resources/Sites/LCG.B.org&vo=dune")
    assert not page.get_by_role("heading", name="gets of this site").count()


def test_an_operator_edits_the_whole_text_and_its_comments(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="operator", user="root")
    page.goto("/configuration?as=text")
    text = page.get_by_label("The whole text")
    text.fill(text.input_value().replace("MaxRAM: 16000", "MaxRAM: 17000  # measured"))
    page.get_by_text("No errors; 1 path would be changed").click()
    expect(page.locator("#findings").get_by_role("row", name="MaxRAM")).to_contain_text("17000")
    picture(page, "configuration/whole")
    edit(service, {f"{CE}/OS": ["el8"]})
    press(page, "Apply")
    expect(page.locator("#outcome")).to_contain_text("Not applied")
    page.get_by_role("button", name="with my draft").click()
    press(page, "Apply")
    expect(page.get_by_role("status")).to_contain_text("is in force.")
    assert "17000" in service.parts.live.current.source
    assert "el8" in service.parts.live.current.source


def test_who_may_change_nothing_sees_no_form_and_is_refused(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(f"/configuration?path={QUEUE}")
    expect(page.get_by_role("row", name="MaxRAM")).to_contain_text("4000")
    assert page.locator("#draft").count() == 0
    answer = page.goto("/configuration/history")
    assert answer is not None
    assert answer.status == 403


def test_without_scripts_a_change_is_looked_at_and_applied_all_the_same(
    service: Service, signed_in: SignedIn
):
    page = signed_in(service, role="vo_admin", vo="cms", user="eve", how={"java_script_enabled": False})
    page.goto("/configuration")
    fill(page, f"{CE}/VOs/cms/MaxRAM", "7000")
    press(page, "Preview")
    expect(page.locator("#outcome")).to_contain_text("Nothing is changed yet.")
    press(page, "Apply")
    expect(page.get_by_role("status")).to_contain_text("is in force.")


def test_a_path_of_a_single_value_shows_it(service: Service, cms: Page):
    cms.goto(f"/configuration?path={CE}/MaxRAM")
    expect(cms.get_by_role("row", name="MaxRAM")).to_contain_text("4000")


def test_what_others_wrote_is_shown_as_it_is(service: Service, cms: Page):
    headers = {"If-Match": str(service.parts.live.current.version)}
    eve = service.as_role("vo_admin", vo="cms", user="eve")
    body = {"set": {f"{CE}/VOs/cms/CPUModel": HOSTILE}, "message": HOSTILE}
    assert eve.patch("/api/v1/config", json=body, headers=headers).status_code == 200
    for address in (
        f"/configuration?path={CE}/VOs/cms",
        f"/configuration?path={CE}",
        "/configuration/history",
    ):
        cms.goto(address)
        expect(cms.get_by_text(HOSTILE).first).to_be_visible()
        assert "taken" not in cms.title()
    cms.goto(f"/configuration?path={CE}/VOs/cms&as=text")
    assert HOSTILE in cms.get_by_label("Text of").input_value()


def test_a_change_for_some_hours_is_shown_until_it_reverts(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="operator")
    page.goto(f"/configuration?path={QUEUE}")
    fill(page, f"{QUEUE}/MaxRAM", "9000")
    page.get_by_label("For (then").select_option("6 hours")
    press(page, "Apply")
    expect(page.get_by_role("status")).to_contain_text("is in force")
    table = page.get_by_role("region", name="Temporary values")
    expect(table).to_contain_text(in_order("MaxRAM", "9000", "–"))
    page.goto("/configuration/history")
    expect(page.locator("tbody tr").first).to_contain_text("reverts")
