import pytest
from playwright.sync_api import expect

from pilotage.plugins.web_hooks import agent
from pilotage.plugins.web_hooks.agent import WebHooksState
from pilotage.plugins.web_hooks.messages import SendResult
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import Service

pytestmark = pytest.mark.debian("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"


def send(service: Service, status: int) -> None:
    """One cycle of the agent, to receivers that all answer so."""
    parts = service.parts
    result = SendResult(answer=str(status), is_delivered=status < 300)
    agent.cycle(
        parts.engine,
        parts.live.current,
        now=parts.clock(),
        holder="test",
        memory=WebHooksState(),
        send=lambda *_: result,
    )


def test_a_vo_admin_makes_a_hook_sees_its_secret_once_and_what_arrived(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="vo_admin", vo="cms", user="ada")
    page.goto("/")
    page.get_by_role("link", name="Web hooks").click()
    expect(page.get_by_text("No web hooks")).to_be_visible()
    page.get_by_label("Name").fill(HOSTILE)
    page.get_by_label("Address").fill("https://portal.example.org/jobs")
    page.get_by_label("site.throttled").check()
    page.get_by_role("button", name="Create web hook").click()
    expect(page.get_by_text("whsec_")).to_be_visible()
    expect(page.get_by_role("definition").filter(has_text="job.ended")).to_have_text(
        "job.ended, site.throttled"
    )
    picture(page, "web_hooks/made")
    send(service, 503)
    page.goto("/web-hooks")
    expect(page.get_by_text("whsec_")).to_have_count(0)
    expect(page.get_by_text("failing")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="msg_")).to_contain_text("503")
    picture(page, "web_hooks/failing")
    page.get_by_role("button", name="Send a test").click()
    expect(page.get_by_role("row").filter(has_text="msg_")).to_have_count(2)
    send(service, 204)
    page.goto("/web-hooks")
    expect(page.get_by_role("row").filter(has_text="delivered")).to_have_count(2)
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No web hooks")).to_be_visible()


def test_a_wrong_address_is_refused_in_words(service: Service, signed_in: SignedIn):
    page = signed_in(service, role="operator", user="root")
    page.goto("/web-hooks")
    page.get_by_label("Name").fill("portal")
    page.get_by_label("Address").fill("https://ada:secret@portal.example.org/")
    page.get_by_role("button", name="Create web hook").click()
    expect(page.get_by_role("alert")).to_contain_text("may contain no password")


def test_hooks_of_another_vo_are_unknown(service: Service, signed_in: SignedIn):
    answer = service.as_role("vo_admin", vo="dune", user="dan").post(
        "/api/v1/web-hooks", json={"name": "portal", "url": "https://dune.example.org/"}
    )
    assert answer.status_code == 201
    page = signed_in(service, role="vo_admin", vo="cms", user="ada")
    page.goto("/web-hooks")
    expect(page.get_by_text("No web hooks")).to_be_visible()
    user = signed_in(service, role="user", vo="dune", user="bob")
    assert user.goto("/web-hooks").status == 403
