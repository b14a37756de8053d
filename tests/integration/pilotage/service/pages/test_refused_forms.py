"""A form that is refused comes back with what was typed, and what is wrong beside it."""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import pytest
from playwright.sync_api import expect

from pilotage.service.pages import templating
from pilotage.service.services import utc_now
from taskqueue.db import database
from taskqueue.sites import closures
from taskqueue.sites.closures import Downtime, Severity
from tests.integration.pilotage.service.pages.test_access import session
from tests.support.page_walk import ROLES
from tests.support.servers.chromium import SignedIn, picture
from tests.support.service import CONFIG, Service

SITE = "LCG.A.org"


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A form that is refused: fields that the person typed, others, and a part of the answer."""

    role: str
    typed: Mapping[str, str]
    hidden: Mapping[str, str]
    told: str
    field: str = ""  #: the one that is wrong; empty: none alone


#: By the address that a form is sent to.
FORMS: Mapping[str, Wrong] = {
    "/jobs/new": Wrong(
        role="user",
        typed={"jdl": "Executable = <x>", "files_vo": "cms"},
        hidden={"do": "submit"},
        told="Executable",
    ),
    "/jobs/resubmit": Wrong(
        role="user",
        typed={"set": "Memory 6000 <x>"},
        hidden={"job_group": "scan"},
        told="write NAME=VALUE, such as Memory=6000",
        field="set",
    ),
    "/configuration/rollback": Wrong(
        role="operator",
        typed={"guard": "stuck_jobs<<7"},
        hidden={"version": "1", "expected": "2"},
        told="is not a guard",
    ),
    "/configuration/preview": Wrong(
        role="operator",
        typed={
            "message": "for <you>",
            "guard": "stuck_jobs=<7",
            "path": "Resources/Sites/LCG.A.org/VO",
            "value": "[cms]",
            "action": "set",
            "revert_after": "3600",
        },
        hidden={"version": "2"},
        told="is not a guard",
    ),
    f"/sites/{SITE}/downtimes": Wrong(
        role="site_admin",
        typed={
            "place": f"{SITE}/ce1",
            "begins": "2040-05-06T09:00",
            "ends": "2040-05-06T08:00",
            "severity": "WARNING",
            "reason": "<new> switches",
        },
        hidden={},
        told="2040-05-06 08:00:00+00:00 is not after the begin",
        field="ends",
    ),
    f"/sites/{SITE}/ban": Wrong(
        role="site_admin",
        typed={"reason": "<too> hot", "until": "2001-01-01T00:00"},
        hidden={},
        told="is over, it is",
        field="until",
    ),
    "/web-hooks": Wrong(
        role="vo_admin",
        typed={"name": "<hook>", "url": "ftp://portal", "owner": "ada", "job_group": "scan"},
        hidden={"vo": "cms", "events": "site.throttled"},
        told="is neither an https nor a mailto address",
        field="url",
    ),
    "/login/device": Wrong(role="user", typed={"code": "AAAA-<AA>"}, hidden={}, told="No command line waits"),
}
#: A secret is not written into the page again.
SECRET = "/login"
_FORM = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]*)"(?:[^<]|<(?!/form>))*')
_CONTROL = re.compile(r'<(?:input|select|textarea)\b(?![^>]*type="hidden")[^>]*\bname="\w+"')


@pytest.fixture(scope="module")
def changed(service: Service) -> Service:
    """Two versions, so that one can go back, a job to copy, and a site with two CEs."""
    more = "        ce3: {Queues: {q: {}}}\n"
    service.configure(CONFIG.replace("    LCG.B.org:\n", f"{more}    LCG.B.org:\n", 1))
    service.submit({"Executable": "x", "JobGroup": "scan"})
    return service


def _list_actions() -> Iterator[str]:
    """Where the forms are sent that have a field to fill in."""
    environment = templating.environment()
    for name in environment.list_templates():
        text, *_ = environment.loader.get_source(environment, name)  # type: ignore[union-attr]
        for form in _FORM.finditer(text):
            if _CONTROL.search(form[0]):
                yield form[1].replace("{{ site | urlencode }}", SITE)


def test_every_form_to_fill_in_is_tried_here() -> None:
    assert set(_list_actions()) - {SECRET} == set(FORMS)


@pytest.mark.parametrize("action", FORMS)
def test_a_refused_form_comes_back_as_it_was_typed(changed: Service, action: str) -> None:
    form = FORMS[action]
    with session(changed, **ROLES[form.role]) as browser:
        sent = {**form.hidden, **form.typed, "csrf": browser.headers["X-CSRF-Token"]}
        answer = browser.post(action, data=sent)
        assert answer.status_code in (400, 409, 422), answer.text
        page = answer.text
        for name, value in form.typed.items():
            field = re.search(rf'<(input|select|textarea)\b[^>]*\bname="{name}"(?:[^<]|<option)*', page)
            if field is not None:
                assert f"{html.escape(value)}" in re.sub(r"&#39;|&#34;", "'", page), name
        assert form.told in html.unescape(page)
        assert 'role="alert"' in page or "Not applied" in page
        if form.field:
            [wrong] = re.findall(r'<[^>]*aria-invalid="true"[^>]*', page)
            assert f'name="{form.field}"' in wrong
            told = re.search(r'aria-describedby="([^"]*)"', wrong)
            assert told
            [beside] = re.findall(rf'id="{told[1]}"[^>]*>([^<]*)', page)
            assert form.told in html.unescape(beside)
        chosen = re.findall(r'<option value="([^"]*)" selected', page)
        assert all(form.typed[name] in chosen for name in ("place", "severity") if name in form.typed)


@pytest.mark.parametrize(
    ("action", "field"),
    [
        (f"/sites/{SITE}/downtimes", "reason"),
        (f"/sites/{SITE}/ban", "reason"),
        ("/configuration/apply", ""),
    ],
)
def test_a_form_whose_reason_is_blank_is_refused(changed: Service, action: str, field: str) -> None:
    form = FORMS[action.replace("apply", "preview")]
    blank = {"reason": "  ", "message": "  ", "ends": "2040-05-06T17:00", "until": "", "guard": ""}
    with session(changed, **ROLES[form.role]) as browser:
        stated = {**form.hidden, **form.typed, **blank, "csrf": browser.headers["X-CSRF-Token"]}
        answer = browser.post(action, data=stated)
        assert (answer.status_code, "is blank, state a reason" in answer.text) == (400, True), answer.text
        wrong = re.findall(r'<[^>]*aria-invalid="true"[^>]*', answer.text)
        assert [f'name="{field}"' in each for each in wrong] == [True] * bool(field)


@pytest.mark.debian("chromium")
def test_a_refused_downtime_is_corrected_where_it_was_typed(changed: Service, signed_in: SignedIn) -> None:
    page = signed_in(changed, role="site_admin", site=SITE, user="eva")
    page.goto(f"/sites/{SITE}")
    page.get_by_label("Of", exact=True).select_option("ce1")
    page.get_by_label("From").fill("2040-05-06T09:00")
    page.get_by_label("To UTC").fill("2040-05-06T08:00")
    page.get_by_label("Why").fill("new switches")
    page.get_by_role("button", name="Plan").click()
    ends = page.get_by_label("To UTC")
    expect(ends).to_be_focused()
    expect(ends).to_have_accessible_description(re.compile("is not after the begin"))
    picture(page, "sites/downtime-refused")
    ends.fill("2040-05-06T17:00")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_text(f"Downtime of {SITE}/ce1")).to_be_visible()


@pytest.mark.debian("chromium")
def test_a_downtime_of_one_ce_does_not_close_the_site(changed: Service, signed_in: SignedIn) -> None:
    now = utc_now()
    closed = Downtime(
        place="LCG.A.org/ce1",
        begins=now - timedelta(hours=1),
        ends=now + timedelta(hours=2),
        severity=Severity.OUTAGE,
        reason="new switches",
        author="eva",
        at=now,
    )
    with database.writing(changed.engine) as conn:
        closures.plan_downtime(conn, closed)
    page = signed_in(changed, role="operator", user="root")
    page.goto("/sites")
    row = page.get_by_role("row").filter(has_text=SITE)
    expect(row).to_contain_text("1 of 2 CEs in a downtime")
    expect(row.locator(".badge.good")).to_have_text("open")
    picture(page, "sites/list-partly")
    page.goto("/sites?state=partly")
    expect(page.get_by_role("rowheader")).to_have_text([SITE])
    page.goto("/sites?state=down")
    expect(page.get_by_text("No such site")).to_be_visible()
    page.goto(f"/sites/{SITE}")
    for queue, badges in (("long", ["on", "downtime"]), ("short", ["on", "downtime"]), ("q", ["on"])):
        name = page.get_by_role("link", name=queue, exact=True)
        shown = page.get_by_role("table", name="Queues").get_by_role("row").filter(has=name)
        expect(shown.locator(".badge")).to_have_text(badges)
    picture(page, "sites/site-partly")
    for address, badges in (("ce1/long", ["on", "downtime"]), ("ce3/q", ["on"])):
        page.goto(f"/sites/{SITE}/{address}")
        expect(page.locator(".head .badge")).to_have_text(badges)
    page.goto(f"/sites/{SITE}/ce1/long")
    picture(page, "sites/queue-closed")
