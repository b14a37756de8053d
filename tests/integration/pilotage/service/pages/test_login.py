import pytest
from playwright.sync_api import expect

from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")


def test_who_is_not_signed_in_is_asked_to_sign_in(service: Service, windows):
    page = windows.open(service)
    page.goto("/?a=1")
    assert page.url == f"{service.url}/login?next=%2F%3Fa%3D1"
    assert page.get_by_role("heading", level=1).text_content() == "Sign in"
    picture(page, "frame/login")


def test_a_link_signs_in_once_and_goes_to_the_page_that_was_asked_for(service: Service, windows):
    path = service.user().post("/api/v1/login-links", json={}).json()["path"]
    page = windows.open(service)
    page.goto(path)
    expect(page.locator("main")).to_contain_text("signs this browser in as ada, user of cms")
    picture(page, "login/confirm")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{service.url}/")
    expect(page.get_by_role("banner").get_by_text("ada")).to_be_visible()
    cookie = page.context.cookies()[0]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    other = windows.open(service)
    other.goto(path)
    assert other.get_by_role("alert").text_content().startswith("This link is not valid")
    assert "#" not in other.url
    picture(other, "login/used")


def test_without_scripts_the_link_is_pasted(service: Service, windows):
    path = service.user().post("/api/v1/login-links", json={}).json()["path"]
    page = windows.open(service, java_script_enabled=False)
    page.goto("/login?next=/login%3Fa=1")
    page.get_by_label("One-time link").fill(f"{service.url}{path}")
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{service.url}/login?a=1")
    expect(page.get_by_text("You are signed in as ada")).to_be_visible()


def test_who_is_signed_in_does_not_become_somebody_else_by_opening_a_link(
    service: Service, signed_in: SignedIn
):
    path = service.user(user="mallory").post("/api/v1/login-links", json={}).json()["path"]
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto(path)
    expect(page.get_by_text("signs this browser in as mallory")).to_be_visible()
    expect(page.get_by_text("You are signed in as ada")).to_be_visible()
    picture(page, "login/signed-in")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("banner").get_by_text("mallory")).to_be_visible()


def test_where_to_go_next_is_never_another_host(service: Service, windows):
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"):
        path = service.user().post("/api/v1/login-links", json={}).json()["path"]
        form = {"link": path, "next": elsewhere}
        answer = service.client().post("/login", data=form, headers={"Origin": service.url})
        assert answer.headers["location"] == "/"
