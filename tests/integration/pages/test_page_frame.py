import pytest

from tests.browser import SignedIn, picture
from tests.running_service import Service

pytestmark = pytest.mark.debian("chromium")


def test_a_session_shows_who_is_signed_in_and_ends_for_good(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="user", vo="cms", user="ada")
    page.goto("/")
    assert page.title() == "Overview – Pilotage"
    assert page.get_by_role("banner").get_by_text("ada").is_visible()
    kept = page.context.cookies()
    page.get_by_role("button", name="Sign out").click()
    assert page.url == f"{service.url}/login"
    page.context.add_cookies(kept)
    page.goto("/")
    assert "/login" in page.url


def test_an_address_without_a_page_is_answered_with_one(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="operator", user="root")
    page.goto("/nowhere")
    assert page.get_by_role("heading", level=1).text_content() == "Not found"
    picture(page, "frame/error")
