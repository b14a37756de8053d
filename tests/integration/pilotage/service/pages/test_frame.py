"""What all pages share."""

import pytest
from playwright.sync_api import expect

from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")
HOSTILE = "<img src=x onerror=document.title='taken'>"


def test_an_address_without_a_page_is_answered_with_one(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="operator", user="root")
    page.goto(f"/nowhere/{HOSTILE}")
    assert page.get_by_role("heading", level=1).text_content() == "Not found"
    assert page.get_by_text("onerror=").is_visible()
    assert page.title() == "Not found – Pilotage"
    expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Jobs")).to_be_visible()
    picture(page, "frame/error")


def test_an_address_without_a_page_tells_strangers_nothing_of_the_pages(service: Service):
    answer = service.client().get("/nowhere", headers={"Accept": "text/html"})
    assert answer.status_code == 404
    assert "Not found" in answer.text
    assert "<nav" not in answer.text


def test_a_page_of_another_role_says_so_and_is_not_in_the_navigation(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="site_admin", site="LCG.A.org")
    page.goto("/")
    assert "Jobs" not in page.get_by_role("navigation", name="Pages").get_by_role("link").all_text_contents()
    page.goto("/jobs")
    assert page.get_by_role("heading", level=1).text_content() == "Not allowed"


def test_the_first_key_leads_past_the_navigation_and_the_focus_is_seen(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="operator", user="root")
    page.goto("/")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    assert skip.evaluate("each => each === document.activeElement && each.getBoundingClientRect().bottom > 0")
    assert skip.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_every_name_is_shown_as_text(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="user", vo="cms", user=HOSTILE)
    page.goto("/")
    assert page.get_by_role("banner").get_by_text(HOSTILE).is_visible()
    assert page.title() == "Overview – Pilotage"


def test_a_script_in_a_page_would_not_run(service: Service, windows):
    page = windows.open(service)
    page.goto("/login")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 1'}))"
    )
    assert page.title() == "Sign in – Pilotage"
    assert "Content Security Policy" in windows.wrong.pop()


def test_the_interface_is_described_without_a_look_elsewhere(service: Service, windows):
    page = windows.open(service)
    hosts = set()
    page.on("request", lambda request: hosts.add(request.url.partition("//")[2].partition("/")[0]))
    page.goto("/docs")
    page.get_by_text("/api/v1/matcher/requestJob").click()
    page.get_by_role("link", name="JobRequest").first.click()
    expect(page.get_by_role("table", name="JobRequest").get_by_text("PilotReference")).to_be_visible()
    assert hosts == {service.url.partition("//")[2]}


def test_assets_are_kept_for_ever_by_their_content(service: Service):
    client = service.client()
    page = client.get("/login").text
    address = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
    assert "immutable" in client.get(address).headers["cache-control"]
    assert client.get("/assets/pilotage.css?v=other").headers["cache-control"] == "no-cache"
    assert client.get("/assets/..%2Fassets.py").status_code == 404
    assert client.get("/assets/assets.py").status_code == 404
